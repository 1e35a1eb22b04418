package runner

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

const heartbeatPath = "/v1/hosts/heartbeat"

// contract: R-01 R-02 R-03 R-04
func TestHeartbeats(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		pass(0)
		protocol := int64(1)
		beats, _ := r.g.seen()
		first := beats[0]
		if first.WorkRequest != nil || first.Host != testHost || first.CLIVersion != "outcrop/1.2.3" || *first.RunnerProtocol != protocol ||
			first.PollSeconds != 30 || first.SlotsUsed != 0 || first.SlotsTotal != 1 || first.LowDisk != nil || first.LastUpdate != nil {
			t.Errorf("the first beat: %+v", first)
		}
		pass(10 * time.Minute)
		if b, w := r.g.lastBeat(), r.g.lastRequest(0); b.Blocked != nil || w == nil || !w.OK {
			t.Errorf("a later beat: %+v, request %+v", b, w)
		}
		_, times := r.g.seen()
		for i := 3; i < len(times); i++ {
			if gap := times[i].Sub(times[i-1]); gap < 27*time.Second || gap > 33*time.Second {
				t.Errorf("beat %d came after %s", i, gap)
			}
		}
		if n := len(times); n < 18 || n > 25 {
			t.Errorf("%d beats in 10 minutes", n)
		}
	})
}

// workRequest tells each outcome once, and is missing where nothing was asked.
//
// contract: R-04
func TestHeartbeatTellsRequests(t *testing.T) {
	bubble(t, func(r *rig) { r.e.play = until(10, time.Minute, 0) }, func(t *testing.T, r *rig) {
		r.g.set(func(path string) *http.Response {
			if path == "/v1/work/claims" {
				return refuse(409, "host_stale", strings.Repeat("long ", 200), nil)
			}
			return nil
		})
		pass(2 * time.Minute)
		w := r.g.lastRequest(0)
		if w == nil || w.OK || w.Code != "host_stale" || len([]rune(w.Message)) != 500 {
			t.Errorf("a refused request: %+v", w)
		}
		r.g.set(func(path string) *http.Response {
			if path == "/v1/work/claims" {
				return noAnswer
			}
			return nil
		})
		pass(time.Minute) // the last refusal is told
		told := r.g.accepted()
		pass(3 * time.Minute)
		if w := r.g.lastRequest(told); w != nil {
			t.Errorf("a request without an answer is no word of the platform: %+v", w)
		}
		r.g.set(nil)
		r.g.queue(3600, "build")
		pass(3 * time.Minute)
		if b := r.g.lastBeat(); b.WorkRequest != nil || b.SlotsUsed != 1 {
			t.Errorf("with all slots taken: %+v, used %d", b.WorkRequest, b.SlotsUsed)
		}
	})
}

// A host that cannot work says why, and says so no more when it can again.
//
// contract: R-06
// lesson 40
func TestHeartbeatTellsWhatIsInTheWay(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		pass(time.Minute)
		r.setRoom(diskRoom{free: 1 << 30})
		pass(time.Minute)
		if d := r.g.lastBeat().LowDisk; d == nil || *d != (api.HostLowDisk{Free: 1 << 30, Needed: 2 << 30}) {
			t.Errorf("low disk: %+v", d)
		}
		claims := r.g.count("/v1/work/claims")
		id := r.g.queue(60, "build")
		pass(5 * time.Minute)
		if n := r.g.count("/v1/work/claims"); n != claims {
			t.Errorf("%d requests for work on a full disk", n-claims)
		}
		r.setRoom(diskRoom{free: 50 << 30, inodes: 1 << 20, spare: 100})
		pass(time.Minute)
		if b := r.g.lastBeat(); b.LowDisk != nil || b.Blocked == nil || !strings.Contains(b.Blocked.Reason, "inodes") {
			t.Errorf("few inodes: %+v %+v", b.LowDisk, b.Blocked)
		}
		r.setRoom(diskRoom{free: 50 << 30})
		pass(2 * time.Minute)
		if b := r.g.lastBeat(); b.Blocked != nil || b.LowDisk != nil {
			t.Errorf("with room again: %+v", b)
		}
		if j := r.g.see(id); j.State != "succeeded" {
			t.Errorf("the job is %s", j.State)
		}
	})
}

