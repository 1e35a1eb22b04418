package httpsig

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
)

// hostileMessages are the requests under testdata/hostile: seeds for fuzzing.
func hostileMessages(f *testing.F) []*Message {
	files, err := filepath.Glob("testdata/hostile/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	var ms []*Message
	for _, file := range files {
		ms = append(ms, readHostile(f, file).m)
	}
	return ms
}

// Nothing but what was signed is ever accepted: the fuzzer has no key, so an
// accepted message must say, part by part, what the one signed message says.
func FuzzVerify(f *testing.F) {
	m := signed(f, nil)
	add := func(m *Message) {
		f.Add(m.Method, m.RawTarget, strings.Join(m.Header[headerInput], "\n"), strings.Join(m.Header[headerSignature], "\n"),
			strings.Join(m.Header[headerDigest], "\n"), []byte(heartbeatBody))
	}
	add(m)
	for _, h := range hostileMessages(f) {
		// With the good signature in place of theirs: theirs are signed too.
		h.Header[headerSignature] = m.Header[headerSignature]
		add(h)
	}
	good := m.Header[headerInput][0]
	f.Fuzz(func(t *testing.T, method, target, input, sig, digest string, body []byte) {
		m := &Message{Method: method, RawTarget: target, Header: map[string][]string{
			headerInput: strings.Split(input, "\n"), headerSignature: strings.Split(sig, "\n"), headerDigest: strings.Split(digest, "\n"),
		}}
		got, err := testPolicy(testNow).Verify(m, body, oneKey)
		if err != nil {
			return
		}
		path := strings.TrimPrefix(strings.TrimSuffix(target, "?"), "/")
		if i := strings.Index(path, "://"); i >= 0 {
			_, path, _ = strings.Cut(path[i+3:], "/")
		}
		in, _, _, err := lookup(m, Runner.Label)
		if method != "POST" || path != "v1/hosts/heartbeat" || !bytes.Equal(body, []byte(heartbeatBody)) ||
			err != nil || Runner.Label+"="+in.String() != good || got.Nonce != "n-1" {
			t.Errorf("accepted %q %q %q %q %q %q", method, target, input, sig, digest, body)
		}
	})
}

// What the strict parser takes has one reading: it survives being written and
// read again, and a repeated key or parameter always fails.
func FuzzDictionary(f *testing.F) {
	for _, m := range hostileMessages(f) {
		for _, lines := range m.Header {
			f.Add(strings.Join(lines, ", "))
		}
	}
	f.Add(`a=%"x\",b=tok:en/x;p=1.5;q=?0, c=(:AQID:;x "y" @12);z`)
	f.Fuzz(func(t *testing.T, text string) {
		dict, err := parseDictionary([]string{text})
		if err != nil || len(dict.Names()) == 0 {
			return
		}
		written, err := httpsfv.Marshal(dict)
		if err != nil {
			t.Fatalf("%q is read and cannot be written: %v", text, err)
		}
		again, err := parseDictionary([]string{written})
		if err != nil {
			t.Fatalf("%q is read, and %q is not: %v", text, written, err)
		}
		if twice, _ := httpsfv.Marshal(again); twice != written {
			t.Errorf("%q, then %q, then %q", text, written, twice)
		}
		if len(written) > maxField/2 {
			return
		}
		for _, more := range []string{", " + dict.Names()[0], ", zz9;p;p", ", zz9, zz9", ", zz9=:AB==:"} {
			if _, err := parseDictionary([]string{written + more}); err == nil {
				t.Errorf("%q is taken", written+more)
			}
		}
	})
}

// A base is one line a component, whatever the message holds.
func FuzzBase(f *testing.F) {
	f.Add(`("@method" "@target-uri" "@authority" "@scheme" "@request-target" "@path" "@query")`, "GET", "/a?b", "https", "h:443", "1")
	f.Add(`("@query-param";name="a%20b" "x" "x";bs "x";sf "x";key="a")`, "POST", "http://u@h?a+b=%zz", "", "", "a=(1 2);b, c")
	f.Add(`("x";tr "host")`, "CONNECT", "h:1", "http", "[::1]:80", "a\r\n b\nc")
	f.Fuzz(func(t *testing.T, list, method, target, scheme, authority, value string) {
		cs, err := ParseComponents(list)
		if err != nil {
			return
		}
		fields := map[string][]string{"X": {value, value}}
		m := &Message{Method: method, RawTarget: target, Scheme: scheme, Authority: authority,
			Header: fields, Trailer: fields, Fields: map[string]FieldType{"x": ListField}}
		in := Input{Components: cs, Created: 1}
		base, err := in.AppendBase(nil, m)
		if err != nil {
			return
		}
		lines := strings.Split(string(base), "\n")
		if len(lines) != len(cs)+1 || lines[len(cs)] != `"@signature-params": `+in.String() {
			t.Fatalf("%q", base)
		}
		for i, c := range cs {
			if !strings.HasPrefix(lines[i], c.String()+": ") {
				t.Errorf("line %q is not of %s", lines[i], c)
			}
		}
		if again, err := ParseComponents(strings.TrimSuffix(in.String(), ";created=1")); err != nil || len(again) != len(cs) {
			t.Errorf("%s is written and not read: %v", in, err)
		}
	})
}

// No text makes the key parser panic or take two texts for one key.
func FuzzPublicKey(f *testing.F) {
	f.Add(rfcPublic)
	f.Add("")
	f.Add(rfcPublic[:43] + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		key, err := ParsePublicKey(text)
		if err == nil && strictBase64.EncodeToString(key) != text {
			t.Errorf("%q is taken for %x", text, key)
		}
	})
}
