package httpsig

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A request that a client signs verifies on a server of net/http, whatever the
// path looks like once it is decoded.
//
// lesson 33
func TestOverTheWire(t *testing.T) {
	verified := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = testPolicy(testNow).Verify(FromRequest(r), body, oneKey)
		}
		verified <- err
	}))
	defer server.Close()
	signer := &Signer{Profile: Runner, Key: testKey, KeyID: "key-1", Now: clock(testNow)}
	for _, target := range []string{
		"", "/", "/v1/hosts/heartbeat", "/p?", "/p?a=b&c=%2F+d", "/a%2Fb", "/a//b/../c", "//host/x", "/%7Euser/%e4", "/a;b=c?d?e", "/ä?o",
	} {
		t.Run(target, func(t *testing.T) {
			r, err := http.NewRequest("POST", server.URL+target, strings.NewReader(heartbeatBody))
			if err != nil {
				t.Fatal(err)
			}
			if err := signer.SignRequest(r, []byte(heartbeatBody)); err != nil {
				t.Fatal(err)
			}
			// Straight to the transport: a client may follow redirects.
			answer, err := server.Client().Transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if err := <-verified; err != nil {
				t.Error(err)
			}
		})
	}
}

// On a server every part is what stood on the wire.
func TestFromServerRequest(t *testing.T) {
	for _, tt := range []struct {
		raw  string
		list string
		want string
	}{
		{"GET /a%2Fb?x=%20 HTTP/1.1\r\nHost: H.example:80\r\n\r\n", `("@path" "@query" "@authority" "@scheme" "host")`,
			"\"@path\": /a%2Fb\n\"@query\": ?x=%20\n\"@authority\": h.example\n\"@scheme\": http\n\"host\": H.example:80"},
		{"GET http://abs.example/p HTTP/1.1\r\nHost: other.example\r\n\r\n", `("@authority" "@path" "@target-uri")`,
			"\"@authority\": abs.example\n\"@path\": /p\n\"@target-uri\": http://abs.example/p"},
		{"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", `("@request-target" "@target-uri")`,
			"\"@request-target\": *\n\"@target-uri\": http://h"},
		{"CONNECT db.example:5432 HTTP/1.1\r\nHost: h\r\n\r\n", `("@request-target" "@authority")`,
			"\"@request-target\": db.example:5432\n\"@authority\": db.example:5432"},
		{"GET / HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nX-A:  2 \r\nX-B: a\r\n b\r\n\r\n", `("x-a" "x-b")`,
			"\"x-a\": 1, 2\n\"x-b\": a b"},
	} {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(tt.raw)))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := baseOf(t, FromRequest(r), tt.list); err != nil || got != tt.want {
			t.Errorf("%q: got %v\n%s\nwant\n%s", tt.raw, err, got, tt.want)
		}
	}
}

// On a client every part is what net/http is going to write.
func TestFromClientRequest(t *testing.T) {
	for _, tt := range []struct{ method, url string }{
		{"", "https://h.example"},
		{"GET", "https://h.example/a%2Fb?"},
		{"POST", "http://H.example:8080//x?y#fragment"},
		{"CONNECT", "http://h.example:443"},
		{"OPTIONS", "http://h.example"},
	} {
		r, err := http.NewRequest(tt.method, tt.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Method = tt.method
		m := FromRequest(r)
		var wire bytes.Buffer
		if err := r.Write(&wire); err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(wire.String(), " HTTP/1.1\r\n")
		if got := m.Method + " " + m.RawTarget; got != line {
			t.Errorf("%s %s: got %q, and %q is sent", tt.method, tt.url, got, line)
		}
		if !strings.Contains(wire.String(), "Host: "+m.Authority+"\r\n") {
			t.Errorf("%s %s: authority %q is not what is sent", tt.method, tt.url, m.Authority)
		}
	}
}

// SignRequest leaves the body to be sent, and makes a header where there is none.
func TestSignRequest(t *testing.T) {
	r := httptest.NewRequest("POST", "/p", strings.NewReader("body"))
	r.Header = nil
	signer := &Signer{Profile: Runner, Key: testKey, KeyID: "key-1", Now: clock(testNow)}
	if err := signer.SignRequest(r, []byte("body")); err != nil {
		t.Fatal(err)
	}
	if left, _ := io.ReadAll(r.Body); string(left) != "body" {
		t.Errorf("the body left is %q", left)
	}
	if _, err := testPolicy(testNow).Verify(FromRequest(r), []byte("body"), oneKey); err != nil {
		t.Error(err)
	}
}
