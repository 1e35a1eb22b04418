package server_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/limit"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// resign signs what edit made of a request, as another signer would.
func (e *gw) resign(k key, body []byte, change func(*httpsig.Signer, *http.Request)) func(*http.Request) {
	return func(r *http.Request) {
		s := httpsig.Signer{Profile: httpsig.Runner, Key: k.signer, KeyID: k.id, Now: e.clock.now}
		change(&s, r)
		if err := s.SignRequest(r, body); err != nil {
			e.t.Fatal(err)
		}
	}
}

// TestSignatureRefusals is one row per way of being wrong, with the exact code.
//
// contract: R-20 R-21 R-22 R-23
// lesson 33
// lesson 34
func TestSignatureRefusals(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	k := e.newRunner(app, "h")
	other := e.newRunner(app, "h")
	body := []byte(`{"host":"h","cliVersion":"1","pollSeconds":30,"slotsUsed":0,"slotsTotal":1}`)
	set := func(name string, f func(string) string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, f(r.Header.Get(name))) }
	}
	replace := func(name, from, to string) func(*http.Request) {
		return set(name, func(v string) string {
			if !strings.Contains(v, from) {
				t.Fatalf("%s: %s has no %q", name, v, from)
			}
			return strings.Replace(v, from, to, 1)
		})
	}
	components := func(text string) func(*http.Request) {
		return e.resign(k, body, func(s *httpsig.Signer, _ *http.Request) { s.Components = httpsig.MustComponents(text) })
	}
	const required, invalid, stale = "runner_key_signature_required", "runner_key_signature_invalid", "runner_key_signature_stale"
	for name, c := range map[string]struct {
		code string
		edit func(*http.Request)
	}{
		"no headers": {required, func(r *http.Request) {
			r.Header.Del("Signature")
			r.Header.Del("Signature-Input")
			r.Header.Del("Content-Digest")
		}},
		"digest alone":     {required, func(r *http.Request) { r.Header.Del("Signature"); r.Header.Del("Signature-Input") }},
		"input alone":      {invalid, func(r *http.Request) { r.Header.Del("Signature") }},
		"signature alone":  {invalid, func(r *http.Request) { r.Header.Del("Signature-Input") }},
		"no digest":        {invalid, func(r *http.Request) { r.Header.Del("Content-Digest") }},
		"other label":      {invalid, e.resign(k, body, func(s *httpsig.Signer, _ *http.Request) { s.Label = "sig1" })},
		"second signature": {invalid, func(r *http.Request) { r.Header.Add("Signature", "sig1=:AAAA:") }},
		"second input":     {invalid, func(r *http.Request) { r.Header.Add("Signature-Input", `sig1=("@method");created=1`) }},
		"other body": {invalid, func(r *http.Request) {
			*r = *e.build(heartbeat(key{}, strings.Replace(string(body), `"1"`, `"2"`, 1)), e.url).WithContext(r.Context())
			r.Header = e.build(heartbeat(k, string(body)), e.url).Header
		}},
		"digest of other":  {invalid, set("Content-Digest", func(string) string { return httpsig.ContentDigest(httpsig.SHA256, []byte("x")) })},
		"digest sha-512":   {invalid, e.resign(k, body, func(_ *httpsig.Signer, r *http.Request) {})},
		"other key":        {invalid, e.resign(k, body, func(s *httpsig.Signer, _ *http.Request) { s.Key = other.signer })},
		"other keyid":      {invalid, e.resign(k, body, func(s *httpsig.Signer, _ *http.Request) { s.KeyID = other.id })},
		"other key and id": {invalid, e.resign(k, body, func(s *httpsig.Signer, _ *http.Request) { s.Key, s.KeyID = other.signer, other.id })},
		"other method": {invalid, func(r *http.Request) {
			e.resign(k, body, func(_ *httpsig.Signer, r *http.Request) { r.Method = "PUT" })(r)
			r.Method = "POST"
		}},
		"other path": {invalid, func(r *http.Request) {
			e.resign(k, body, func(_ *httpsig.Signer, r *http.Request) { r.URL.Path = "/v1/hosts/x" })(r)
			r.URL.Path = "/v1/hosts/heartbeat"
		}},
		"query unsigned":   {invalid, func(r *http.Request) { r.URL.RawQuery = "a=b" }},
		"fewer components": {invalid, components(`("@method" "@path" "content-digest")`)},
		"more components":  {invalid, components(`("@method" "@path" "@query" "content-digest" "authorization")`)},
		"other order":      {invalid, components(`("@path" "@method" "@query" "content-digest")`)},
		"no nonce": {invalid, set("Signature-Input", func(v string) string {
			a, b, _ := strings.Cut(v, ";nonce=")
			_, b, _ = strings.Cut(b, ";")
			return a + ";" + b
		})},
		"no created": {invalid, set("Signature-Input", func(v string) string {
			a, b, _ := strings.Cut(v, ";created=")
			_, b, _ = strings.Cut(b, ";")
			return a + ";" + b
		})},
		"no alg":            {invalid, replace("Signature-Input", `;alg="ed25519"`, "")},
		"other alg":         {invalid, replace("Signature-Input", `;alg="ed25519"`, `;alg="hmac-sha256"`)},
		"unknown parameter": {invalid, replace("Signature-Input", `;alg=`, `;x=1;alg=`)},
		"not base64":        {invalid, set("Signature", func(string) string { return "runner=:!!!:" })},
		"short signature":   {invalid, set("Signature", func(string) string { return "runner=:AAAA:" })},
		"flipped bit":       {invalid, set("Signature", func(v string) string { return strings.Replace(v, v[12:13], string(v[12]^1), 1) })},
		"invalid and stale": {invalid, e.resign(k, body, func(s *httpsig.Signer, _ *http.Request) {
			s.Key = other.signer
			s.Now = func() time.Time { return e.clock.now().Add(-time.Hour) }
		})},
		"too old": {stale, e.resign(k, body, func(s *httpsig.Signer, _ *http.Request) {
			s.Now = func() time.Time { return e.clock.now().Add(-5*time.Minute - time.Second) }
		})},
		"from the future": {stale, e.resign(k, body, func(s *httpsig.Signer, _ *http.Request) {
			s.Now = func() time.Time { return e.clock.now().Add(5*time.Minute + time.Second) }
		})},
		"just not too old": {"", e.resign(k, body, func(s *httpsig.Signer, _ *http.Request) {
			s.Now = func() time.Time { return e.clock.now().Add(-5 * time.Minute) }
		})},
		"just not too early": {"", e.resign(k, body, func(s *httpsig.Signer, _ *http.Request) {
			s.Now = func() time.Time { return e.clock.now().Add(5 * time.Minute) }
		})},
		"as it should be": {"", func(*http.Request) {}},
	} {
		t.Run(name, func(t *testing.T) {
			r := heartbeat(k, string(body))
			r.edit = c.edit
			if name == "digest sha-512" {
				r.edit = func(r *http.Request) {
					r.Header.Set("Content-Digest", httpsig.ContentDigest(httpsig.SHA512, body))
				}
			}
			a := e.do(r)
			if c.code == "" && a.status != 200 || c.code != "" && (a.status != 401 || a.code() != c.code) {
				t.Errorf("%s; want %q", &a, c.code)
			}
			if a.status == 401 && a.header.Get("WWW-Authenticate") == "" {
				t.Error("401 without WWW-Authenticate")
			}
		})
	}
}

