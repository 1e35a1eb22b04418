package runner

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
)

const (
	testApp  = "11111111-1111-4111-8111-111111111111"
	testKey  = "22222222-2222-4222-8222-222222222222"
	testHost = "builder-1"
)

// fakeGateway answers as the contract says, in this process and on its own clock,
// so that time in a bubble passes for both ends.
type fakeGateway struct {
	t      *testing.T
	public ed25519.PublicKey
	skew   time.Duration // of its clock against this machine's
	dated  bool          // tell the time in the Date header only, as any gateway does

	mu       sync.Mutex
	answer   func(path string) *http.Response // nil, or an answer in place of the usual one
	lose     func(path string) bool           // the answer of what was done is lost
	nonces   map[string]bool
	beats    []api.HostHeartbeat
	beatAt   []time.Time
	jobs     []*fleet.Job
	logs     map[string][]byte
	keys     map[string]api.ClaimAnswer // Idempotency-Key
	requests map[string]int             // by path, accepted or not
}

func newFakeGateway(t *testing.T) *fakeGateway {
	return &fakeGateway{t: t, nonces: map[string]bool{}, logs: map[string][]byte{}, keys: map[string]api.ClaimAnswer{}, requests: map[string]int{}}
}

func (g *fakeGateway) now() time.Time { return time.Now().Add(g.skew) }

// RoundTrip makes it the network too.
func (g *fakeGateway) RoundTrip(r *http.Request) (*http.Response, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	g.requests[r.URL.Path]++
	if g.answer != nil {
		if resp := g.answer(r.URL.Path); resp != nil {
			if resp.StatusCode == 0 {
				return nil, errors.New("connection refused")
			}
			return resp, nil
		}
	}
	w := httptest.NewRecorder()
	g.serve(w, r, body)
	if g.lose != nil && g.lose(r.URL.Path) {
		return nil, errors.New("connection reset")
	}
	resp := w.Result()
	resp.Header.Set("Date", g.now().UTC().Format(http.TimeFormat))
	return resp, nil
}

func refuse(status int, code, message string, details any, header ...string) *http.Response {
	w := httptest.NewRecorder()
	for i := 0; i+1 < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.GatewayError{Error: api.GatewayErrorBody{Code: code, Message: message, Details: details}})
	return w.Result()
}

// lost is no answer at all.
var noAnswer = &http.Response{}

func (g *fakeGateway) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	if r.Header.Get("X-Outerlayer-App-Id") != testApp || r.Header.Get("Authorization") != "Bearer sk_outerlayer_test" {
		copyAnswer(w, refuse(401, "unauthorized", "no", nil))
		return
	}
	policy := httpsig.Policy{Profile: httpsig.Runner, Skew: 5 * time.Minute, Now: g.now}
	result, err := policy.Verify(httpsig.FromRequest(r), body, func(string) (ed25519.PublicKey, error) { return g.public, nil })
	switch {
	case errors.Is(err, httpsig.ErrStale):
		var details any
		if !g.dated {
			details = api.ClockDetails{ServerTime: g.now()}
		}
		copyAnswer(w, refuse(401, codeStale, "stale", details))
		return
	case err != nil || result.KeyID != testKey:
		g.t.Errorf("%s: signature: %v, key %q", r.URL.Path, err, result.KeyID)
		copyAnswer(w, refuse(401, "runner_key_signature_invalid", "invalid", nil))
		return
	case g.nonces[result.Nonce]:
		g.t.Errorf("%s: a nonce was used twice", r.URL.Path)
	}
	g.nonces[result.Nonce] = true
	out, err := g.verb(r, body)
	if err != nil {
		var e *refusal
		errors.As(err, &e)
		copyAnswer(w, refuse(e.Status, e.Code, e.Message, nil))
		return
	}
	_ = json.NewEncoder(w).Encode(out)
}

