package server_test

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
)

// worker is a host that asks for work, for a test.
type worker struct {
	*gw
	key  key
	host string
}

func (e *gw) newWorker(app, host string, changes ...any) *worker {
	e.t.Helper()
	w := &worker{e, e.newRunner(app, host), host}
	w.beat(changes...)
	return w
}

func (w *worker) beat(changes ...any) {
	w.t.Helper()
	get[api.HeartbeatHost](w.gw, 200, heartbeat(w.key, beat(w.host, changes...)))
}

func (w *worker) claims(body map[string]any) request {
	b := map[string]any{"host": w.host}
	for k, v := range body {
		b[k] = v
	}
	return request{method: "POST", path: "/v1/work/claims", key: w.key, body: b}
}

func (w *worker) claim() *api.ClaimedWork {
	w.t.Helper()
	return get[*api.ClaimedWork](w.gw, 200, w.claims(nil))
}

// says is a later word of the host about a job.
func (w *worker) says(verb string, c *api.ClaimedWork, more ...any) request {
	b := map[string]any{"host": w.host, "leaseEpoch": c.LeaseEpoch}
	for i := 0; i < len(more); i += 2 {
		b[more[i].(string)] = more[i+1]
	}
	return request{method: "POST", path: "/v1/work/" + c.ID + "/" + verb, key: w.key, body: b}
}

func (e *gw) queue(app, body string) api.Work {
	e.t.Helper()
	if e.clock != nil {
		e.clock.step(time.Microsecond) // jobs of one moment have no order
	}
	return get[api.Work](e, 201, request{method: "POST", path: "/v1/work", key: e.as(app), body: body})
}

func (e *gw) work(app, id string) api.Work {
	e.t.Helper()
	return get[api.Work](e, 200, request{method: "GET", path: "/v1/work/" + id, key: e.as(app)})
}

