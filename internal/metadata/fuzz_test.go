package metadata

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Whatever the path, nothing but the tree comes out, and nothing without a token.
func FuzzPath(f *testing.F) {
	for _, p := range []string{"/", "/latest/", "/latest/user-data", "/latest/meta-data/tags/instance/a%2Fb", "//", "/../", "/latest/api/token", "/%00"} {
		f.Add(p)
	}
	i := sample()
	srv, err := New(Config{Provider: &instances{by: map[PortKey]*Instance{port1: i}}, TokenKey: tokenKey})
	if err != nil {
		f.Fatal(err)
	}
	c := &caller{key: port1}
	tree := render(i, nil, "x")
	f.Fuzz(func(t *testing.T, path string) {
		r := &http.Request{Method: "GET", Header: http.Header{}}
		if r.URL, err = r.URL.Parse("http://x/"); err != nil {
			t.Fatal(err)
		}
		r.URL.Path = path
		w := httptest.NewRecorder()
		if srv.authorized(w, r, i) || w.Code != 401 {
			t.Fatalf("%q without a token: %d", path, w.Code)
		}
		w = httptest.NewRecorder()
		srv.read(w, path, c, i)
		version, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		_, exists := tree.text[rest]
		exists = exists && isVersion[version] || path == "/" || path == ""
		if exists != (w.Code == 200) {
			t.Fatalf("%q: %d, exists %v", path, w.Code, exists)
		}
	})
}

// Nothing but what issue made is valid: not one byte of it may change, and for no other instance.
func FuzzToken(f *testing.F) {
	tk, err := newTokens(tokenKey)
	if err != nil {
		f.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	good := tk.issue("i-000000001", time.Hour, now)
	f.Add(0, "A", "i-000000001")
	f.Add(63, "\n", "i-000000001")
	f.Add(64, "=", "i-000000001")
	f.Add(0, "", "")
	f.Fuzz(func(t *testing.T, at int, with, instance string) {
		at = min(max(at, 0), len(good))
		token := good[:at] + with + good[min(at+len(with), len(good)):]
		if tk.valid(token, instance, now) != (token == good && instance == "i-000000001") {
			t.Fatalf("%q of %q", token, instance)
		}
		_ = tk.valid(with, instance, now)
	})
}

func FuzzTTL(f *testing.F) {
	for _, s := range []string{"", "1", "0", "21600", "21601", "+1", "1 ", "００1", "0x1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, ok := parseTTL(s)
		if ok && (n < 1 || n > 21600 || strings.Trim(s, "0123456789") != "") {
			t.Fatalf("%q is %d", s, n)
		}
	})
}

// The handler alone, without connections.
func BenchmarkHandler(b *testing.B) {
	srv, err := New(Config{
		Provider: &instances{by: map[PortKey]*Instance{port1: sample()}}, TokenKey: tokenKey,
		Limits: Limits{Rate: 1 << 29, Burst: 1 << 29},
	})
	if err != nil {
		b.Fatal(err)
	}
	i, _ := srv.config.Provider.Instance(PortKey{"subnet-a", netip.MustParseAddr("127.0.0.1")})
	r := httptest.NewRequest("GET", "/latest/meta-data/instance-id", nil)
	r.Header[tokenHeader] = []string{srv.tokens.issue(i.ID, time.Hour, time.Now())}
	c := &caller{key: port1}
	w := discard{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		if !srv.authorized(w, r, i) {
			b.Fatal("refused")
		}
		srv.read(w, r.URL.Path, c, i)
	}
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header               { return d.h }
func (d discard) Write(b []byte) (int, error)       { return len(b), nil }
func (d discard) WriteString(s string) (int, error) { return len(s), nil }
func (d discard) WriteHeader(int)                   {}
