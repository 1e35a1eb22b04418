package server_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
	"github.com/outcrop-cloud/outcrop/internal/limit"
)

var discard = slog.New(slog.DiscardHandler)

// heartbeatCase is one field of a heartbeat with a value; bad is the path of the
// problem, empty where it is accepted.
type heartbeatCase struct {
	field string
	v     any
	bad   string
}

// heartbeatCases are both sides of every bound of the body.
func heartbeatCases() []heartbeatCase {
	update := func(name string, v any) map[string]any {
		u := map[string]any{"from": "1", "to": "2", "outcome": "updated", "reason": nil}
		if u[name] = v; v == nil {
			delete(u, name)
		}
		return u
	}
	failed := func(code, message string) any { return map[string]any{"ok": false, "code": code, "message": message} }
	return []heartbeatCase{
		{"host", nil, "host"}, {"host", "", "host"}, {"host", "h", ""}, {"host", long(255), ""}, {"host", long(256), "host"}, {"host", 7, "host"}, {"host", null, "host"}, {"host", "a\x00b", "host"},
		{"cliVersion", nil, "cliVersion"}, {"cliVersion", "", "cliVersion"}, {"cliVersion", "1", ""}, {"cliVersion", long(64), ""}, {"cliVersion", long(65), "cliVersion"},
		{"pollSeconds", nil, "pollSeconds"}, {"pollSeconds", 0, "pollSeconds"}, {"pollSeconds", 1, ""}, {"pollSeconds", 86400, ""}, {"pollSeconds", 86401, "pollSeconds"},
		{"pollSeconds", 30.5, "pollSeconds"}, {"pollSeconds", json.RawMessage("30.0"), ""}, {"pollSeconds", json.RawMessage("3e1"), ""}, {"pollSeconds", "30", "pollSeconds"}, {"pollSeconds", json.RawMessage("1e999"), "pollSeconds"},
		{"slotsUsed", nil, "slotsUsed"}, {"slotsUsed", -1, "slotsUsed"}, {"slotsUsed", 0, ""}, {"slotsUsed", 99, ""}, {"slotsUsed", json.RawMessage("1e30"), "slotsUsed"},
		{"slotsTotal", nil, "slotsTotal"}, {"slotsTotal", 0, "slotsTotal"}, {"slotsTotal", 1, ""}, {"slotsTotal", int64(math.MaxInt64), ""},
		{"runnerProtocol", nil, ""}, {"runnerProtocol", -1, "runnerProtocol"}, {"runnerProtocol", 0, ""}, {"runnerProtocol", 1_000_000, ""}, {"runnerProtocol", 1_000_001, "runnerProtocol"}, {"runnerProtocol", null, "runnerProtocol"},
		{"workRequest", map[string]any{"ok": true}, ""}, {"workRequest", map[string]any{}, "workRequest.ok"}, {"workRequest", map[string]any{"ok": "yes"}, "workRequest.ok"}, {"workRequest", true, "workRequest"}, {"workRequest", null, "workRequest"},
		{"workRequest", failed("c", "m"), ""}, {"workRequest", failed(long(100), long(500)), ""}, {"workRequest", failed("", "m"), "workRequest.code"}, {"workRequest", failed(long(101), "m"), "workRequest.code"},
		{"workRequest", failed("c", ""), "workRequest.message"}, {"workRequest", failed("c", long(501)), "workRequest.message"}, {"workRequest", map[string]any{"ok": false, "code": "c"}, "workRequest.message"},
		{"lastUpdate", update("", 0), ""}, {"lastUpdate", update("from", ""), "lastUpdate.from"}, {"lastUpdate", update("from", long(64)), ""}, {"lastUpdate", update("from", long(65)), "lastUpdate.from"},
		{"lastUpdate", update("to", nil), "lastUpdate.to"}, {"lastUpdate", update("to", long(65)), "lastUpdate.to"}, {"lastUpdate", update("outcome", "rolled_back"), ""}, {"lastUpdate", update("outcome", "verification_failed"), ""},
		{"lastUpdate", update("outcome", "not_published"), ""}, {"lastUpdate", update("outcome", "retrying"), ""}, {"lastUpdate", update("outcome", "fine"), "lastUpdate.outcome"}, {"lastUpdate", update("outcome", nil), "lastUpdate.outcome"},
		{"lastUpdate", update("reason", nil), "lastUpdate.reason"}, {"lastUpdate", update("reason", "x"), ""}, {"lastUpdate", update("reason", long(500)), ""}, {"lastUpdate", update("reason", long(501)), "lastUpdate.reason"}, {"lastUpdate", update("reason", ""), "lastUpdate.reason"},
		{"lastUpdate", update("at", "2026-03-01T12:00:00+02:00"), ""}, {"lastUpdate", update("at", "2026-03-01T12:00:00.123456Z"), ""}, {"lastUpdate", update("at", "2026-03-01"), "lastUpdate.at"}, {"lastUpdate", update("at", 5), "lastUpdate.at"},
		{"lowDisk", map[string]any{"free": 0, "needed": 0}, ""}, {"lowDisk", map[string]any{"free": int64(9007199254740991), "needed": 1}, ""}, {"lowDisk", map[string]any{"free": json.RawMessage("9007199254740992"), "needed": 1}, "lowDisk.free"},
		{"lowDisk", map[string]any{"free": -1, "needed": 1}, "lowDisk.free"}, {"lowDisk", map[string]any{"free": 1}, "lowDisk.needed"}, {"lowDisk", map[string]any{"free": 1, "needed": -1}, "lowDisk.needed"}, {"lowDisk", null, "lowDisk"},
		{"blocked", map[string]any{"reason": "x"}, ""}, {"blocked", map[string]any{"reason": long(500)}, ""}, {"blocked", map[string]any{"reason": ""}, "blocked.reason"}, {"blocked", map[string]any{"reason": long(501)}, "blocked.reason"}, {"blocked", map[string]any{}, "blocked.reason"},
		{"somethingNew", map[string]any{"a": 1}, ""},
	}
}

