package server_test

import (
	"bytes"
	"crypto/ed25519"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/limit"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

const nobody = "00000000-0000-4000-8000-000000000000"

// TestCheckOrder spoils a request in all ways and mends them one by one: each
// refusal is that of the first thing that is still wrong.
//
// contract: E-07 R-11
func TestCheckOrder(t *testing.T) {
	e := sqliteGateway(t, func(o *gateway.Options) { o.Rate = limit.Rate{Burst: 1, PerSecond: 0.001} })
	app, other := e.newApp("a"), e.newApp("b")
	k := e.newRunner(app, "h", "hosts.read")
	able := e.newRunner(app, "h")
	spent := e.newRunner(app, "h")
	get[api.HeartbeatHost](e, 200, heartbeat(spent, beat("h")))
	for _, c := range []struct {
		what, code string
		status     int
		key        key
		signed     bool
		body       string
	}{
		{"missing auth", "unauthorized", 401, key{app: "no app id"}, false, "{}"},
		{"no app id", "unauthorized", 401, key{secret: "sk_outerlayer_wrong"}, false, "{}"},
		{"bad app id", "unauthorized", 401, key{app: "no app id", secret: "sk_outerlayer_wrong"}, false, "{}"},
		{"bad key", "unauthorized", 401, key{app: other, secret: "sk_outerlayer_wrong"}, false, "{}"},
		{"other app", "unauthorized", 401, key{app: other, secret: k.secret}, false, "{}"},
		{"app that is not", "unauthorized", 401, key{app: nobody, secret: k.secret}, false, "{}"},
		{"signature", "runner_key_signature_required", 401, k, false, "{}"},
		{"permission", "forbidden", 403, k, true, "{}"},
		{"rate limit", "rate_limited", 429, spent, true, "{}"},
		{"body", "invalid_request_body", 400, able, true, "{}"},
	} {
		a := e.refused(c.status, c.code, request{method: "POST", path: "/v1/hosts/heartbeat", key: c.key, unsigned: !c.signed, body: c.body})
		switch c.what {
		case "permission":
			if !strings.Contains(a.message(), "hosts.ingest") {
				t.Errorf("the refusal does not name the permission: %s", a.message())
			}
		case "rate limit":
			if a.header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
		}
	}
}

// TestBearerForms: the scheme is read as RFC 9110 has it, and nothing else is.
//
// contract: E-07
func TestBearerForms(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newKey(e.newApp("a"), "hosts.ingest")
	for header, want := range map[string]int{
		"Bearer " + k.secret: 200, "bearer " + k.secret: 200, "BEARER  " + k.secret: 200, "Basic " + k.secret: 401, k.secret: 401, "Bearer": 401, "Bearer ": 401, "": 401,
		"Bearer " + k.secret + "x": 401, "Bearer " + k.secret[:40]: 401, "Bearer sk_outerlayer_" + strings.Repeat("x", 4000): 401, "Bearer " + strings.ToUpper(k.secret): 401,
	} {
		r := heartbeat(key{app: k.app}, beat("h"))
		r.header = http.Header{"Authorization": {header}}
		if a := e.do(r); a.status != want {
			t.Errorf("%.40q: %s; want %d", header, &a, want)
		}
	}
	upper := heartbeat(k, beat("h"))
	upper.key.app = strings.ToUpper(k.app) // a UUID in upper case is the same UUID (RFC 9562 section 4)
	get[api.HeartbeatHost](e, 200, upper)
}

// TestBadKeysAreAlike: unknown, revoked and expired keys cannot be told apart.
//
// contract: E-07 R-25
func TestBadKeysAreAlike(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	revoked := e.newKey(app, "hosts.ingest")
	expires := e.clock.now().Add(time.Hour)
	n := get[api.NewAPIKey](e, 201, request{method: "POST", path: "/v1/api-keys", key: e.as(app), body: api.CreateAPIKey{Name: "e", Permissions: []string{"hosts.ingest"}, ExpiresAt: &expires}})
	expiring := key{app: app, secret: n.PlaintextKey}
	get[api.HeartbeatHost](e, 200, heartbeat(revoked, beat("h")))
	e.clock.step(time.Hour - time.Second)
	get[api.HeartbeatHost](e, 200, heartbeat(expiring, beat("h")))
	e.clock.step(time.Second)
	get[api.APIKey](e, 200, request{method: "DELETE", path: "/v1/api-keys/" + revoked.id, key: e.as(app)})
	var bodies []string
	for _, k := range []key{{app: app, secret: "sk_outerlayer_" + base64.RawURLEncoding.EncodeToString(make([]byte, 32))}, revoked, expiring} {
		a := e.refused(401, "unauthorized", heartbeat(k, beat("h")))
		bodies = append(bodies, string(a.body))
	}
	if bodies[0] != bodies[1] || bodies[1] != bodies[2] {
		t.Errorf("the answers differ: %v", bodies)
	}
}

// TestRevocationIsSeenByAllServers at once, also where the key is in memory.
//
// contract: R-25
func TestRevocationIsSeenByAllServers(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		dir, clk := t.TempDir(), newClock()
		one, two := newGateway(t, o, dir, clk, nil), newGateway(t, o, dir, clk, nil)
		app := one.newApp("a")
		for range 5 {
			k := one.newKey(app, "hosts.ingest")
			get[api.HeartbeatHost](one, 200, heartbeat(k, beat("h")))
			get[api.HeartbeatHost](two, 200, heartbeat(k, beat("h")))
			get[api.APIKey](two, 200, request{method: "DELETE", path: "/v1/api-keys/" + k.id, key: two.as(app)})
			one.refused(401, "unauthorized", heartbeat(k, beat("h")))
			two.refused(401, "unauthorized", heartbeat(k, beat("h")))
		}
		k := two.newKey(app, "hosts.ingest", "hosts.delete")
		get[api.Deleted](one, 200, request{method: "DELETE", path: "/v1/hosts/h", key: k})
		get[api.Deleted](one, 200, request{method: "DELETE", path: "/v1/apps/" + app, key: key{secret: one.operator}})
		two.refused(401, "unauthorized", heartbeat(k, beat("h")))
		two.refused(401, "unauthorized", heartbeat(two.as(app), beat("h")))
	})
}