// TestWorkLife follows a job from the queue to its end.
//
// contract: E-06
// lesson 38
func TestWorkLife(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	w := e.newWorker(app, "h")
	if c := w.claim(); c != nil {
		t.Fatalf("work from an empty queue: %+v", c)
	}
	j := e.queue(app, `{"name":"build","command":["make","-j"," "],"env":{"TOKEN":"s3cret"},"image":"debian","timeoutSeconds":600,"memoryBytes":5,"diskBytes":6,"maxAttempts":2}`)
	if j.State != "queued" || !slices.Equal(j.EnvNames, []string{"TOKEN"}) || j.Host != nil || j.Attempt != 0 {
		t.Errorf("queued: %+v", j)
	}
	c := w.claim()
	if c == nil || c.ID != j.ID || !slices.Equal(c.Command, []string{"make", "-j", " "}) || c.Env["TOKEN"] != "s3cret" || c.Image != "debian" || c.TimeoutSeconds != 600 || c.MemoryBytes != 5 || c.DiskBytes != 6 ||
		c.LeaseEpoch != 1 || c.LeaseSeconds != 60 || c.RenewSeconds != 20 || c.Attempt != 1 || c.MaxAttempts != 2 {
		t.Fatalf("claimed: %+v", c)
	}
	for _, path := range []string{"/v1/work", "/v1/work/" + j.ID} {
		if a := e.do(request{method: "GET", path: path, key: e.as(app)}); bytes.Contains(a.body, []byte("s3cret")) {
			t.Errorf("%s shows the value of a variable: %s", path, &a)
		}
	}
	e.clock.step(20 * time.Second)
	if r := get[api.RenewedWork](e, 200, w.says("renew", c)); r.Cancel || r.LeaseSeconds != 60 {
		t.Errorf("renewed: %+v", r)
	}
	now := e.work(app, j.ID)
	if now.State != "running" || *now.Host != "h" || !now.AliveAt.Equal(e.clock.now()) || !now.ProgressAt.Equal(e.clock.now().Add(-20*time.Second)) {
		t.Errorf("alive, not getting on: %+v", now)
	}
	if h := get[api.HostDetail](e, 200, request{method: "GET", path: "/v1/hosts/h", key: e.as(app)}); h.WorkHeld != 1 {
		t.Errorf("the host holds %d jobs", h.WorkHeld)
	}
	e.clock.step(5 * time.Second)
	if p := get[api.WorkLogPosition](e, 200, w.says("logs", c, "offset", 0, "data", []byte("hel"))); p.Next != 3 || p.Truncated {
		t.Errorf("log: %+v", p)
	}
	get[api.WorkLogPosition](e, 200, w.says("logs", c, "offset", 0, "data", []byte("hel")))
	get[api.WorkLogPosition](e, 200, w.says("logs", c, "offset", 1, "data", []byte("ello\x00\xff")))
	e.refused(409, "log_gap", w.says("logs", c, "offset", 8, "data", []byte("x")))
	log := get[api.WorkLog](e, 200, request{method: "GET", path: "/v1/work/" + j.ID + "/logs", key: e.as(app)})
	if string(log.Data) != "hello\x00\xff" || log.Next != 7 || log.End {
		t.Errorf("log: %+v", log)
	}
	done := get[api.Work](e, 200, w.says("complete", c, "exitCode", 0))
	if done.State != "succeeded" || *done.ExitCode != 0 || done.FinishedAt == nil || done.LeaseUntil != nil || !done.ProgressAt.Equal(e.clock.now()) {
		t.Errorf("done: %+v", done)
	}
	log = get[api.WorkLog](e, 200, request{method: "GET", path: "/v1/work/" + j.ID + "/logs?offset=4", key: e.as(app)})
	if string(log.Data) != "o\x00\xff" || !log.End || log.Attempt != 1 {
		t.Errorf("the end of the log: %+v", log)
	}
	for _, verb := range []request{w.says("renew", c), w.says("complete", c, "exitCode", 1), w.says("fail", c, "message", "m"), w.says("logs", c, "offset", 7, "data", []byte("x"))} {
		e.refused(409, "lease_lost", verb)
	}
	e.refused(409, "work_finished", request{method: "POST", path: "/v1/work/" + j.ID + "/cancel", key: e.as(app)})
	if list := get[[]api.Work](e, 200, request{method: "GET", path: "/v1/work?state=succeeded", key: e.as(app)}); len(list) != 1 {
		t.Errorf("list: %+v", list)
	}
	e.refused(400, "invalid_request_query", request{method: "GET", path: "/v1/work?state=done", key: e.as(app)})
}

// TestWorkGoesOnlyWhereItMay: each thing that is in the way has its code.
//
// contract: R-10 R-20
// lesson 36
// lesson 39
// lesson 40
func TestWorkGoesOnlyWhereItMay(t *testing.T) {
	e := sqliteGateway(t, func(o *gateway.Options) { o.Protocol = fleet.Protocol{Current: 2, Minimum: 1} })
	app := e.newApp("a")
	e.queue(app, `{"command":["x"]}`)
	w := &worker{e, e.newRunner(app, "h"), "h"}
	e.refused(409, "host_unknown", w.claims(nil))
	w.beat("runnerProtocol", 0)
	if a := e.refused(409, "host_outdated", w.claims(nil)); !strings.Contains(a.message(), "protocol 0") {
		t.Errorf("no reason: %s", a.message())
	}
	w.beat("blocked", map[string]any{"reason": "no /dev/kvm"})
	if a := e.refused(409, "host_blocked", w.claims(nil)); !strings.Contains(a.message(), "no /dev/kvm") {
		t.Errorf("no reason: %s", a.message())
	}
	w.beat("lowDisk", map[string]any{"free": 1, "needed": 2})
	e.refused(409, "host_low_disk", w.claims(nil))
	w.beat()
	e.clock.step(90*time.Second + time.Microsecond)
	e.refused(409, "host_stale", w.claims(nil))
	w.beat("workRequest", map[string]any{"ok": false, "code": "host_stale", "message": "m"}) // a refusal of before is no reason
	e.clock.step(90 * time.Second)
	other := w.claims(map[string]any{"host": "other"})
	e.refused(403, "forbidden", other)
	if c := w.claim(); c == nil {
		t.Error("no work for a host that may have it")
	}
	// A plain key speaks for any host of its app.
	plain := w.claims(nil)
	plain.key = e.newKey(app, "work.claim")
	get[*api.ClaimedWork](e, 200, plain)
}