func copyAnswer(w http.ResponseWriter, resp *http.Response) {
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

func (g *fakeGateway) verb(r *http.Request, body []byte) (any, error) {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	switch {
	case r.URL.Path == "/v1/hosts/heartbeat":
		if _, err := fleet.ParseHeartbeat(body); err != nil {
			g.t.Errorf("heartbeat %s: %v", body, err)
		}
		var b api.HostHeartbeat
		_ = json.Unmarshal(body, &b)
		g.beats, g.beatAt = append(g.beats, b), append(g.beatAt, time.Now())
		return api.Data[api.HeartbeatHost]{Data: api.HeartbeatHost{RunnerHost: api.RunnerHost{Host: b.Host, Status: "ok"}, RunnerVersion: "outcrop/9"}}, nil
	case r.URL.Path == "/v1/work/claims":
		return g.claim(r.Header.Get("Idempotency-Key"), body)
	}
	return g.work(path[1], path[2], body)
}

func (g *fakeGateway) claim(key string, body []byte) (any, error) {
	if _, err := fleet.ParseClaim(body); err != nil {
		g.t.Errorf("claim %s: %v", body, err)
	}
	if out, ok := g.keys[key]; ok {
		return out, nil
	}
	var out api.ClaimAnswer
	for _, j := range g.jobs {
		if j.Expire(g.now()); j.State == fleet.JobQueued && out.Data == nil {
			j.Claim(testHost, g.now())
			out.Data = &api.ClaimedWork{ID: j.ID, Command: j.Spec.Command, Env: j.Spec.Env, TimeoutSeconds: j.Spec.TimeoutSeconds, Attempt: j.Attempt,
				LeaseEpoch: j.Epoch, LeaseSeconds: 60, RenewSeconds: 20}
		}
	}
	g.keys[key] = out
	return out, nil
}

// work has the fleet's own rules, so that a lease ends here as it does there.
func (g *fakeGateway) work(id, verb string, body []byte) (any, error) {
	var in struct {
		LeaseEpoch, ExitCode, Offset int64
		Data                         []byte
		Message                      string
		Retry                        *bool
		Progressed                   bool
	}
	if err := json.Unmarshal(body, &in); err != nil {
		g.t.Errorf("%s %s: %v", verb, body, err)
	}
	j := g.job(id)
	j.Expire(g.now())
	if err := j.Held(testHost, in.LeaseEpoch, g.now()); err != nil {
		return nil, &refusal{Status: 409, Code: codeLost, Message: err.Error()}
	}
	switch verb {
	case "renew":
		j.Renew(in.Progressed, g.now())
		return api.Data[api.RenewedWork]{Data: api.RenewedWork{LeaseSeconds: int64(j.LeaseUntil.Sub(g.now()) / time.Second), RenewSeconds: 20, Cancel: j.State == fleet.JobCancelling}}, nil
	case "complete":
		j.Complete(in.ExitCode, in.Message, g.now())
	case "fail":
		j.Fail(in.Message, in.Retry == nil || *in.Retry, g.now())
	case "logs":
		have := int64(len(g.logs[id]))
		if in.Offset > have {
			g.t.Errorf("a gap in the log: %d after %d", in.Offset, have)
		}
		g.logs[id] = append(g.logs[id], in.Data[min(have-in.Offset, int64(len(in.Data))):]...)
		return api.Data[api.WorkLogPosition]{Data: api.WorkLogPosition{Next: int64(len(g.logs[id]))}}, nil
	}
	return api.Data[api.Work]{}, nil
}

func (g *fakeGateway) job(id string) *fleet.Job {
	for _, j := range g.jobs {
		if j.ID == id {
			return j
		}
	}
	g.t.Errorf("there is no job %q", id)
	return &fleet.Job{}
}

// queue adds a job and returns its number.
func (g *fakeGateway) queue(timeout int64, command ...string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := fmt.Sprintf("33333333-3333-4333-8333-%012d", len(g.jobs))
	g.jobs = append(g.jobs, &fleet.Job{ID: id, State: fleet.JobQueued, Spec: fleet.JobSpec{Command: command, TimeoutSeconds: timeout, MaxAttempts: 3}})
	return id
}

// see looks at a job.
func (g *fakeGateway) see(id string) fleet.Job {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *g.job(id)
}

func (g *fakeGateway) set(answer func(path string) *http.Response) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = answer
}

func (g *fakeGateway) lastBeat() api.HostHeartbeat {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.beats) == 0 {
		return api.HostHeartbeat{}
	}
	return g.beats[len(g.beats)-1]
}

// seen are the accepted heartbeats so far, with their times.
func (g *fakeGateway) seen() ([]api.HostHeartbeat, []time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.beats), slices.Clone(g.beatAt)
}

// accepted is how many there are.
func (g *fakeGateway) accepted() int {
	beats, _ := g.seen()
	return len(beats)
}

// log is the log of a job.
func (g *fakeGateway) log(id string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return string(g.logs[id])
}