// TestKeyLife: made, shown once, listed without its secret, stored as a keyed hash.
//
// contract: R-25
func TestKeyLife(t *testing.T) {
	dir := t.TempDir()
	e := newGateway(t, store.Options{Dir: dir}, dir, newClock(), nil)
	app := e.newApp("a")
	a := e.do(request{method: "POST", path: "/v1/api-keys", key: e.as(app), body: `{"name":"ci","permissions":["hosts.read","hosts.read","work.read"],"expires_at":"2027-01-01T00:00:00Z"}`})
	var got struct{ Data map[string]any }
	if err := json.Unmarshal(a.body, &got); err != nil || a.status != 201 {
		t.Fatalf("%s", &a)
	}
	d := got.Data
	secret := d["plaintext_key"].(string)
	if !regexp.MustCompile(`^sk_outerlayer_[A-Za-z0-9_-]{43}$`).MatchString(secret) || !strings.HasPrefix(secret, d["key_prefix"].(string)) || fleet.CanonicalID(d["id"].(string)) == "" {
		t.Errorf("the key is %v", d)
	}
	if d["expires_at"] != "2027-01-01T00:00:00Z" || d["revoked_at"] != nil || d["runner"] != nil || len(d["permissions"].([]any)) != 2 || d["app_id"] != app {
		t.Errorf("the key is %v", d)
	}
	list := e.do(request{method: "GET", path: "/v1/api-keys", key: e.as(app)})
	if bytes.Contains(list.body, []byte(secret)) || !bytes.Contains(list.body, []byte(d["id"].(string))) || bytes.Contains(list.body, []byte("plaintext")) {
		t.Errorf("list: %s", &list)
	}
	revoke := request{method: "DELETE", path: "/v1/api-keys/" + d["id"].(string), key: e.as(app)}
	first := get[api.APIKey](e, 200, revoke)
	e.clock.step(time.Minute)
	if again := get[api.APIKey](e, 200, revoke); first.RevokedAt == nil || !again.RevokedAt.Equal(*first.RevokedAt) {
		t.Errorf("revoked at %v, then %v", first.RevokedAt, again.RevokedAt)
	}
	info, err := os.Stat(filepath.Join(dir, gateway.PepperFile))
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() != 32 {
		t.Errorf("the pepper: %v %v", info, err)
	}
	e.db.Close()
	files, _ := filepath.Glob(filepath.Join(dir, "outcrop.db*"))
	for _, f := range files {
		if b, _ := os.ReadFile(f); bytes.Contains(b, []byte(secret)) || bytes.Contains(b, []byte(secret[20:])) {
			t.Errorf("%s holds the secret", f)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, gateway.PepperFile), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gateway.New(gateway.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "backup") {
		t.Errorf("a short pepper: %v", err)
	}
}

// contract: R-25 E-05 E-07
func TestKeyBodies(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	good := base64.StdEncoding.EncodeToString(e.newRunner(app, "h").signer.Public().(ed25519.PublicKey))
	runner := func(host, public string) string {
		return `{"name":"n","permissions":["hosts.ingest"],"runner":{"host":` + host + `,"public_key":` + public + `}}`
	}
	for body, field := range map[string]string{
		`{"permissions":["hosts.read"]}`:                            "name",
		`{"name":"","permissions":["hosts.read"]}`:                  "name",
		`{"name":"` + long(256) + `","permissions":["hosts.read"]}`: "name",
		`{"name":"n"}`:                                "permissions",
		`{"name":"n","permissions":[]}`:               "permissions",
		`{"name":"n","permissions":["hosts.raed"]}`:   "permissions.0",
		`{"name":"n","permissions":["hosts.read",7]}`: "permissions.1",
		`{"name":"n","permissions":["hosts.read"],"expires_at":"2026-03-01T12:00:00Z"}`: "expires_at",
		`{"name":"n","permissions":["hosts.read"],"expires_at":"soon"}`:                 "expires_at",
		`{"name":"n","permissions":["hosts.read"],"expiresAt":"2027-03-01T12:00:00Z"}`:  "expiresAt",
		`{"name":"n","permissions":["hosts.read"],"runner":{"host":"h"}}`:               "runner.public_key",
		runner(`""`, `"`+good+`"`):                                                 "runner.host",
		runner(`"h"`, `"`+good[:43]+`"`):                                           "runner.public_key",
		runner(`"h"`, `"`+good[:42]+`B="`):                                         "runner.public_key",
		runner(`"h"`, `"`+base64.StdEncoding.EncodeToString(make([]byte, 32))+`"`): "runner.public_key",
		`{"name":"n","permissions":["api_key.insert"],"runner":{"host":"h","public_key":"` + good + `"}}`: "permissions",
	} {
		a := e.refused(400, "invalid_request_body", request{method: "POST", path: "/v1/api-keys", key: e.as(app), body: body})
		if a.details()[field] == nil {
			t.Errorf("%s: %s; want a problem at %s", body, &a, field)
		}
		if field == "expiresAt" && !strings.Contains(a.details()[field].(string), "expires_at") {
			t.Errorf("no hint to expires_at: %s", &a)
		}
	}
	for _, body := range []string{
		`{"name":"` + long(255) + `","permissions":["hosts.read"],"expires_at":"2026-03-01T12:00:01Z"}`,
		`{"name":"n","permissions":["hosts.read"],"expires_at":null,"runner":null}`, runner(`"`+long(255)+`"`, `"`+good+`"`),
	} {
		get[api.NewAPIKey](e, 201, request{method: "POST", path: "/v1/api-keys", key: e.as(app), body: body})
	}
}

// TestGrant: a key never gives what it lacks, nor longer than it lasts.
//
// contract: R-25
func TestGrant(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	until := e.clock.now().Add(time.Hour)
	n := get[api.NewAPIKey](e, 201, request{method: "POST", path: "/v1/api-keys", key: e.as(app), body: api.CreateAPIKey{Name: "k", Permissions: []string{"api_key.insert", "hosts.read"}, ExpiresAt: &until}})
	k := key{app: app, secret: n.PlaintextKey}
	make := func(expires time.Duration, permissions ...string) request {
		in := api.CreateAPIKey{Name: "child", Permissions: permissions}
		if expires != 0 {
			at := e.clock.now().Add(expires)
			in.ExpiresAt = &at
		}
		return request{method: "POST", path: "/v1/api-keys", key: k, body: in}
	}
	a := e.refused(403, "forbidden", make(time.Hour, "hosts.read", "hosts.ingest", "work.claim"))
	if !strings.Contains(a.message(), "hosts.ingest, work.claim") {
		t.Errorf("message: %s", a.message())
	}
	e.refused(403, "forbidden", make(0, "hosts.read"))
	e.refused(403, "forbidden", make(time.Hour+time.Second, "hosts.read"))
	child := get[api.NewAPIKey](e, 201, make(time.Hour, "hosts.read", "api_key.insert"))
	if child.CreatedBy != n.ID {
		t.Errorf("created by %s", child.CreatedBy)
	}
	e.refused(403, "forbidden", request{method: "POST", path: "/v1/api-keys", key: e.newKey(app, "hosts.read"), body: api.CreateAPIKey{Name: "k", Permissions: []string{"hosts.read"}}})
}

// contract: E-10 R-25
func TestCreatesAreIdempotent(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	for _, c := range []struct{ path, body, other string }{
		{"/v1/apps", `{"name":"x"}`, `{"name":"y"}`},
		{"/v1/api-keys", `{"name":"x","permissions":["hosts.read"]}`, `{"name":"y","permissions":["hosts.read"]}`},
		{"/v1/work", `{"command":["x"]}`, `{"command":["y"]}`},
	} {
		r := request{method: "POST", path: c.path, key: e.as(app), body: c.body, header: http.Header{"Idempotency-Key": {"once"}}}
		first, again := e.do(r), e.do(r)
		if first.status != 201 || again.status != 201 || !bytes.Equal(first.body, again.body) {
			t.Errorf("%s: %s, then %s", c.path, &first, &again)
		}
		r.body = c.other
		e.refused(409, "idempotency_conflict", r)
		r.body, r.header = c.body, http.Header{"Idempotency-Key": {strings.Repeat("k", 256)}}
		e.refused(400, "invalid_idempotency_key", r)
	}
	r := request{method: "POST", path: "/v1/api-keys", key: e.as(app), body: `{"name":"z","permissions":["hosts.ingest"]}`, header: http.Header{"Idempotency-Key": {"works"}}}
	e.do(r)
	k := get[api.NewAPIKey](e, 201, r)
	get[api.HeartbeatHost](e, 200, heartbeat(key{app: app, secret: k.PlaintextKey}, beat("h"))) // the secret of the second answer is the key's
	e.clock.step(24*time.Hour + time.Second)
	if late := get[api.NewAPIKey](e, 201, r); late.ID == k.ID {
		t.Error("the first answer came after a day")
	}
}

// TestOtherTenants: nothing of an app is seen, changed or spoken for from another.
//
// contract: E-07 R-25
func TestOtherTenants(t *testing.T) {
	e := sqliteGateway(t, nil)
	mine, theirs := e.newApp("mine"), e.newApp("theirs")
	all := words(fleet.Permissions)
	k, victim := e.newKey(mine, all...), e.newKey(theirs, all...)
	get[api.HeartbeatHost](e, 200, heartbeat(victim, beat("h")))
	job := get[api.Work](e, 201, request{method: "POST", path: "/v1/work", key: victim, body: `{"command":["x"]}`})
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/v1/hosts/h", ""}, {"DELETE", "/v1/hosts/h", ""}, {"GET", "/v1/apps/" + theirs, ""}, {"PATCH", "/v1/apps/" + theirs, `{"name":"x"}`},
		{"DELETE", "/v1/api-keys/" + victim.id, ""}, {"GET", "/v1/work/" + job.ID, ""}, {"POST", "/v1/work/" + job.ID + "/cancel", ""}, {"GET", "/v1/work/" + job.ID + "/logs", ""},
		{"POST", "/v1/work/" + job.ID + "/renew", `{"host":"h","leaseEpoch":1}`}, {"POST", "/v1/work/" + job.ID + "/complete", `{"host":"h","leaseEpoch":1,"exitCode":0}`},
		{"POST", "/v1/work/" + job.ID + "/fail", `{"host":"h","leaseEpoch":1,"message":"m"}`}, {"POST", "/v1/work/" + job.ID + "/logs", `{"host":"h","leaseEpoch":1,"offset":0,"data":"eA=="}`},
	} {
		e.refused(404, "not_found", request{method: c.method, path: c.path, body: c.body, key: k})
		e.refused(401, "unauthorized", request{method: c.method, path: c.path, body: c.body, key: key{app: theirs, secret: k.secret}})
	}
	e.refused(409, "host_unknown", request{method: "POST", path: "/v1/work/claims", key: k, body: `{"host":"h"}`})
	for _, path := range []string{"/v1/hosts", "/v1/work"} {
		if a := e.do(request{method: "GET", path: path, key: k}); !bytes.Contains(a.body, []byte(`"data":[]`)) || !bytes.Contains(a.body, []byte(`"total":0`)) {
			t.Errorf("%s: %s", path, &a)
		}
	}
	for _, c := range []struct{ method, path, body string }{{"GET", "/v1/apps", ""}, {"POST", "/v1/apps", `{"name":"x"}`}, {"DELETE", "/v1/apps/" + mine, ""}} {
		e.refused(403, "forbidden", request{method: c.method, path: c.path, body: c.body, key: k})
	}
	get[api.HeartbeatHost](e, 200, heartbeat(victim, beat("h")))
}