// TestSlotsAndRoom: no more jobs than slots, none that does not fit.
func TestSlotsAndRoom(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	w := e.newWorker(app, "h", "slotsTotal", 2, "slotsUsed", 9)
	e.queue(app, `{"command":["big"],"memoryBytes":101,"diskBytes":1}`)
	for range 3 {
		e.queue(app, `{"command":["small"],"memoryBytes":100,"diskBytes":10}`)
	}
	room := map[string]any{"memoryBytes": 100, "diskBytes": 10}
	for i := range 3 {
		c := get[*api.ClaimedWork](e, 200, w.claims(room))
		if (c == nil) != (i == 2) || c != nil && c.Command[0] != "small" {
			t.Errorf("claim %d: %+v", i, c)
		}
	}
	w.beat("slotsTotal", 3)
	if c := get[*api.ClaimedWork](e, 200, w.claims(map[string]any{"memoryBytes": 100, "diskBytes": 9})); c != nil {
		t.Errorf("a job that needs more disk: %+v", c)
	}
	if c := w.claim(); c == nil || c.Command[0] != "big" {
		t.Errorf("no bound was named: %+v", c)
	}
}

// TestLateResults: a lease that ended is over, whoever comes late.
//
// lesson 38
// lesson 39
func TestLateResults(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	slow, quick := e.newWorker(app, "slow"), e.newWorker(app, "quick")
	j := e.queue(app, `{"command":["x"],"maxAttempts":2}`)
	first := slow.claim()
	e.clock.step(60*time.Second - time.Microsecond)
	get[api.RenewedWork](e, 200, slow.says("renew", first))
	e.clock.step(60 * time.Second)
	e.refused(409, "lease_lost", slow.says("renew", first))
	quick.beat()
	second := quick.claim()
	if second == nil || second.ID != j.ID || second.LeaseEpoch != 2 || second.Attempt != 2 {
		t.Fatalf("the job did not come back: %+v", second)
	}
	for _, late := range []request{slow.says("complete", first, "exitCode", 0), slow.says("fail", first, "message", "m"), slow.says("logs", first, "offset", 0, "data", []byte("late")), slow.says("complete", second, "exitCode", 0)} {
		e.refused(409, "lease_lost", late)
	}
	foreign := slow.says("complete", second, "exitCode", 0, "host", "quick")
	e.refused(403, "forbidden", foreign)
	e.clock.step(61 * time.Second)
	if err := e.gateway.ExpireLeases(t.Context()); err != nil {
		t.Fatal(err)
	}
	if over := e.work(app, j.ID); over.State != "failed" || !strings.Contains(*over.Message, `attempt 2 of 2: host "quick" did not renew`) {
		t.Errorf("out of attempts: %+v", over)
	}
}

func TestFailAndCancel(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	w := e.newWorker(app, "h")
	cancel := func(id string) api.Work {
		return get[api.Work](e, 200, request{method: "POST", path: "/v1/work/" + id + "/cancel", key: e.as(app)})
	}
	j := e.queue(app, `{"command":["x"],"maxAttempts":2}`)
	if r := get[api.Work](e, 200, w.says("fail", w.claim(), "message", "no image")); r.State != "queued" || r.Attempt != 1 || !strings.Contains(*r.Message, "no image") {
		t.Errorf("failed once: %+v", r)
	}
	c := w.claim()
	if r := cancel(j.ID); r.State != "cancelling" {
		t.Errorf("cancelled while it runs: %+v", r)
	}
	cancel(j.ID) // again is no error
	if r := get[api.RenewedWork](e, 200, w.says("renew", c)); !r.Cancel {
		t.Errorf("the host is not told: %+v", r)
	}
	if r := get[api.Work](e, 200, w.says("complete", c, "exitCode", 143)); r.State != "cancelled" || *r.ExitCode != 143 {
		t.Errorf("stopped: %+v", r)
	}
	j = e.queue(app, `{"command":["x"]}`)
	if r := cancel(j.ID); r.State != "cancelled" {
		t.Errorf("cancelled in the queue: %+v", r)
	}
	if c := w.claim(); c != nil {
		t.Errorf("a cancelled job was given out: %+v", c)
	}
	e.queue(app, `{"command":["x"]}`)
	if r := get[api.Work](e, 200, w.says("fail", w.claim(), "message", "m", "retry", false)); r.State != "failed" {
		t.Errorf("not to be tried again: %+v", r)
	}
	e.queue(app, `{"command":["x"]}`)
	if r := get[api.Work](e, 200, w.says("complete", w.claim(), "exitCode", 7)); r.State != "failed" || *r.ExitCode != 7 {
		t.Errorf("exit code 7: %+v", r)
	}
}