// contract: R-02 R-03 R-04 R-05 R-06 E-05 E-07
func TestHeartbeatBounds(t *testing.T) {
	e := sqliteGateway(t, func(o *gateway.Options) { o.Rate = limit.Rate{Burst: 1000, PerSecond: 1000} })
	k := e.newKey(e.newApp("a"), "hosts.ingest")
	for _, c := range heartbeatCases() {
		a := e.do(heartbeat(k, beat("h", c.field, c.v)))
		if c.bad == "" {
			if a.status != 200 {
				t.Errorf("%s = %v: %s; want 200", c.field, c.v, &a)
			}
			continue
		}
		if a.status != 400 || a.code() != "invalid_request_body" || a.details()[c.bad] == nil || len(a.details()) != 1 {
			t.Errorf("%s = %v: %s; want a problem at %s alone", c.field, c.v, &a, c.bad)
		}
	}
}

// contract: E-07
func TestHeartbeatNamesEveryProblem(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newKey(e.newApp("a"), "hosts.ingest")
	a := e.refused(400, "invalid_request_body", heartbeat(k, `{"lastUpdate":{"from":"","reason":5},"workRequest":{"ok":false},"slotsTotal":0}`))
	var paths []string
	for p := range a.details() {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	want := []string{"cliVersion", "host", "lastUpdate.from", "lastUpdate.outcome", "lastUpdate.reason", "lastUpdate.to", "pollSeconds", "slotsTotal", "slotsUsed", "workRequest.code", "workRequest.message"}
	if !slices.Equal(paths, want) {
		t.Errorf("problems at %v, want %v", paths, want)
	}
	for _, body := range []string{"", "null", "[]", "7", `"x"`, "{", `{"host":"a","host":"b"}`, "{}x", "\xff", `{"host":` + strings.Repeat("[", 20000)} {
		e.refused(400, "invalid_request_body", heartbeat(k, body))
	}
}

// TestHeartbeatAnswer holds the answer to the document: every field is there, and
// what is not known is null.
//
// contract: R-01 R-07 R-03
func TestHeartbeatAnswer(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newKey(e.newApp("a"), "hosts.ingest")
	got := get[map[string]any](e, 200, heartbeat(k, `{"host":"h1","cliVersion":"1.0","pollSeconds":30,"slotsUsed":3,"slotsTotal":2}`))
	want := map[string]any{"host": "h1", "cliVersion": "1.0", "runnerProtocol": 0.0, "pollSeconds": 30.0, "slotsUsed": 3.0, "slotsTotal": 2.0,
		"lastHeartbeatAt": "2026-03-01T12:00:00Z", "lastSuccessAt": nil, "lastError": nil, "lastUpdate": nil, "lowDisk": nil, "blocked": nil,
		"status": "outdated", "runnerVersion": "1.0"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	e.clock.step(time.Minute)
	got = get[map[string]any](e, 200, heartbeat(k, beat("h1", "workRequest", map[string]any{"ok": false, "code": "c", "message": "m"},
		"lastUpdate", map[string]any{"from": "1", "to": "2", "outcome": "retrying", "reason": "r", "at": "2026-03-01T13:00:00+02:00"},
		"lowDisk", map[string]any{"free": 1, "needed": 2}, "blocked", map[string]any{"reason": "no /dev/kvm"})))
	want = map[string]any{"host": "h1", "cliVersion": "0.9.1", "runnerProtocol": 1.0, "pollSeconds": 30.0, "slotsUsed": 0.0, "slotsTotal": 2.0,
		"lastHeartbeatAt": "2026-03-01T12:01:00Z", "lastSuccessAt": nil, "lastError": map[string]any{"code": "c", "message": "m", "at": "2026-03-01T12:01:00Z"},
		"lastUpdate": map[string]any{"from": "1", "to": "2", "outcome": "retrying", "reason": "r", "at": "2026-03-01T11:00:00Z"},
		"lowDisk":    map[string]any{"free": 1.0, "needed": 2.0}, "blocked": map[string]any{"reason": "no /dev/kvm"}, "status": "failing", "runnerVersion": "0.9.1"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	list := get[[]map[string]any](e, 200, request{method: "GET", path: "/v1/hosts", key: e.as(k.app)})
	delete(want, "runnerVersion")
	if len(list) != 1 || !reflect.DeepEqual(list[0], want) { // contract: R-08
		t.Errorf("list %v\nwant %v", list, want)
	}
}

// TestOmission holds each field to its own rule of what leaving it out means.
//
// contract: R-01 R-04 R-05 R-06
func TestOmission(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newKey(e.newApp("a"), "hosts.ingest")
	send := func(changes ...any) api.HeartbeatHost {
		t.Helper()
		e.clock.step(10 * time.Second)
		return get[api.HeartbeatHost](e, 200, heartbeat(k, beat("h", changes...)))
	}
	first := send("workRequest", map[string]any{"ok": true}, "lastUpdate", map[string]any{"from": "1", "to": "2", "outcome": "updated", "reason": nil},
		"lowDisk", map[string]any{"free": 1, "needed": 2}, "blocked", map[string]any{"reason": "r"})
	if first.LastSuccessAt == nil || first.LastError != nil || first.LastUpdate == nil || first.LastUpdate.At != nil || first.LowDisk == nil || first.Blocked == nil {
		t.Fatalf("first: %+v", first)
	}
	plain := send("runnerProtocol", nil)
	if !plain.LastSuccessAt.Equal(*first.LastSuccessAt) || plain.LastUpdate == nil || plain.LowDisk != nil || plain.Blocked != nil || plain.RunnerProtocol != 0 {
		t.Errorf("nothing said: %+v", plain)
	}
	failed := send("workRequest", map[string]any{"ok": false, "code": "c", "message": "m"}, "lastUpdate", map[string]any{"from": "2", "to": "3", "outcome": "rolled_back", "reason": "r"})
	if !failed.LastSuccessAt.Equal(*first.LastSuccessAt) || failed.LastError == nil || !failed.LastError.At.Equal(e.clock.now()) || failed.LastUpdate.Outcome != "rolled_back" || failed.Status != "failing" {
		t.Errorf("failed: %+v", failed)
	}
	again := send()
	if again.Status != "failing" || again.LastError.At != failed.LastError.At || again.LastUpdate.Outcome != "rolled_back" {
		t.Errorf("after a failure, nothing said: %+v", again)
	}
	good := send("workRequest", map[string]any{"ok": true, "code": 7})
	if good.Status != "ok" || good.LastError == nil || !good.LastSuccessAt.Equal(e.clock.now()) {
		t.Errorf("recovered: %+v", good)
	}
}

// TestStatusEdges walks every edge of the status over HTTP, one second either
// side; the pure function has its own table.
//
// contract: R-10 E-07
// lesson 6
func TestStatusEdges(t *testing.T) {
	e := sqliteGateway(t, func(o *gateway.Options) { o.Protocol = fleet.Protocol{Current: 3, Minimum: 2} })
	k := e.newKey(e.newApp("a"), "hosts.ingest", "hosts.read")
	for _, c := range []struct {
		name    string
		changes []any
		age     time.Duration
		want    string
	}{
		{"short", []any{"pollSeconds", 1}, 60 * time.Second, "ok"},
		{"short", []any{"pollSeconds", 1}, 61 * time.Second, "stale"},
		{"twenty", []any{"pollSeconds", 20}, 60 * time.Second, "ok"},
		{"twenty", []any{"pollSeconds", 20}, 61 * time.Second, "stale"},
		{"longer", []any{"pollSeconds", 21}, 63 * time.Second, "ok"},
		{"longer", []any{"pollSeconds", 21}, 64 * time.Second, "stale"},
		{"day", []any{"pollSeconds", 86400}, 3 * 86400 * time.Second, "ok"},
		{"day", []any{"pollSeconds", 86400}, 3*86400*time.Second + time.Second, "stale"},
		{"old", []any{"runnerProtocol", 1}, 0, "outdated"},
		{"old", []any{"runnerProtocol", 1, "blocked", map[string]any{"reason": "r"}}, 60 * time.Second, "outdated"},
		{"old", []any{"runnerProtocol", 1}, 91 * time.Second, "stale"},
		{"blocked", []any{"blocked", map[string]any{"reason": "r"}}, 0, "failing"},
		{"full", []any{"lowDisk", map[string]any{"free": 1, "needed": 2}}, 90 * time.Second, "failing"},
		{"full", []any{"lowDisk", map[string]any{"free": 1, "needed": 2}}, 91 * time.Second, "stale"},
	} {
		if c.name != "old" {
			c.changes = append(c.changes, "runnerProtocol", 2)
		}
		get[api.HeartbeatHost](e, 200, heartbeat(k, beat(c.name, c.changes...)))
		e.clock.step(c.age)
		h := get[api.HostDetail](e, 200, request{method: "GET", path: "/v1/hosts/" + c.name, key: k})
		if h.Status != c.want || (h.StatusReason == nil) != (c.want == "ok") || h.AgeSeconds != int64(c.age/time.Second) {
			t.Errorf("%s %v after %v: %s %v, age %d; want %s", c.name, c.changes, c.age, h.Status, h.StatusReason, h.AgeSeconds, c.want)
		}
		for _, status := range fleet.HostStatuses {
			list := get[[]api.RunnerHost](e, 200, request{method: "GET", path: "/v1/hosts?status=" + string(status), key: k})
			there := slices.ContainsFunc(list, func(h api.RunnerHost) bool { return h.Host == c.name && h.Status == c.want })
			if there != (string(status) == c.want) {
				t.Errorf("%s, which is %s, in the list of the %s: %v", c.name, c.want, status, there)
			}
		}
	}
}

// contract: R-08 E-06
func TestHostListPages(t *testing.T) {
	e := sqliteGateway(t, func(o *gateway.Options) { o.Rate = limit.Rate{Burst: 5000, PerSecond: 1} })
	app := e.newApp("a")
	k := e.newKey(app, "hosts.ingest", "hosts.read")
	other := e.newKey(e.newApp("b"), "hosts.ingest", "hosts.read")
	get[api.HeartbeatHost](e, 200, heartbeat(other, beat("h0")))
	var names []string
	for i := range 120 {
		name := fmt.Sprintf("h%03d", (i*37)%120)
		names = append(names, name)
		get[api.HeartbeatHost](e, 200, heartbeat(k, beat(name)))
	}
	slices.Sort(names)
	page := func(query string) (out api.DataList[api.RunnerHost]) {
		t.Helper()
		a := e.do(request{method: "GET", path: "/v1/hosts" + query, key: k})
		if err := json.Unmarshal(a.body, &out); err != nil || a.status != 200 {
			t.Fatalf("%s: %s", query, &a)
		}
		return out
	}
	for _, c := range []struct {
		query         string
		first, n      int
		limit, offset int64
	}{
		{"", 0, 50, 50, 0}, {"?limit=1", 0, 1, 1, 0}, {"?limit=1000", 0, 120, 1000, 0}, {"?offset=100", 100, 20, 50, 100}, {"?limit=10&offset=115", 115, 5, 10, 115},
		{"?offset=119", 119, 1, 50, 119}, {"?offset=120", 0, 0, 50, 120}, {"?limit=7&after=h041", 42, 7, 7, 0}, {"?limit=7&after=h041&offset=2", 44, 7, 7, 2}, {"?status=ok&limit=3&offset=4", 4, 3, 3, 4}, {"?status=ok&after=h116", 117, 3, 50, 0}, {"?status=stale", 0, 0, 50, 0},
	} {
		p := page(c.query)
		var got []string
		for _, h := range p.Data {
			got = append(got, h.Host)
		}
		total := int64(120)
		if strings.Contains(c.query, "stale") {
			total = 0
		}
		if !slices.Equal(got, names[c.first:c.first+c.n]) || p.Pagination != (api.Pagination{Total: total, Limit: c.limit, Offset: c.offset}) {
			t.Errorf("%s: %v %+v", c.query, got, p.Pagination)
		}
	}
	for _, query := range []string{"?limit=0", "?limit=1001", "?limit=x", "?offset=-1", "?offset=1e3", "?status=fine", "?limit="} {
		e.refused(400, "invalid_request_query", request{method: "GET", path: "/v1/hosts" + query, key: k})
	}
	del := request{method: "DELETE", path: "/v1/hosts/h000", key: e.as(app)}
	get[api.Deleted](e, 200, del)
	e.refused(404, "not_found", del)
	e.refused(404, "not_found", request{method: "GET", path: "/v1/hosts/h000", key: k})
	e.refused(403, "forbidden", request{method: "DELETE", path: "/v1/hosts/h001", key: k})
	if p := page("?limit=1"); p.Pagination.Total != 119 || p.Data[0].Host != "h001" {
		t.Errorf("after a delete: %+v", p)
	}
	get[api.HeartbeatHost](e, 200, heartbeat(k, beat("h000")))
	if p := page("?limit=1"); p.Pagination.Total != 120 || p.Data[0].Host != "h000" {
		t.Errorf("after it came back: %+v", p)
	}
}

// TestOddHostNames: a name is whatever the contract lets it be.
//
// contract: R-01 R-02
func TestOddHostNames(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newKey(e.newApp("a"), "hosts.ingest", "hosts.read", "hosts.delete")
	for _, c := range []struct{ name, path string }{
		{"a/b", "a%2Fb"}, {"a b", "a%20b"}, {"ü", "%C3%BC"}, {"50%", "50%25"}, {"a?b#c", "a%3Fb%23c"}, {"'; DROP TABLE hosts; --", "%27%3B%20DROP%20TABLE%20hosts%3B%20--"}, {"A", "A"}, {"a", "a"},
	} {
		get[api.HeartbeatHost](e, 200, heartbeat(k, beat(c.name)))
		h := get[api.HostDetail](e, 200, request{method: "GET", path: "/v1/hosts/" + c.path, key: k})
		if h.Host != c.name {
			t.Errorf("asked for %q, got %q", c.name, h.Host)
		}
	}
	if n := len(get[[]api.RunnerHost](e, 200, request{method: "GET", path: "/v1/hosts", key: k})); n != 8 {
		t.Errorf("%d hosts, want 8", n)
	}
}

// contract: R-09
func TestUpdateSetting(t *testing.T) {
	for _, c := range []struct {
		gateway, setting, cli, want string
	}{
		{"", `{"mode":"follow"}`, "0.9.1", "0.9.1"}, {"", `{"mode":"follow"}`, "outcrop/1.0.0", "outcrop/1.2.3"}, {"4.5.6", `{"mode":"follow"}`, "0.9.1", "4.5.6"},
		{"4.5.6", `{"mode":"follow"}`, "outcrop/1.0.0", "4.5.6"}, {"4.5.6", `{"mode":"paused"}`, "0.9.1", "0.9.1"}, {"", `{"mode":"paused"}`, "outcrop/1.0.0", "outcrop/1.0.0"},
		{"4.5.6", `{"mode":"pinned","version":"3.3.3"}`, "0.9.1", "3.3.3"},
	} {
		e := sqliteGateway(t, func(o *gateway.Options) { o.RunnerVersion = c.gateway })
		app := e.newApp("a")
		k := e.newKey(app, "hosts.ingest", "hosts.read", "hosts.update")
		setting := request{method: "GET", path: "/v1/hosts/update-setting", key: k}
		if s := get[api.UpdateSetting](e, 200, setting); s.Mode != "follow" || s.Version != nil {
			t.Errorf("the default is %+v", s)
		}
		get[api.HeartbeatHost](e, 200, heartbeat(k, beat("h", "cliVersion", c.cli))) // the key is in memory now
		put := setting
		put.method, put.body = "PUT", c.setting
		get[api.UpdateSetting](e, 200, put)
		for _, who := range []key{k, e.as(app)} {
			if h := get[api.HeartbeatHost](e, 200, heartbeat(who, beat("h", "cliVersion", c.cli))); h.RunnerVersion != c.want {
				t.Errorf("%+v: runnerVersion %q", c, h.RunnerVersion)
			}
			if h := get[api.HostDetail](e, 200, request{method: "GET", path: "/v1/hosts/h", key: who}); h.RunnerVersion != c.want {
				t.Errorf("%+v: runnerVersion %q of the host", c, h.RunnerVersion)
			}
		}
	}
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	for body, field := range map[string]string{
		`{}`: "mode", `{"mode":"x"}`: "mode", `{"mode":"pinned"}`: "version", `{"mode":"follow","version":"1"}`: "version", `{"mode":"pinned","version":""}`: "version",
		`{"mode":"pinned","version":"` + long(65) + `"}`: "version", `{"mode":"paused","versoin":"1"}`: "versoin",
	} {
		a := e.refused(400, "invalid_request_body", request{method: "PUT", path: "/v1/hosts/update-setting", key: e.as(app), body: body})
		if a.details()[field] == nil {
			t.Errorf("%s: %s; want a problem at %s", body, &a, field)
		}
	}
	e.refused(403, "forbidden", request{method: "PUT", path: "/v1/hosts/update-setting", key: e.newKey(app, "hosts.read"), body: `{"mode":"paused"}`})
}

// TestMinimumProtocol: a minimum above what the gateway speaks would make every
// runner outdated, so it is refused at the start; an announced one begins by
// itself and is told of before.
//
// contract: R-03 R-10
// lesson 36
func TestMinimumProtocol(t *testing.T) {
	date := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	e := sqliteGateway(t, func(o *gateway.Options) { o.Protocol = fleet.Protocol{Current: 2, Minimum: 1, Next: 2, From: date} })
	k := e.newKey(e.newApp("a"), "hosts.ingest", "hosts.read")
	look := func() api.HostDetail {
		get[api.HeartbeatHost](e, 200, heartbeat(k, beat("h")))
		return get[api.HostDetail](e, 200, request{method: "GET", path: "/v1/hosts/h", key: k})
	}
	if h := look(); h.Status != "ok" || h.Notice == nil || !h.Notice.At.Equal(date) || !strings.Contains(h.Notice.Message, "2026-03-02") {
		t.Errorf("before the date: %s %+v", h.Status, h.Notice)
	}
	e.clock.step(date.Sub(e.clock.now()) - time.Second)
	if h := look(); h.Status != "ok" {
		t.Errorf("a second before the date: %s", h.Status)
	}
	e.clock.step(time.Second)
	if h := look(); h.Status != "outdated" || h.StatusReason == nil || h.Notice == nil {
		t.Errorf("on the date: %+v", h)
	}
	p := get[api.Capabilities](e, 200, request{method: "GET", path: "/v1/capabilities"}).RunnerProtocol
	if p.Current != 2 || p.Minimum != 2 || p.NextMinimum != nil {
		t.Errorf("capabilities: %+v", p)
	}
	for _, p := range []fleet.Protocol{{Current: 1, Minimum: 2}, {Current: 1, Minimum: 0}, {Current: 1, Minimum: -1}, {Current: 2, Minimum: 1, Next: 3, From: date}, {Current: 2, Minimum: 2, Next: 2, From: date}, {Current: 2, Minimum: 1, Next: 2}} {
		if _, err := gateway.New(gateway.Options{Dir: t.TempDir(), Protocol: p}); err == nil {
			t.Errorf("%+v was taken", p)
		}
	}
}