// contract: R-06
func TestChecks(t *testing.T) {
	file := func(text string, mode os.FileMode) func(r *rig) {
		return func(r *rig) {
			path := filepath.Join(r.dir, "credential")
			if err := os.WriteFile(path, []byte(text), mode); err != nil {
				r.t.Fatal(err)
			}
			r.cfg.Credentials = map[string]string{"AGENT_KEY": path}
		}
	}
	for _, tc := range []struct {
		name    string
		prepare func(r *rig)
		want    string // in the reason; empty: fit
	}{
		{"fit", nil, ""},
		{"KVM optional", func(r *rig) { r.cfg.probes.kvm = func(context.Context) error { return errors.New("none") } }, ""},
		{"no KVM", func(r *rig) {
			r.cfg.RequireKVM, r.cfg.probes.kvm = true, func(context.Context) error { return errors.New("there is no /dev/kvm") }
		}, "no /dev/kvm"},
		{"memory just fits", func(r *rig) { r.cfg.Slots = 8 }, ""},
		{"memory does not fit", func(r *rig) { r.cfg.Slots = 9 }, "do not fit"},
		{"credential", file("sk-real", 0o600), ""},
		{"credential missing", func(r *rig) { r.cfg.Credentials = map[string]string{"AGENT_KEY": r.dir + "/none"} }, "AGENT_KEY is missing"},
		{"credential empty", file(" \n", 0o600), "is empty"},
		{"credential open to others", file("sk-real", 0o644), "chmod 600"},
		{"credential not filled in", file("<your key>\n", 0o600), "placeholder"},
		{"command", func(r *rig) { r.cfg.Command = []string{"agent", "--yes"} }, ""},
		{"command not filled in", func(r *rig) { r.cfg.Command = []string{"/path/to/agent"} }, `"/path/to/agent"`},
		{"engine", func(r *rig) { r.e.reason = "the image is gone" }, "the image is gone"},
		{"disk cannot be read", func(r *rig) {
			r.cfg.probes.disk = func(string) (diskRoom, error) { return diskRoom{}, errors.New("I/O error") }
		}, "I/O error"},
		{"a check hangs", func(r *rig) {
			calls := 0
			r.cfg.probes.disk = func(string) (diskRoom, error) {
				if calls++; calls > 1 {
					<-time.After(time.Hour)
				}
				return r.room, nil
			}
		}, "have not finished for"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, tc.prepare, func(t *testing.T, r *rig) {
				pass(5 * time.Minute)
				b := r.g.lastBeat()
				switch {
				case tc.want == "" && b.Blocked != nil:
					t.Errorf("blocked: %q", b.Blocked.Reason)
				case tc.want != "" && (b.Blocked == nil || !strings.Contains(b.Blocked.Reason, tc.want)):
					t.Errorf("%+v; want a reason with %q", b.Blocked, tc.want)
				}
				if n := r.g.accepted(); n < 8 {
					t.Errorf("%d beats: the check held them up", n)
				}
				if strings.Contains(r.log(), "sk-real") {
					t.Error("the log has a credential")
				}
			})
		})
	}
}

// Each attempt is signed anew (the gateway of the test refuses a nonce seen twice),
// waits longer than the one before, and not less than the gateway asks for.
//
// contract: R-21 R-24 E-07
// lesson 2
func TestHeartbeatRetries(t *testing.T) {
	for _, tc := range []struct {
		name        string
		answer      func() *http.Response
		least, most int // heartbeats sent in five minutes
	}{
		{"no answer", func() *http.Response { return noAnswer }, 10, 25},
		{"busy", func() *http.Response { return refuse(503, "internal", "busy", nil) }, 10, 25},
		{"a proxy's page", func() *http.Response { return &http.Response{StatusCode: 502, Body: http.NoBody} }, 10, 25},
		{"rate limited", func() *http.Response { return refuse(429, "rate_limited", "slow", nil, "Retry-After", "120") }, 2, 4},
		{"revoked", func() *http.Response { return refuse(401, "unauthorized", "no", nil) }, 10, 25},
		{"not understood", func() *http.Response { return refuse(400, "invalid_request_body", "no", nil) }, 8, 14},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, r *rig) {
				pass(time.Minute)
				r.g.set(func(path string) *http.Response {
					if path != heartbeatPath {
						return nil
					}
					return tc.answer()
				})
				before, good := r.g.count(heartbeatPath), r.g.accepted()
				pass(5 * time.Minute)
				if n := r.g.count(heartbeatPath) - before; n < tc.least || n > tc.most {
					t.Errorf("%d attempts; want %d to %d", n, tc.least, tc.most)
				}
				r.g.set(nil)
				pass(3 * time.Minute)
				if r.g.accepted() == good {
					t.Error("no heartbeat came after the trouble")
				}
				if n := strings.Count(r.log(), "a heartbeat failed"); n != 1 {
					t.Errorf("the log tells the same trouble %d times", n)
				}
			})
		})
	}
}

// A wrong clock costs one refused request, whichever way the gateway tells its time.
//
// contract: R-23
// lesson 5
func TestWrongClock(t *testing.T) {
	for _, skew := range []time.Duration{-26 * 365 * 24 * time.Hour, -time.Hour, 6 * time.Minute, 24 * time.Hour} {
		for _, dated := range []bool{false, true} {
			bubble(t, func(r *rig) { r.g.skew, r.g.dated = skew, dated }, func(t *testing.T, r *rig) {
				pass(time.Second)
				if r.g.accepted() == 0 {
					t.Fatalf("%s, dated %t: no heartbeat was accepted", skew, dated)
				}
				pass(10 * time.Minute)
				r.sleep(20 * time.Minute) // the corrected clock sleeps with the machine
				r.g.mu.Lock()
				r.g.skew += 20 * time.Minute
				r.g.mu.Unlock()
				pass(10 * time.Minute)
				// First beat and first check come together, so two may be refused at once.
				if n := strings.Count(r.log(), "clock is off"); n < 1 || n > 2 {
					t.Errorf("%s, dated %t: corrected %d times", skew, dated, n)
				}
			})
		}
	}
}

