package httpsig

import (
	"maps"
	"strings"
	"testing"
)

// The examples of RFC 9421 section 2, byte for byte.
func TestBaseOfRFCExamples(t *testing.T) {
	header := func(pairs ...string) map[string][]string {
		h := map[string][]string{}
		for i := 0; i < len(pairs); i += 2 {
			h[pairs[i]] = append(h[pairs[i]], pairs[i+1])
		}
		return h
	}
	fields := header("Host", "www.example.com",
		"Date", "Tue, 20 Apr 2021 02:07:56 GMT",
		"X-Ows-Header", "   Leading and trailing whitespace.   ",
		"X-Obs-Fold-Header", "Obsolete\r\n    line folding.",
		"Cache-Control", "max-age=60", "Cache-Control", "    must-revalidate",
		"Example-Dict", "  a=1,    b=2;x=1;y=2,   c=(a   b   c)",
		"X-Empty-Header", "")
	dict := &Message{
		Header: header("Example-Dict", "  a=1, b=2;x=1;y=2, c=(a   b    c), d"),
		Fields: map[string]FieldType{"example-dict": DictionaryField},
	}
	path := request("POST", "/path?param=value")
	request := func(target string) *Message { return request("POST", target) }

	for _, tt := range []struct {
		section, list string
		m             *Message
		want          []string
	}{
		{"2.1", `("host" "date" "x-ows-header" "x-obs-fold-header" "cache-control" "example-dict" "x-empty-header")`,
			&Message{Header: fields},
			[]string{
				`"host": www.example.com`,
				`"date": Tue, 20 Apr 2021 02:07:56 GMT`,
				`"x-ows-header": Leading and trailing whitespace.`,
				`"x-obs-fold-header": Obsolete line folding.`,
				`"cache-control": max-age=60, must-revalidate`,
				`"example-dict": a=1,    b=2;x=1;y=2,   c=(a   b   c)`,
				`"x-empty-header": `,
			}},
		{"2.1.1", `("example-dict";sf)`,
			&Message{Header: fields, Fields: dict.Fields},
			[]string{`"example-dict";sf: a=1, b=2;x=1;y=2, c=(a b c)`}},
		{"2.1.2", `("example-dict";key="a" "example-dict";key="d" "example-dict";key="b" "example-dict";key="c")`,
			dict,
			[]string{
				`"example-dict";key="a": 1`,
				`"example-dict";key="d": ?1`,
				`"example-dict";key="b": 2;x=1;y=2`,
				`"example-dict";key="c": (a b c)`,
			}},
		{"2.1.3 two lines", `("example-header" "example-header";bs)`,
			&Message{Header: header("Example-Header", "value, with, lots", "Example-Header", "of, commas")},
			[]string{
				`"example-header": value, with, lots, of, commas`,
				`"example-header";bs: :dmFsdWUsIHdpdGgsIGxvdHM=:, :b2YsIGNvbW1hcw==:`,
			}},
		{"2.1.3 one line", `("example-header" "example-header";bs)`,
			&Message{Header: header("Example-Header", "value, with, lots, of, commas")},
			[]string{
				`"example-header": value, with, lots, of, commas`,
				`"example-header";bs: :dmFsdWUsIHdpdGgsIGxvdHMsIG9mLCBjb21tYXM=:`,
			}},
		{"2.1.4", `("@status" "trailer" "expires";tr)`,
			&Message{
				Status:  200,
				Header:  header("Content-Type", "text/plain", "Transfer-Encoding", "chunked", "Trailer", "Expires"),
				Trailer: header("Expires", "Wed, 9 Nov 2022 07:28:00 GMT"),
			},
			[]string{`"@status": 200`, `"trailer": Expires`, `"expires";tr: Wed, 9 Nov 2022 07:28:00 GMT`}},
		{"2.2.1", `("@method")`, path, []string{`"@method": POST`}},
		{"2.2.2", `("@target-uri")`, path, []string{`"@target-uri": https://www.example.com/path?param=value`}},
		{"2.2.3", `("@authority")`, path, []string{`"@authority": www.example.com`}},
		{"2.2.4", `("@scheme")`, &Message{Method: "POST", RawTarget: "/path?param=value", Scheme: "http", Authority: "www.example.com"},
			[]string{`"@scheme": http`}},
		{"2.2.5 origin", `("@request-target")`, path, []string{`"@request-target": /path?param=value`}},
		{"2.2.5 absolute", `("@request-target")`,
			&Message{Method: "GET", RawTarget: "https://www.example.com/path?param=value"},
			[]string{`"@request-target": https://www.example.com/path?param=value`}},
		{"2.2.5 authority", `("@request-target")`,
			&Message{Method: "CONNECT", RawTarget: "www.example.com:80", Authority: "www.example.com"},
			[]string{`"@request-target": www.example.com:80`}},
		{"2.2.5 asterisk", `("@request-target")`,
			&Message{Method: "OPTIONS", RawTarget: "*", Authority: "server.example.com"},
			[]string{`"@request-target": *`}},
		{"2.2.6", `("@path")`, path, []string{`"@path": /path`}},
		{"2.2.7", `("@query")`, request("/path?param=value&foo=bar&baz=bat%2Dman"),
			[]string{`"@query": ?param=value&foo=bar&baz=bat%2Dman`}},
		{"2.2.7 no value", `("@query")`, request("/path?queryString"), []string{`"@query": ?queryString`}},
		{"2.2.7 absent", `("@query")`, request("/path"), []string{`"@query": ?`}},
		{"2.2.8", `("@query-param";name="baz" "@query-param";name="qux" "@query-param";name="param")`,
			request("/path?param=value&foo=bar&baz=batman&qux="),
			[]string{
				`"@query-param";name="baz": batman`,
				`"@query-param";name="qux": `,
				`"@query-param";name="param": value`,
			}},
		{"2.2.8 encoded", `("@query-param";name="var" "@query-param";name="bar" "@query-param";name="fa%C3%A7ade%22%3A%20")`,
			request("/parameters?var=this%20is%20a%20big%0Amultiline%20value&bar=with+plus+whitespace&fa%C3%A7ade%22%3A%20=something"),
			[]string{
				`"@query-param";name="var": this%20is%20a%20big%0Amultiline%20value`,
				`"@query-param";name="bar": with%20plus%20whitespace`,
				`"@query-param";name="fa%C3%A7ade%22%3A%20": something`,
			}},
		{"2.2.9", `("@status")`, &Message{Status: 200}, []string{`"@status": 200`}},
	} {
		t.Run(tt.section, func(t *testing.T) {
			got, err := baseOf(t, tt.m, tt.list)
			if want := strings.Join(tt.want, "\n"); err != nil || got != want {
				t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
			}
		})
	}
}

