package server_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/server"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// clock is a clock that stands until it is moved.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	if c == nil {
		return time.Now() // the virtual time of a bubble
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// gw is one server with its gateway, and how a test speaks to it.
type gw struct {
	t        testing.TB
	clock    *clock
	db       *store.DB
	control  *control.Control
	gateway  *gateway.Gateway
	handler  http.Handler
	openAPI  *huma.OpenAPI
	url      string // of the real HTTP server
	operator string
}

// newGateway starts a server on a database; change may alter the options.
func newGateway(t testing.TB, o store.Options, dir string, clk *clock, change func(*gateway.Options)) *gw {
	t.Helper()
	e := newGatewayHandler(t, o, dir, clk, change)
	srv := httptest.NewServer(e.handler)
	t.Cleanup(srv.Close)
	e.url = srv.URL
	return e
}

// newGatewayHandler is newGateway without a network, for virtual time.
func newGatewayHandler(t testing.TB, o store.Options, dir string, clk *clock, change func(*gateway.Options)) *gw {
	t.Helper()
	o.Now = clk.now
	e := &gw{t: t, clock: clk, db: storetest.Open(t, o)}
	var err error
	if e.control, err = control.New(control.Options{DB: e.db, Dir: dir, Now: clk.now}); err != nil {
		t.Fatal(err)
	}
	options := gateway.Options{DB: e.db, Dir: dir, Now: clk.now, Tokens: e.control.Authenticate, Version: "1.2.3"}
	if change != nil {
		change(&options)
	}
	if e.gateway, err = gateway.New(options); err != nil {
		t.Fatal(err)
	}
	s := server.New(e.control, discard, "1.2.3")
	s.AddGateway(e.gateway)
	e.handler, e.openAPI = s.Handler(), s.OpenAPI()
	tok, err := e.control.CreateToken(context.Background(), iam.System, api.CreateToken{Role: string(iam.Operator)})
	if err != nil {
		t.Fatal(err)
	}
	e.operator = tok.Secret
	return e
}

// sqliteGateway is a gateway on an empty embedded database.
func sqliteGateway(t testing.TB, change func(*gateway.Options)) *gw {
	t.Helper()
	dir := t.TempDir()
	return newGateway(t, store.Options{Dir: dir}, dir, newClock(), change)
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a *answer) code() string {
	var e api.GatewayError
	_ = json.Unmarshal(a.body, &e)
	return e.Error.Code
}

func (a *answer) message() string {
	var e api.GatewayError
	_ = json.Unmarshal(a.body, &e)
	return e.Error.Message
}

// details is the object of problems, or nil.
func (a *answer) details() map[string]any {
	var e struct {
		Error struct{ Details map[string]any }
	}
	_ = json.Unmarshal(a.body, &e)
	return e.Error.Details
}