// TestFairOrder: whoever queues a thousand jobs does not keep out who queues one.
func TestFairOrder(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	w := e.newWorker(app, "h", "slotsTotal", 100)
	busy, modest := e.newKey(app, "work.insert"), e.newKey(app, "work.insert")
	put := func(k key, name string) {
		get[api.Work](e, 201, request{method: "POST", path: "/v1/work", key: k, body: fmt.Sprintf(`{"name":%q,"command":["x"]}`, name)})
	}
	for i := range 5 {
		put(busy, fmt.Sprint("busy", i))
		e.clock.step(time.Second)
	}
	put(modest, "modest0")
	e.clock.step(time.Second)
	put(modest, "modest1")
	var got []string
	for c := w.claim(); c != nil; c = w.claim() {
		got = append(got, c.Name)
	}
	if want := []string{"busy0", "modest0", "busy1", "modest1", "busy2", "busy3", "busy4"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// TestClaimAgain: a claim whose answer was lost is asked again with its
// Idempotency-Key and gets the same job.
//
// contract: E-10 R-24
func TestClaimAgain(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	w := e.newWorker(app, "h")
	e.queue(app, `{"command":["x"]}`)
	e.queue(app, `{"command":["y"]}`)
	r := w.claims(nil)
	r.header = http.Header{"Idempotency-Key": {"poll 1"}}
	first, again := get[*api.ClaimedWork](e, 200, r), get[*api.ClaimedWork](e, 200, r)
	if first == nil || again == nil || first.ID != again.ID || first.LeaseEpoch != again.LeaseEpoch {
		t.Errorf("%+v, then %+v", first, again)
	}
	if c := w.claim(); c == nil || c.ID == first.ID {
		t.Errorf("the next claim: %+v", c)
	}
}

// TestLogBound: a log that is full takes no more and says so.
//
// lesson 40
func TestLogBound(t *testing.T) {
	e := sqliteGateway(t, nil)
	app := e.newApp("a")
	w := e.newWorker(app, "h")
	e.queue(app, `{"command":["x"]}`)
	c := w.claim()
	chunk := bytes.Repeat([]byte("0123456789abcdef"), fleet.MaxLogChunk/16)
	n := 0
	for ; ; n += len(chunk) {
		p := get[api.WorkLogPosition](e, 200, w.says("logs", c, "offset", n, "data", chunk))
		if p.Truncated {
			n = int(p.Next)
			break
		}
	}
	if p := get[api.WorkLogPosition](e, 200, w.says("logs", c, "offset", n+5, "data", []byte("x"))); !p.Truncated || p.Next != fleet.MaxLogBytes || n != fleet.MaxLogBytes {
		t.Errorf("a full log: %+v, %d bytes", p, n)
	}
	e.refused(400, "invalid_request_body", w.says("logs", c, "offset", 0, "data", append(chunk, 'x')))
	var all []byte
	for {
		l := get[api.WorkLog](e, 200, request{method: "GET", path: fmt.Sprintf("/v1/work/%s/logs?offset=%d", c.ID, len(all)), key: e.as(app)})
		if len(l.Data) == 0 {
			break
		}
		all = append(all, l.Data...)
	}
	if !bytes.Equal(all, bytes.Repeat(chunk, fleet.MaxLogBytes/len(chunk))) {
		t.Errorf("read %d bytes that are not the log", len(all))
	}
}