// TestEveryOperationNeedsItsPermission: a key with all others is refused, one
// with only this is not.
//
// contract: E-07 R-11 R-25
func TestEveryOperationNeedsItsPermission(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	for _, c := range []struct{ permission, method, path, body string }{
		{"hosts.ingest", "POST", "/v1/hosts/heartbeat", "{}"}, {"hosts.read", "GET", "/v1/hosts", ""}, {"hosts.read", "GET", "/v1/hosts/h", ""}, {"hosts.delete", "DELETE", "/v1/hosts/h", ""},
		{"hosts.read", "GET", "/v1/hosts/update-setting", ""}, {"hosts.update", "PUT", "/v1/hosts/update-setting", "{}"}, {"app.read", "GET", "/v1/apps/" + app, ""}, {"app.update", "PATCH", "/v1/apps/" + app, "{}"},
		{"api_key.insert", "POST", "/v1/api-keys", "{}"}, {"api_key.read", "GET", "/v1/api-keys", ""}, {"api_key.delete", "DELETE", "/v1/api-keys/" + nobody, ""},
		{"work.insert", "POST", "/v1/work", "{}"}, {"work.read", "GET", "/v1/work", ""}, {"work.read", "GET", "/v1/work/" + nobody, ""}, {"work.read", "GET", "/v1/work/" + nobody + "/logs", ""},
		{"work.cancel", "POST", "/v1/work/" + nobody + "/cancel", ""}, {"work.claim", "POST", "/v1/work/claims", "{}"}, {"work.claim", "POST", "/v1/work/" + nobody + "/renew", "{}"},
		{"work.claim", "POST", "/v1/work/" + nobody + "/complete", "{}"}, {"work.claim", "POST", "/v1/work/" + nobody + "/fail", "{}"}, {"work.claim", "POST", "/v1/work/" + nobody + "/logs", "{}"},
	} {
		others := slices.DeleteFunc(words(fleet.Permissions), func(p string) bool { return p == c.permission })
		r := request{method: c.method, path: c.path, body: c.body, key: e.newKey(app, others...)}
		if a := e.refused(403, "forbidden", r); !strings.Contains(a.message(), c.permission) {
			t.Errorf("%s %s: %s does not name %s", c.method, c.path, a.message(), c.permission)
		}
		r.key = e.newKey(app, c.permission)
		if a := e.do(r); a.status == 403 || a.status == 401 || a.status >= 500 {
			t.Errorf("%s %s with %s: %s", c.method, c.path, c.permission, &a)
		}
		r.key = e.as(app)
		if a := e.do(r); a.status == 403 || a.status == 401 || a.status >= 500 {
			t.Errorf("%s %s as operator: %s", c.method, c.path, &a)
		}
	}
}