func request(method, target string) *Message {
	return &Message{Method: method, RawTarget: target, Scheme: "https", Authority: "www.example.com"}
}

// RFC 9421 section 2.4: a response bound to its request.
func TestBaseOfBoundResponse(t *testing.T) {
	const sig = ":LAH8BjcfcOcLojiuOBFWn0P5keD3xAOuJRGziCLuD8r5MW9S0RoXXLzLSRfGY/3SF8kVIkHjE13SEFdTo4Af/fJ/Pu9wheqoLVdwXyY/UkBIS1M8Brc8IODsn5DFIrG0IrburbLi0uCc+E2ZIIb6HbUJ+o+jP58JelMTe0QE3IpWINTEzpxjqDf5/Df+InHCAkQCTuKsamjWXUpyOT1Wkxi7YPVNOjW4MfNuTZ9HdbD2Tr65+BXeTG9ZS/9SWuXAc+BZ8WyPz0QRz//ec3uWXd7bYYODSjRAxHqX+S1ag3LZElYyUKaAIjZ8MGOt4gXEwCSLDv/zqxZeWLj/PDkn6w==:"
	asked := rfcRequest()
	asked.Header[headerInput] = []string{`sig1=("@method" "@authority" "@path" "content-digest" "content-length" "content-type");created=1618884475;keyid="test-key-rsa-pss"`}
	asked.Header[headerSignature] = []string{"sig1=" + sig}
	m := &Message{
		Status:  503,
		Header:  map[string][]string{"Content-Length": {"62"}, "Content-Type": {"application/json"}},
		Request: asked,
	}
	in := Input{
		Components: MustComponents(`("@status" "content-length" "content-type" "signature";req;key="sig1" "@authority";req "@method";req)`),
		Created:    1618884479,
		KeyID:      "test-key-ecc-p256",
	}
	want := strings.Join([]string{
		`"@status": 503`,
		`"content-length": 62`,
		`"content-type": application/json`,
		`"signature";req;key="sig1": ` + sig,
		`"@authority";req: example.com`,
		`"@method";req: POST`,
		`"@signature-params": ("@status" "content-length" "content-type" "signature";req;key="sig1" "@authority";req "@method";req);created=1618884479;keyid="test-key-ecc-p256"`,
	}, "\n")
	if got, err := in.AppendBase(nil, m); err != nil || string(got) != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
}