// contract: R-24
func TestReplayedIsSignedAnew(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		n := 0
		r.g.set(func(path string) *http.Response {
			if n++; n%2 == 1 {
				return refuse(401, codeReplayed, "seen", nil)
			}
			return nil
		})
		before := r.g.accepted()
		pass(3 * time.Minute)
		if r.g.accepted()-before < 4 || strings.Contains(r.log(), "failed") {
			t.Errorf("%d beats, log %s", r.g.accepted()-before, r.log())
		}
	})
}

// lesson 38
func TestSleepIsAResume(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		pass(45 * time.Second)
		before := r.g.accepted()
		r.sleep(8 * time.Hour)
		pass(2 * time.Second)
		if r.g.accepted() == before {
			t.Error("no heartbeat within two seconds of the resume")
		}
		if !strings.Contains(r.log(), "slept") {
			t.Error("the log does not tell of the sleep")
		}
	})
}

// An update by whoever installs the program is told once the gateway has heard it.
//
// contract: R-05
func TestUpdateIsTold(t *testing.T) {
	bubble(t, func(r *rig) {
		if err := os.WriteFile(filepath.Join(r.dir, fileVersion), []byte("outcrop/1.0.0\n"), 0o600); err != nil {
			r.t.Fatal(err)
		}
		r.g.set(func(string) *http.Response { return noAnswer })
	}, func(t *testing.T, r *rig) {
		pass(time.Second)
		r.g.set(nil)
		pass(time.Minute)
		beats, _ := r.g.seen()
		u := beats[0].LastUpdate
		if u == nil || u.From != "outcrop/1.0.0" || u.To != "outcrop/1.2.3" || u.Outcome != "updated" || u.Reason != nil || u.At == nil {
			t.Errorf("the first beat's update: %+v", u)
		}
		for _, b := range beats[1:] {
			if b.LastUpdate != nil {
				t.Errorf("told again: %+v", b.LastUpdate)
			}
		}
		if v := readFile(t, filepath.Join(r.dir, fileVersion)); v != "outcrop/1.2.3\n" {
			t.Errorf("noted version: %q", v)
		}
	})
}

// The last heartbeat says that the runner stops.
func TestStopIsTold(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		pass(time.Minute)
		r.stop()
		if b := r.g.lastBeat(); b.Blocked == nil || !strings.Contains(b.Blocked.Reason, "told to stop") {
			t.Errorf("the last beat: %+v", b.Blocked)
		}
	})
}

func TestOneRunnerPerFolder(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		if err := Run(context.Background(), r.cfg); err == nil || !strings.Contains(err.Error(), "another runner") {
			t.Errorf("a second runner: %v", err)
		}
	})
}

func TestConfigValidate(t *testing.T) {
	good := Config{Slots: 1, Poll: time.Second, SlotMemory: 1}
	for name, change := range map[string]func(*Config){
		"slots": func(c *Config) { c.Slots = 0 }, "poll": func(c *Config) { c.Poll = 1500 * time.Millisecond },
		"long poll": func(c *Config) { c.Poll = 25 * time.Hour }, "memory": func(c *Config) { c.SlotMemory = 0 },
	} {
		c := good
		change(&c)
		if c.validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
}

func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for text, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, " 7 ": 7 * time.Second, "-1": 0, "x": 0, "99999999999": maxRetryAfter,
			time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat): 90 * time.Second} {
			if got := retryAfter(text); got != want {
				t.Errorf("retryAfter(%q) = %s, want %s", text, got, want)
			}
		}
	})
}

func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		err         error
		final, lost bool
	}{
		{errors.New("no answer"), false, false},
		{&refusal{Status: 409, Code: codeLost}, true, true},
		{&refusal{Status: 404, Code: codeNotFound}, true, true},
		{&refusal{Status: 404, Code: "http_404"}, false, false}, // something on the way
		{&refusal{Status: 401, Code: "unauthorized"}, false, false},
		{&refusal{Status: 429, Code: "rate_limited"}, false, false},
		{&refusal{Status: 500, Code: "internal"}, false, false},
		{&refusal{Status: 400, Code: "invalid_request_body"}, true, false},
	} {
		if final(tc.err) != tc.final || lost(tc.err) != tc.lost {
			t.Errorf("%v: final %t, lost %t", tc.err, final(tc.err), lost(tc.err))
		}
	}
	if cut("añb", 2) != "a…" {
		t.Errorf("cut: %q", cut("añb", 2))
	}
}