// TestOtherTokens: the compute API's other roles have no business here.
//
// contract: E-07
func TestOtherTokens(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	for _, in := range []api.CreateToken{{Role: "node", NodeID: "n1"}, {Role: "project", ProjectID: "default"}} {
		tok, err := e.control.CreateToken(t.Context(), iam.System, in)
		if err != nil {
			t.Fatal(err)
		}
		e.refused(403, "forbidden", heartbeat(key{app: app, secret: tok.Secret}, beat("h")))
		e.refused(403, "forbidden", request{method: "GET", path: "/v1/apps", key: key{secret: tok.Secret}})
	}
	e.refused(401, "unauthorized", heartbeat(key{app: app, secret: "oct_wrong"}, beat("h")))
	e.refused(401, "unauthorized", heartbeat(key{app: nobody, secret: e.operator}, beat("h")))
	// And an API key is nothing to the compute API.
	a := e.do(request{method: "GET", path: "/v1/compute/nodes", key: e.newKey(app, "hosts.read")})
	if a.status != 401 || !bytes.Contains(a.body, []byte(`"code":"UNAUTHENTICATED"`)) {
		t.Errorf("an API key at the compute API: %s", &a)
	}
}

// contract: R-25 E-06
func TestAppLife(t *testing.T) {
	e := sqliteGateway(t, nil)
	op := key{secret: e.operator}
	id := e.newApp("first")
	e.clock.step(time.Second)
	e.newApp("second")
	if a := get[api.App](e, 200, request{method: "GET", path: "/v1/apps/" + id, key: op}); a.Name != "first" || a.Hosts != 0 {
		t.Errorf("%+v", a)
	}
	if a := get[api.App](e, 200, request{method: "PATCH", path: "/v1/apps/" + id, key: op, body: `{"name":"renamed"}`}); a.Name != "renamed" {
		t.Errorf("%+v", a)
	}
	if all := get[[]api.App](e, 200, request{method: "GET", path: "/v1/apps?limit=1&offset=1", key: op}); len(all) != 1 || all[0].Name != "second" {
		t.Errorf("%+v", all)
	}
	for body, field := range map[string]string{`{}`: "name", `{"name":""}`: "name", `{"name":"` + long(256) + `"}`: "name", `{"name":"x","nmae":"y"}`: "nmae"} {
		if a := e.refused(400, "invalid_request_body", request{method: "POST", path: "/v1/apps", key: op, body: body}); a.details()[field] == nil {
			t.Errorf("%s: %s", body, &a)
		}
	}
	get[api.HeartbeatHost](e, 200, heartbeat(e.as(id), beat("h")))
	job := get[api.Work](e, 201, request{method: "POST", path: "/v1/work", key: e.as(id), body: `{"command":["x"]}`})
	del := request{method: "DELETE", path: "/v1/apps/" + id, key: op}
	e.refused(409, "app_in_use", del)
	get[api.Deleted](e, 200, request{method: "DELETE", path: "/v1/hosts/h", key: e.as(id)})
	e.refused(409, "app_in_use", del)
	get[api.Work](e, 200, request{method: "POST", path: "/v1/work/" + job.ID + "/cancel", key: e.as(id)})
	get[api.Deleted](e, 200, del)
	e.refused(404, "not_found", del)
	e.refused(404, "not_found", request{method: "GET", path: "/v1/apps/nonsense", key: op})
}