// RFC 9421 section 2.5.
func TestBaseOfRequest(t *testing.T) {
	in := Input{
		Components: MustComponents(`("@method" "@authority" "@path" "content-digest" "content-length" "content-type")`),
		Created:    1618884473,
		KeyID:      "test-key-rsa-pss",
	}
	want := strings.Join([]string{
		`"@method": POST`,
		`"@authority": example.com`,
		`"@path": /foo`,
		`"content-digest": sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:`,
		`"content-length": 18`,
		`"content-type": application/json`,
		`"@signature-params": ("@method" "@authority" "@path" "content-digest" "content-length" "content-type");created=1618884473;keyid="test-key-rsa-pss"`,
	}, "\n")
	if got, err := in.AppendBase(nil, rfcRequest()); err != nil || string(got) != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
}

// What the RFC's text says beyond its examples.
func TestBaseValues(t *testing.T) {
	h := map[string][]string{
		"Priority":     {"u=1,   i"},
		"Cache-Status": {`a;hit,   b; fwd=miss`},
		"Client-Cert":  {" :AQID: "},
		"Example-Dict": {"a=1", "b=%\"caf%c3%a9 \\\", c=tok:en/x;p"},
	}
	for _, tt := range []struct {
		name, list, want string
		m                *Message
	}{
		{"path is not decoded", `("@path")`, `"@path": /a%2Fb/%7e/../c`, request("GET", "/a%2Fb/%7e/../c?x")},
		{"query keeps a second question mark", `("@query")`, `"@query": ?a?b`, request("GET", "/?a?b")},
		{"an empty query is a question mark", `("@query")`, `"@query": ?`, request("GET", "/?")},
		{"two slashes stay", `("@path")`, `"@path": //evil/x`, request("GET", "//evil/x")},
		{"absolute form: path", `("@path")`, `"@path": /p`, request("GET", "http://h:8080/p?q")},
		{"absolute form: no path", `("@path")`, `"@path": /`, request("GET", "http://h")},
		{"absolute form: no path but query", `("@query")`, `"@query": ?q`, request("GET", "http://h?q")},
		{"absolute form: its authority counts", `("@authority")`, `"@authority": h:8080`, request("GET", "HTTP://H:8080/p")},
		{"absolute form: its scheme counts", `("@scheme")`, `"@scheme": http`, request("GET", "HTTP://H:8080/p")},
		{"absolute form: URI as it is", `("@target-uri")`, `"@target-uri": HTTP://H:8080/p`, request("GET", "HTTP://H:8080/p")},
		{"URI of asterisk form", `("@target-uri")`, `"@target-uri": https://www.example.com`, request("OPTIONS", "*")},
		{"authority of CONNECT", `("@authority")`, `"@authority": db.example`, request("CONNECT", "db.example:443")},
		{"default port goes", `("@authority")`, `"@authority": www.example.com`, &Message{Method: "GET", RawTarget: "/", Scheme: "HTTPS", Authority: "WWW.Example.com:443"}},
		{"another port stays", `("@authority")`, `"@authority": h:80`, &Message{Method: "GET", RawTarget: "/", Scheme: "https", Authority: "h:80"}},
		{"an empty port goes", `("@authority")`, `"@authority": h`, &Message{Method: "GET", RawTarget: "/", Scheme: "https", Authority: "h:"}},
		{"IPv6", `("@authority")`, `"@authority": [::a]`, &Message{Method: "GET", RawTarget: "/", Scheme: "http", Authority: "[::A]:80"}},
		{"method keeps its case", `("@method")`, `"@method": pOST`, request("pOST", "/")},
		{"host that net/http took out", `("host")`, `"host": www.example.com`, request("GET", "/")},
		{"tilde is encoded", `("@query-param";name="a")`, `"@query-param";name="a": %7E*-._%2B`, request("GET", "/?a=~*-._%2b")},
		{"broken escape stands for itself", `("@query-param";name="a")`, `"@query-param";name="a": %25zz%25`, request("GET", "/?a=%zz%")},
		{"name by its decoded value", `("@query-param";name="a%20b")`, `"@query-param";name="a%20b": 1`, request("GET", "/?&a+b=1")},
		{"known dictionary", `("priority";sf)`, `"priority";sf: u=1, i`, &Message{Header: h}},
		{"known list", `("cache-status";sf)`, `"cache-status";sf: a;hit, b;fwd=miss`, &Message{Header: h}},
		{"known item", `("client-cert";sf)`, `"client-cert";sf: :AQID:`, &Message{Header: h}},
		{"display string and token", `("example-dict";key="b")`, `"example-dict";key="b": %"caf%c3%a9 \"`, &Message{Header: h}},
		{"token with a colon", `("example-dict";key="c")`, `"example-dict";key="c": tok:en/x;p`, &Message{Header: h}},
		{"bytes beyond ASCII, wrapped", `("x";bs)`, `"x";bs: :/w==:`, &Message{Header: map[string][]string{"X": {"\xff"}}}},
		{"tab inside a field", `("x")`, "\"x\": a\tb", &Message{Header: map[string][]string{"X": {"a\tb\t"}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := baseOf(t, tt.m, tt.list); err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

// Everything that RFC 9421 section 2.5 calls an error is one. // lesson 34
func TestBaseRefuses(t *testing.T) {
	get := request("GET", "/p?a=1&b=2&b=3&u=%ff")
	get.Header = map[string][]string{
		"X": {"1"}, "Dict": {"a=1, a=2"}, "Params": {"a=1;p;p"}, "Bad": {"a=("}, "Bytes": {"a=:AB==:"},
		"Newline": {"a\nb: c"}, "Latin": {"\xe9"}, "Nul": {"\x00"},
		"Priority": {"u=1, u=2"}, "Cache-Status": {"a;p;p"}, "Client-Cert": {":AB==:"},
		"Long": {strings.Repeat("a=1,", maxField) + "z"},
	}
	response := &Message{Status: 200, Request: get}
	with := func(edit func(*Message)) *Message {
		m := *get
		m.Header = maps.Clone(get.Header)
		edit(&m)
		return &m
	}
	for _, tt := range []struct {
		name, list string
		m          *Message
	}{
		{"unknown derived component", `("@nope")`, get},
		{"signature-params listed", `("@signature-params")`, get},
		{"field name in upper case", `("Date")`, get},
		{"empty field name", `("")`, get},
		{"component that is no string", `(date)`, get},
		{"component listed twice", `("x" "x")`, get},
		{"same parameters in another order", `("x";key="a";tr "x";tr;key="a")`, get},
		{"unknown parameter", `("x";zz)`, get},
		{"parameter repeated", `("x";bs;bs)`, get},
		{"flag that is false", `("x";bs=?0)`, get},
		{"flag with a value", `("x";bs="1")`, get},
		{"key without a value", `("x";key)`, get},
		{"key with a number", `("x";key=1)`, get},
		{"bs with sf", `("x";bs;sf)`, get},
		{"bs with key", `("x";bs;key="a")`, get},
		{"sf on a derived component", `("@path";sf)`, get},
		{"tr on a derived component", `("@path";tr)`, get},
		{"name on a field", `("x";name="a")`, get},
		{"name on another derived component", `("@query";name="a")`, get},
		{"query-param without name", `("@query-param")`, get},
		{"parameters on the list", `("x");created=1`, get},
		{"two lists", `("x"), d=("x")`, get},
		{"field not there", `("y")`, get},
		{"trailer not there", `("x";tr)`, get},
		{"sf of unknown type", `("x";sf)`, get},
		{"key of no dictionary", `("bad";key="a")`, get},
		{"key not there", `("dict";key="c")`, get},
		{"key there twice", `("dict";key="a")`, get},
		{"member's parameter there twice", `("params";key="a")`, get},
		{"dictionary with a key twice", `("priority";sf)`, get},
		{"list with a parameter twice", `("cache-status";sf)`, get},
		{"item that is not canonical", `("client-cert";sf)`, get},
		{"member that is not canonical base64", `("bytes";key="a")`, get},
		{"field too long to parse", `("long";key="z")`, get},
		{"line break in a value", `("newline")`, get},
		{"value beyond ASCII", `("latin")`, get},
		{"NUL in a value", `("nul")`, get},
		{"query parameter not there", `("@query-param";name="c")`, get},
		{"query parameter there twice", `("@query-param";name="b")`, get},
		{"query parameter not UTF-8", `("@query-param";name="u")`, get},
		{"status of a request", `("@status")`, get},
		{"req in a request", `("@method";req)`, get},
		{"req without its request", `("@method";req)`, &Message{Status: 200}},
		{"req on status", `("@status";req)`, response},
		{"method of a response", `("@method")`, response},
		{"status of two digits", `("@status")`, &Message{Status: 42}},
		{"no method", `("@method")`, &Message{RawTarget: "/"}},
		{"method that is no token", `("@method")`, &Message{Method: "GET /x", RawTarget: "/"}},
		{"no target", `("@path")`, with(func(m *Message) { m.RawTarget = "" })},
		{"target with a space", `("@path")`, with(func(m *Message) { m.RawTarget = "/a b" })},
		{"target with a line break", `("@path")`, with(func(m *Message) { m.RawTarget = "/a\n\"@query\": ?" })},
		{"target with a fragment", `("@path")`, with(func(m *Message) { m.RawTarget = "/a#b" })},
		{"target beyond ASCII", `("@path")`, with(func(m *Message) { m.RawTarget = "/\xc3\xa9" })},
		{"relative target", `("@path")`, with(func(m *Message) { m.RawTarget = "a/b" })},
		{"scheme that is none", `("@path")`, with(func(m *Message) { m.RawTarget = "1x://h/a" })},
		{"path of asterisk form", `("@path")`, with(func(m *Message) { m.RawTarget = "*" })},
		{"query of asterisk form", `("@query")`, with(func(m *Message) { m.RawTarget = "*" })},
		{"query parameter of asterisk form", `("@query-param";name="a")`, with(func(m *Message) { m.RawTarget = "*" })},
		{"path of CONNECT", `("@path")`, with(func(m *Message) { m.Method, m.RawTarget = "CONNECT", "h:1" })},
		{"no scheme", `("@scheme")`, with(func(m *Message) { m.Scheme = "" })},
		{"no scheme in the URI", `("@target-uri")`, with(func(m *Message) { m.Scheme = "" })},
		{"no authority", `("@authority")`, with(func(m *Message) { m.Authority = "" })},
		{"no authority in the URI", `("@target-uri")`, with(func(m *Message) { m.Authority = "" })},
		{"user in the authority", `("@authority")`, with(func(m *Message) { m.RawTarget = "http://u:p@h/" })},
		{"line break in the authority", `("@authority")`, with(func(m *Message) { m.Authority = "h\nx" })},
		{"more components than anyone needs", "(" + strings.Repeat(`"x" `, maxComponents) + `"y")`, get},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := baseOf(t, tt.m, tt.list); err == nil {
				t.Errorf("no error, and the base is %q", got)
			}
		})
	}
}

// An Input made by hand can break out of its line no more than one received.
func TestBaseRefusesInput(t *testing.T) {
	for name, in := range map[string]Input{
		"line break in nonce":  {Nonce: "a\nb"},
		"keyid beyond ASCII":   {KeyID: "é"},
		"created beyond range": {Created: maxInteger + 1},
		"expires beyond range": {Expires: -maxInteger - 1},
		"component twice":      {Components: append(MustComponents(`("@path")`), MustComponents(`("@path")`)...)},
	} {
		if _, err := in.AppendBase(nil, request("GET", "/")); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