func (a *answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// key is a credential: whose app, which secret, and the host's key of a runner
// key.
type key struct {
	id, app, secret, host string
	signer                ed25519.PrivateKey
}

// request is one request of a test; edit may spoil it after it was signed.
type request struct {
	method, path string
	body         any // a string is sent as it is
	key          key
	header       http.Header
	unsigned     bool
	nonce        string
	created      time.Duration // off the clock
	edit         func(*http.Request)
}

// encoded is the body's bytes.
func (r *request) encoded(t testing.TB) []byte {
	switch b := r.body.(type) {
	case nil:
		return nil
	case string:
		return []byte(b)
	case []byte:
		return b
	}
	b, err := json.Marshal(r.body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// build makes the request for the server at url.
func (e *gw) build(r request, url string) *http.Request {
	e.t.Helper()
	body := r.encoded(e.t)
	req, err := http.NewRequest(r.method, url+r.path, bytes.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	if r.key.app != "" {
		req.Header.Set("X-Outerlayer-App-Id", r.key.app)
	}
	if r.key.secret != "" {
		req.Header.Set("Authorization", "Bearer "+r.key.secret)
	}
	for name, v := range r.header {
		req.Header[name] = v
	}
	if r.key.signer != nil && !r.unsigned {
		s := httpsig.Signer{Profile: httpsig.Runner, Key: r.key.signer, KeyID: r.key.id, Now: func() time.Time { return e.clock.now().Add(r.created) }}
		if r.nonce != "" {
			s.Nonce = func() string { return r.nonce }
		}
		if err := s.SignRequest(req, body); err != nil {
			e.t.Fatal(err)
		}
	}
	if r.edit != nil {
		r.edit(req)
	}
	return req
}

// do sends a request, over the network where there is one.
func (e *gw) do(r request) answer {
	e.t.Helper()
	if e.url == "" {
		q, w := e.build(r, "http://gateway"), httptest.NewRecorder()
		q.RequestURI, q.RemoteAddr = q.URL.RequestURI(), "192.0.2.1:1234"
		e.handler.ServeHTTP(w, q)
		return answer{w.Code, w.Header(), w.Body.Bytes()}
	}
	resp, err := http.DefaultClient.Do(e.build(r, e.url))
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, b}
}

// get decodes the data of an answer that must have the status.
func get[T any](e *gw, status int, r request) T {
	e.t.Helper()
	a := e.do(r)
	var out struct{ Data T }
	if err := json.Unmarshal(a.body, &out); err != nil || a.status != status {
		e.t.Fatalf("%s %s: %s (%v); want %d", r.method, r.path, &a, err, status)
	}
	return out.Data
}

// refused sends a request that must be refused with the status and code.
func (e *gw) refused(status int, code string, r request) answer {
	e.t.Helper()
	a := e.do(r)
	if a.status != status || a.code() != code {
		e.t.Errorf("%s %s: %s; want %d %s", r.method, r.path, &a, status, code)
	}
	return a
}

// as is the operator acting in an app.
func (e *gw) as(app string) key { return key{app: app, secret: e.operator} }

func (e *gw) newApp(name string) string {
	e.t.Helper()
	return get[api.App](e, 201, request{method: "POST", path: "/v1/apps", body: api.CreateApp{Name: name}, key: key{secret: e.operator}}).ID
}

func (e *gw) newKey(app string, permissions ...string) key {
	e.t.Helper()
	k := get[api.NewAPIKey](e, 201, request{method: "POST", path: "/v1/api-keys", key: e.as(app), body: api.CreateAPIKey{Name: "k", Permissions: permissions}})
	return key{id: k.ID, app: app, secret: k.PlaintextKey}
}

func (e *gw) newRunner(app, host string, permissions ...string) key {
	e.t.Helper()
	if permissions == nil {
		permissions = []string{"hosts.ingest", "hosts.read", "work.claim"}
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		e.t.Fatal(err)
	}
	k := get[api.NewAPIKey](e, 201, request{method: "POST", path: "/v1/api-keys", key: e.as(app), body: api.CreateAPIKey{Name: "runner " + host, Permissions: permissions,
		Runner: &api.RunnerKey{Host: host, PublicKey: base64.StdEncoding.EncodeToString(public)}}})
	return key{id: k.ID, app: app, secret: k.PlaintextKey, host: host, signer: private}
}

// beat is a heartbeat's body with changes: a value of nil leaves a field out.
func beat(host string, changes ...any) map[string]any {
	b := map[string]any{"host": host, "cliVersion": "0.9.1", "runnerProtocol": 1, "pollSeconds": 30, "slotsUsed": 0, "slotsTotal": 2}
	for i := 0; i < len(changes); i += 2 {
		name := changes[i].(string)
		if b[name] = changes[i+1]; changes[i+1] == nil {
			delete(b, name)
		}
	}
	return b
}

// null stands for a JSON null in the changes of beat.
var null = json.RawMessage("null")

func heartbeat(k key, body any) request {
	return request{method: "POST", path: "/v1/hosts/heartbeat", key: k, body: body}
}

func long(n int) string { return strings.Repeat("é", n) }