// lastRequest is the newest outcome of a request for work that a beat told, from
// the given beat on.
func (g *fakeGateway) lastRequest(from int) (w *api.WorkRequest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, b := range g.beats[from:] {
		if b.WorkRequest != nil {
			w = b.WorkRequest
		}
	}
	return w
}

func (g *fakeGateway) count(path string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests[path]
}

// fakeEngine runs "jobs" that are a Go function: what it writes and when it ends.
type fakeEngine struct {
	mu     sync.Mutex
	reason string
	play   func(ctx context.Context, j *Job) (int64, error)
	causes []error // of ended jobs
	now    int     // running
	most   int
	left   []string // keys of jobs of an earlier process
}

func (e *fakeEngine) Check(context.Context) string { e.mu.Lock(); defer e.mu.Unlock(); return e.reason }

func (e *fakeEngine) Sweep(context.Context, func(string) bool) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	gone := e.left
	e.left = nil
	return gone, nil
}

func (e *fakeEngine) Run(ctx context.Context, j *Job) (int64, error) {
	e.mu.Lock()
	e.now++
	e.most = max(e.most, e.now)
	e.mu.Unlock()
	exit, err := e.play(ctx, j)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now--
	e.causes = append(e.causes, context.Cause(ctx))
	return exit, err
}

// ends are the causes of the jobs that ended.
func (e *fakeEngine) ends() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.causes)
}

// until plays a job that writes a line every step and ends after n of them.
func until(n int, step time.Duration, exit int64) func(context.Context, *Job) (int64, error) {
	return func(ctx context.Context, j *Job) (int64, error) {
		for i := range n {
			fmt.Fprintf(j.Output, "line %d\n", i)
			if !pause(ctx, step, nil) {
				return 143, nil
			}
		}
		return exit, nil
	}
}

// rig is a runner with a gateway and a machine that a test can break.
type rig struct {
	t      *testing.T
	g      *fakeGateway
	e      *fakeEngine
	cfg    Config
	dir    string
	mu     sync.Mutex
	asleep time.Duration // by which boot is ahead
	room   diskRoom
	logs   bytes.Buffer
	stop   func() // ends the runner and waits
}

func (r *rig) sleep(d time.Duration) { r.mu.Lock(); defer r.mu.Unlock(); r.asleep += d }
func (r *rig) setRoom(d diskRoom)    { r.mu.Lock(); defer r.mu.Unlock(); r.room = d }

// newRig enrols a host; start runs it. Call both within a bubble.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, g: newFakeGateway(t), e: &fakeEngine{play: until(1, time.Second, 0)}, dir: t.TempDir(), room: diskRoom{free: 100 << 30}}
	key, _, err := HostKey(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	r.g.public = key.Public().(ed25519.PublicKey)
	id := Identity{Server: "http://gateway.test", AppID: testApp, Host: testHost, KeyID: testKey}
	if err := errors.Join(writeOwn(filepath.Join(r.dir, fileIdentity), mustJSON(id)), writeOwn(filepath.Join(r.dir, fileSecret), []byte("sk_outerlayer_test\n"))); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	mono := func() time.Duration { return time.Since(begun) }
	r.cfg = Config{Dir: r.dir, Version: "1.2.3", Engine: r.e, Slots: 1, Poll: 30 * time.Second, SlotMemory: 1 << 30, DiskNeeded: 2 << 30,
		StopGrace: time.Minute, Transport: r.g, Log: slog.NewTextHandler(&lockedBuffer{r: r}, nil),
		clock: &clock{mono: mono, boot: func() time.Duration { r.mu.Lock(); defer r.mu.Unlock(); return mono() + r.asleep }},
		probes: probes{disk: func(string) (diskRoom, error) { r.mu.Lock(); defer r.mu.Unlock(); return r.room, nil },
			memory: func() (int64, error) { return 8 << 30, nil }, kvm: func(context.Context) error { return nil }},
	}
	return r
}

type lockedBuffer struct{ r *rig }

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	return b.r.logs.Write(p)
}

func (r *rig) log() string { r.mu.Lock(); defer r.mu.Unlock(); return r.logs.String() }

func (r *rig) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, r.cfg) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Errorf("run: %v", err)
			}
		})
	}
	synctest.Wait()
}

// bubble runs a test with virtual time and a started runner.
func bubble(t *testing.T, prepare func(*rig), test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		if prepare != nil {
			prepare(r)
		}
		r.start()
		defer r.stop()
		test(t, r)
	})
}

// pass lets time pass for all.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