// TestPlainKeyNeedsNoSignature, and what it carries is not looked at.
//
// contract: R-20
func TestPlainKeyNeedsNoSignature(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newKey(e.newApp("a"), "hosts.ingest")
	r := heartbeat(k, beat("h"))
	r.header = http.Header{"Signature": {"runner=:AAAA:"}, "Signature-Input": {"garbage("}}
	get[api.HeartbeatHost](e, 200, r)
}

// TestHostKeyBelongsToOneHost: the body is checked first, then whose it is.
//
// contract: R-20 E-07
// lesson 7
func TestHostKeyBelongsToOneHost(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	k := e.newRunner(app, "h")
	e.refused(403, "forbidden", heartbeat(k, beat("other")))
	e.refused(400, "invalid_request_body", heartbeat(k, beat("other", "pollSeconds", 0)))
	get[api.HeartbeatHost](e, 200, heartbeat(k, beat("h")))
	if n := len(get[[]api.RunnerHost](e, 200, request{method: "GET", path: "/v1/hosts", key: e.as(app)})); n != 1 {
		t.Errorf("%d hosts, want 1", n)
	}
}

// TestStaleTellsTheSkew: a host with a wrong clock learns by how much.
//
// contract: R-23
// lesson 5
func TestStaleTellsTheSkew(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newRunner(e.newApp("a"), "h")
	r := heartbeat(k, beat("h"))
	r.created = -time.Hour
	a := e.refused(401, "runner_key_signature_stale", r)
	if a.details()["skewSeconds"] != -3600.0 || a.details()["serverTime"] != "2026-03-01T12:00:00Z" {
		t.Errorf("details %v", a.details())
	}
}