// TestRateLimit: the burst is there, the wait is told, and it is each key's own.
//
// contract: E-07
func TestRateLimit(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	k, other := e.newKey(app, "hosts.read"), e.newKey(app, "hosts.read")
	list := request{method: "GET", path: "/v1/hosts", key: k}
	n := 0
	for e.do(list).status == 200 {
		n++
	}
	if n != int(gateway.DefaultRate.Burst) || n < 200 {
		t.Errorf("a burst of %d", n)
	}
	a := e.refused(429, "rate_limited", list)
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	list.key = other
	get[[]api.RunnerHost](e, 200, list)
	list.key = k
	e.clock.step(time.Second)
	for range int(gateway.DefaultRate.PerSecond) {
		get[[]api.RunnerHost](e, 200, list)
	}
	e.refused(429, "rate_limited", list)
}

// TestFailuresAreThrottled per source, and hosts behind the same address that
// are known go on.
//
// contract: E-07
func TestFailuresAreThrottled(t *testing.T) {
	e := sqliteGateway(t, func(o *gateway.Options) { o.Failures = limit.Rate{Burst: 20, PerSecond: 0.5} })
	app := e.newApp("a")
	known, fresh := e.newKey(app, "hosts.ingest"), e.newKey(app, "hosts.ingest")
	get[api.HeartbeatHost](e, 200, heartbeat(known, beat("h")))
	guess := heartbeat(key{app: app, secret: "sk_outerlayer_guess"}, beat("h"))
	for range 20 {
		e.refused(401, "unauthorized", guess)
	}
	if a := e.refused(429, "rate_limited", guess); a.header.Get("Retry-After") != "2" {
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	get[api.HeartbeatHost](e, 200, heartbeat(known, beat("h")))
	e.refused(429, "rate_limited", heartbeat(fresh, beat("h")))
	e.clock.step(2 * time.Second)
	get[api.HeartbeatHost](e, 200, heartbeat(fresh, beat("h")))

	// Bad signatures throttle the key at that source, not the source.
	runner := e.newRunner(app, "r")
	forged := heartbeat(runner, beat("r"))
	forged.edit = func(r *http.Request) { r.Header.Set("Content-Digest", "sha-256=:AAAA:") }
	for range 20 {
		e.refused(401, "runner_key_signature_invalid", forged)
	}
	e.refused(429, "rate_limited", heartbeat(runner, beat("r")))
	get[api.HeartbeatHost](e, 200, heartbeat(e.newRunner(app, "s"), beat("s")))
}

// TestEnvelopes: what no verb answered is still in the gateway's envelope.
//
// contract: E-06
func TestEnvelopes(t *testing.T) {
	dir := t.TempDir()
	e := newGateway(t, store.Options{Dir: dir}, dir, newClock(), nil)
	e.refused(404, "not_found", request{method: "GET", path: "/v1/work/a/b/c"})
	if a := e.refused(405, "method_not_allowed", request{method: "PUT", path: "/v1/hosts"}); a.header.Get("Allow") == "" {
		t.Error("405 without Allow")
	}
	if a := e.do(request{method: "GET", path: "/health"}); a.status != 200 || string(a.body) != `{"status":"ok"}` {
		t.Errorf("health: %s", &a)
	}
	c := get[api.Capabilities](e, 200, request{method: "GET", path: "/v1/capabilities"})
	if c.Version != "1.2.3" || c.RunnerProtocol.Minimum != 1 || len(c.PermissionNames) != len(fleet.Permissions) {
		t.Errorf("capabilities: %+v", c)
	}
	app := e.newApp("a")
	raw, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "outcrop.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := raw.Exec("DROP TABLE hosts"); err != nil {
		t.Fatal(err)
	}
	a := e.refused(500, "internal", request{method: "GET", path: "/v1/hosts", key: e.as(app)})
	if bytes.Contains(a.body, []byte("store")) || bytes.Contains(a.body, []byte("SQL")) || !bytes.Contains(a.body, []byte(`"request_id"`)) {
		t.Errorf("an internal error: %s", &a)
	}
}

func words[T ~string](in []T) (out []string) {
	for _, w := range in {
		out = append(out, string(w))
	}
	return out
}