// TestSignedReads: the empty body and the empty query are signed too, and any
// operation takes a runner key.
//
// contract: R-21 R-22
func TestSignedReads(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newRunner(e.newApp("a"), "a/b ü")
	get[api.HeartbeatHost](e, 200, heartbeat(k, beat("a/b ü")))
	for _, path := range []string{"/v1/hosts", "/v1/hosts?", "/v1/hosts?limit=1&status=ok", "/v1/hosts?after=%C3%BC%20x", "/v1/hosts/a%2Fb%20%C3%BC", "/v1/hosts/%61%2fb%20%c3%bc"} {
		r := request{method: "GET", path: path, key: k, nonce: "n " + path}
		if a := e.do(r); a.status != 200 {
			t.Errorf("%s: %s", path, &a)
		}
		e.refused(401, "runner_key_signature_replayed", r)
	}
}

// TestTargetAsReceived: what was signed is the request line, not what is made of
// it.
//
// contract: R-21
// lesson 33
func TestTargetAsReceived(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newRunner(e.newApp("a"), "h")
	get[api.HeartbeatHost](e, 200, heartbeat(k, beat("h")))
	for _, c := range []struct {
		sent, signed string
		want         int
	}{
		{"/v1/hosts/%68", "/v1/hosts/%68", 200}, {"/v1/hosts/%68", "/v1/hosts/h", 401}, {"/v1/hosts/h", "/v1/hosts/%68", 401},
		{"/v1/hosts/h?", "/v1/hosts/h", 200}, // both have an empty query
		{"/v1/hosts/h?x", "/v1/hosts/h", 401}, {"http://example.test/v1/hosts/h", "/v1/hosts/h", 200},
	} {
		m := &httpsig.Message{Method: "GET", RawTarget: c.signed, Header: map[string][]string{}}
		s := httpsig.Signer{Profile: httpsig.Runner, Key: k.signer, KeyID: k.id, Now: e.clock.now}
		if err := s.Sign(m, nil); err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nX-Outerlayer-App-Id: %s\r\n", c.sent, k.secret, k.app)
		for name, v := range m.Header {
			fmt.Fprintf(conn, "%s: %s\r\n", name, v[0])
		}
		fmt.Fprint(conn, "\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != c.want {
			t.Errorf("sent %s, signed %s: %v %v; want %d", c.sent, c.signed, resp, err, c.want)
		}
		conn.Close()
	}
}

// replayCases is how a nonce comes to be taken or not; each ends with what a
// further request with the nonce gets.
//
// contract: R-24
// lesson 35
func TestNonces(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	k := e.newRunner(app, "h", "hosts.ingest", "hosts.read")
	weak := e.newRunner(app, "w", "hosts.read")
	with := func(nonce string, change func(*request)) request {
		r := heartbeat(k, beat("h"))
		r.nonce = nonce
		if change != nil {
			change(&r)
		}
		return r
	}
	const replayed = "runner_key_signature_replayed"

	get[api.HeartbeatHost](e, 200, with("n1", nil))
	e.refused(401, replayed, with("n1", nil))
	e.refused(401, replayed, with("n1", func(r *request) { r.created = 10 * time.Second })) // another signature, the same nonce

	// Refused requests burn nothing, whatever refused them.
	e.refused(401, "runner_key_signature_stale", with("n2", func(r *request) { r.created = -time.Hour }))
	e.refused(401, "runner_key_signature_invalid", with("n2", func(r *request) { r.edit = func(q *http.Request) { q.Header.Set("Content-Digest", "sha-256=:AAAA:") } }))
	e.refused(400, "invalid_request_body", with("n2", func(r *request) { r.body = "{}" }))
	e.refused(403, "forbidden", with("n2", func(r *request) { r.body = beat("other") }))
	get[api.HeartbeatHost](e, 200, with("n2", nil))
	e.refused(403, "forbidden", request{method: "POST", path: "/v1/hosts/heartbeat", key: weak, body: beat("w"), nonce: "n2"})
	e.refused(404, "not_found", request{method: "GET", path: "/v1/hosts/none", key: k, nonce: "n3"})
	get[api.HostDetail](e, 200, request{method: "GET", path: "/v1/hosts/h", key: k, nonce: "n3"})

	// A replay comes before permission and body (contract E-07).
	e.refused(401, replayed, with("n2", func(r *request) { r.body = "{}" }))
	e.refused(401, replayed, with("n2", func(r *request) { r.body = beat("other") }))
	e.refused(401, replayed, request{method: "DELETE", path: "/v1/hosts/h", key: k, nonce: "n3"})

	// A nonce is its key's own.
	get[[]api.RunnerHost](e, 200, request{method: "GET", path: "/v1/hosts", key: weak, nonce: "n1"})
	// Stale comes before replayed.
	e.clock.step(5*time.Minute + time.Second)
	e.refused(401, "runner_key_signature_stale", with("n1", func(r *request) { r.created = -5*time.Minute - time.Second }))
	get[api.HeartbeatHost](e, 200, with("n1", nil)) // five minutes after its acceptance it is free again
}

// TestNonceIsKeptWhileCreatedCouldPass: one that was signed ahead of our clock is
// kept for longer than five minutes, to the second.
//
// contract: R-24
// lesson 35
func TestNonceIsKeptWhileCreatedCouldPass(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newRunner(e.newApp("a"), "h")
	at := e.clock.now().Add(5 * time.Minute) // the latest created that passes
	r := heartbeat(k, beat("h"))
	r.nonce, r.created = "n", 5*time.Minute
	get[api.HeartbeatHost](e, 200, r)
	for _, step := range []time.Duration{5 * time.Minute, 4*time.Minute + 59*time.Second, time.Second} {
		e.clock.step(step)
		r.created = at.Sub(e.clock.now())
		if err := e.gateway.ForgetNonces(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.refused(401, "runner_key_signature_replayed", r)
	}
	e.clock.step(time.Second)
	r.created = at.Sub(e.clock.now())
	e.refused(401, "runner_key_signature_stale", r)
	r.created = 0
	get[api.HeartbeatHost](e, 200, r)
}

// TestReplayAcrossServers: two servers on one database, a restart, and many at
// once: exactly one is let through.
//
// contract: R-24
// lesson 35
func TestReplayAcrossServers(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		dir, clk := t.TempDir(), newClock()
		one, two := newGateway(t, o, dir, clk, nil), newGateway(t, o, dir, clk, nil)
		k := one.newRunner(one.newApp("a"), "h")
		r := heartbeat(k, beat("h"))
		r.nonce = "n"
		get[api.HeartbeatHost](one, 200, r)
		two.refused(401, "runner_key_signature_replayed", r)
		three := newGateway(t, o, dir, clk, nil) // as after a restart
		three.refused(401, "runner_key_signature_replayed", r)

		for round := range 5 {
			r.nonce = fmt.Sprint("at once ", round)
			var mu sync.Mutex
			var wg sync.WaitGroup
			got := map[string]int{}
			for i := range 24 {
				e := []*gw{one, two, three}[i%3]
				wg.Go(func() {
					a := e.do(r)
					mu.Lock()
					defer mu.Unlock()
					got[fmt.Sprint(a.status, a.code())]++
				})
			}
			wg.Wait()
			if got["200"] != 1 || got["401runner_key_signature_replayed"] != 23 {
				t.Fatalf("round %d: %v", round, got)
			}
		}
	})
}

// TestReplayCostsNoRate: whoever replays what was overheard must not use up the
// host's own rate.
//
// contract: E-07 R-24
func TestReplayCostsNoRate(t *testing.T) {
	e := sqliteGateway(t, func(o *gateway.Options) { o.Rate = limit.Rate{Burst: 3, PerSecond: 0.001} })
	k := e.newRunner(e.newApp("a"), "h")
	r := heartbeat(k, beat("h"))
	r.nonce = "n"
	get[api.HeartbeatHost](e, 200, r)
	for range 10 {
		e.refused(401, "runner_key_signature_replayed", r)
	}
	get[api.HeartbeatHost](e, 200, heartbeat(k, beat("h")))
	get[api.HeartbeatHost](e, 200, heartbeat(k, beat("h")))
	e.refused(429, "rate_limited", heartbeat(k, beat("h")))
	e.refused(401, "runner_key_signature_replayed", r) // still the first of the refusals
}

// TestOversizedBody: the bound comes before anything is computed, the key before
// the bound.
//
// contract: E-07
func TestOversizedBody(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	k := e.newKey(app, "hosts.ingest")
	exact := append([]byte(`{"host":"h","cliVersion":"1","pollSeconds":30,"slotsUsed":0,"slotsTotal":1}`), bytes.Repeat([]byte(" "), 1<<20)...)[:1<<20]
	get[api.HeartbeatHost](e, 200, request{method: "POST", path: "/v1/hosts/heartbeat", key: k, body: exact})
	e.refused(413, "request_body_too_large", request{method: "POST", path: "/v1/hosts/heartbeat", key: k, body: append(exact, ' ')})
	e.refused(413, "request_body_too_large", request{method: "POST", path: "/v1/hosts/heartbeat", key: e.newRunner(app, "h"), body: append(exact, ' '), unsigned: true})
	e.refused(401, "unauthorized", request{method: "POST", path: "/v1/hosts/heartbeat", key: key{app: app, secret: "sk_outerlayer_x"}, body: append(exact, ' ')})
	chunked := request{method: "POST", path: "/v1/hosts/heartbeat", key: k, body: append(exact, ' '), edit: func(r *http.Request) { r.ContentLength = -1 }}
	e.refused(413, "request_body_too_large", chunked)
	chunked.body = exact
	get[api.HeartbeatHost](e, 200, chunked)
}
