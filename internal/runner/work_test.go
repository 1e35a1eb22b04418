package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

// A job's life: claimed, renewed, its output in order, its exit code.
func TestJobRuns(t *testing.T) {
	for _, exit := range []int64{0, 3} {
		bubble(t, func(r *rig) { r.e.play = until(40, 3*time.Second, exit) }, func(t *testing.T, r *rig) {
			id := r.g.queue(600, "build", "--all")
			pass(4 * time.Minute)
			j, want := r.g.see(id), fleet.JobSucceeded
			if exit != 0 {
				want = fleet.JobFailed
			}
			if j.State != want || j.ExitCode == nil || *j.ExitCode != exit || j.Attempt != 1 {
				t.Errorf("state %s, exit %v, attempt %d", j.State, j.ExitCode, j.Attempt)
			}
			var log strings.Builder
			for i := range 40 {
				fmt.Fprintf(&log, "line %d\n", i)
			}
			if got := r.g.log(id); got != log.String() {
				t.Errorf("log %q", got)
			}
			if n := r.g.count("/v1/work/" + id + "/renew"); n < 5 {
				t.Errorf("%d renewals", n)
			}
		})
	}
}

// A host that is alive says of a silent command that it does not get on.
//
// lesson 38
func TestAliveIsNotProgress(t *testing.T) {
	bubble(t, func(r *rig) {
		r.e.play = func(ctx context.Context, j *Job) (int64, error) {
			fmt.Fprintln(j.Output, "one word")
			pause(ctx, 10*time.Minute, nil)
			return 0, nil
		}
	}, func(t *testing.T, r *rig) {
		id := r.g.queue(3600, "stuck")
		pass(9 * time.Minute)
		if j := r.g.see(id); !j.AliveAt.After(r.g.now().Add(-time.Minute)) || j.ProgressAt.After(r.g.now().Add(-7*time.Minute)) {
			t.Errorf("alive %s ago, progress %s ago", r.g.now().Sub(j.AliveAt), r.g.now().Sub(j.ProgressAt))
		}
	})
}

// Heartbeats that fail end no job; a lease that runs out does, within a second, and
// nothing that the job does later is told.
//
// lesson 38
// lesson 3
func TestLease(t *testing.T) {
	t.Run("heartbeats fail", func(t *testing.T) {
		bubble(t, func(r *rig) { r.e.play = until(100, 3*time.Second, 0) }, func(t *testing.T, r *rig) {
			pass(time.Minute)
			id := r.g.queue(600, "build")
			pass(time.Minute)
			r.g.set(func(path string) *http.Response {
				if path == heartbeatPath {
					return noAnswer
				}
				return nil
			})
			pass(10 * time.Minute)
			if j := r.g.see(id); j.State != fleet.JobSucceeded || j.Attempt != 1 {
				t.Errorf("state %s, attempt %d", j.State, j.Attempt)
			}
		})
	})
	t.Run("an outage shorter than the lease", func(t *testing.T) {
		bubble(t, func(r *rig) { r.e.play = until(100, 3*time.Second, 0) }, func(t *testing.T, r *rig) {
			id := r.g.queue(600, "build")
			pass(time.Minute)
			r.g.set(func(string) *http.Response { return noAnswer })
			pass(30 * time.Second)
			r.g.set(nil)
			pass(6 * time.Minute)
			if j := r.g.see(id); j.State != fleet.JobSucceeded || j.Attempt != 1 || len(r.g.log(id)) != len(numbered(100)) {
				t.Errorf("state %s, attempt %d, log of %d bytes", j.State, j.Attempt, len(r.g.log(id)))
			}
		})
	})
	for name, lose := range map[string]func(*rig){
		"no renewal gets through": func(r *rig) { r.g.set(func(string) *http.Response { return noAnswer }) },
		"the machine sleeps":      func(r *rig) { r.sleep(2 * time.Minute) },
		"the gateway took it back": func(r *rig) {
			r.g.set(func(path string) *http.Response {
				if strings.HasSuffix(path, "/renew") {
					return refuse(409, codeLost, "gone", nil)
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) { r.e.play = until(1000, 3*time.Second, 0) }, func(t *testing.T, r *rig) {
				id := r.g.queue(3600, "build")
				pass(65 * time.Second)
				lose(r)
				pass(62 * time.Second)
				causes := r.e.ends()
				if len(causes) != 1 || !errors.Is(causes[0], ErrLeaseLost) {
					t.Errorf("the job's end: %v", causes)
				}
				if n := r.g.count("/v1/work/"+id+"/complete") + r.g.count("/v1/work/"+id+"/fail"); n > 0 {
					t.Errorf("%d late results were sent", n)
				}
			})
		})
	}
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func TestJobEndsEarly(t *testing.T) {
	for _, tc := range []struct {
		name     string
		timeout  int64
		meddle   func(r *rig, id string)
		play     func(context.Context, *Job) (int64, error)
		state    fleet.JobState
		attempts int64
		message  string
	}{
		{"cancelled", 3600, func(r *rig, id string) { r.g.mu.Lock(); defer r.g.mu.Unlock(); _ = r.g.job(id).Cancel(r.g.now()) }, until(10000, time.Second, 0), fleet.JobCancelled, 1, "cancelled while it ran"},
		{"timeout", 90, nil, until(10000, time.Second, 0), fleet.JobFailed, 1, "timeout of 1m30s"},
		{"unfit", 90, nil, func(context.Context, *Job) (int64, error) { return 0, &Unfit{"too large"} }, fleet.JobFailed, 1, "too large"},
		{"the host fails each time", 90, nil, func(context.Context, *Job) (int64, error) { return 0, errors.New("no room") }, fleet.JobFailed, 3, "no room"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(r *rig) { r.e.play = tc.play }, func(t *testing.T, r *rig) {
				id := r.g.queue(tc.timeout, "build")
				pass(time.Minute)
				if tc.meddle != nil {
					tc.meddle(r, id)
				}
				pass(4 * time.Minute)
				if j := r.g.see(id); j.State != tc.state || j.Attempt != tc.attempts || !strings.Contains(j.Message, tc.message) {
					t.Errorf("state %s, attempt %d, message %q", j.State, j.Attempt, j.Message)
				}
			})
		})
	}
}

func TestStop(t *testing.T) {
	t.Run("a job ends within the grace", func(t *testing.T) {
		bubble(t, func(r *rig) { r.e.play = until(10, 4*time.Second, 0) }, func(t *testing.T, r *rig) {
			pass(time.Minute)
			id, waits := r.g.queue(600, "build"), ""
			pass(33 * time.Second)
			waits = r.g.queue(600, "next")
			r.stop()
			if a, b := r.g.see(id), r.g.see(waits); a.State != fleet.JobSucceeded || b.State != fleet.JobQueued || b.Attempt != 0 {
				t.Errorf("%s; %s, attempt %d", a.State, b.State, b.Attempt)
			}
		})
	})
	t.Run("a longer one is handed back", func(t *testing.T) {
		bubble(t, func(r *rig) { r.e.play = until(1000, 4*time.Second, 0) }, func(t *testing.T, r *rig) {
			id := r.g.queue(6000, "build")
			pass(time.Minute)
			begun := time.Now()
			r.stop()
			if took := time.Since(begun); took < r.cfg.StopGrace || took > r.cfg.StopGrace+10*time.Second {
				t.Errorf("it took %s", took)
			}
			if j := r.g.see(id); j.State != fleet.JobQueued || !strings.Contains(j.Message, "the runner was stopped") {
				t.Errorf("state %s, %q", j.State, j.Message)
			}
		})
	})
}

// What an earlier process left is handed back before its lease ends.
func TestLeftoversAreHandedBack(t *testing.T) {
	id := ""
	bubble(t, func(r *rig) {
		id = r.g.queue(600, "build")
		r.g.jobs[0].Claim(testHost, r.g.now())
		r.e.left = []string{id + ".1", "no-job", "../../hosts.1"}
		r.e.play = until(10, time.Second, 0)
	}, func(t *testing.T, r *rig) {
		pass(20 * time.Second)
		if j := r.g.see(id); j.State != fleet.JobSucceeded || j.Attempt != 2 {
			t.Errorf("state %s, attempt %d", j.State, j.Attempt)
		}
	})
}

// All slots are used, none twice, and a free one is filled without a wait.
func TestSlots(t *testing.T) {
	bubble(t, func(r *rig) { r.cfg.Slots = 3; r.e.play = until(5, 2*time.Second, 0) }, func(t *testing.T, r *rig) {
		var ids []string
		for range 12 {
			ids = append(ids, r.g.queue(600, "build"))
		}
		pass(90 * time.Second)
		for _, id := range ids {
			if j := r.g.see(id); j.State != fleet.JobSucceeded || j.Attempt != 1 {
				t.Errorf("job %s is %s", id, j.State)
			}
		}
		r.e.mu.Lock()
		defer r.e.mu.Unlock()
		if r.e.most != 3 {
			t.Errorf("%d jobs at once", r.e.most)
		}
	})
}

// Whatever answer is lost, each job runs once and its log has each byte once.
//
// lesson 21
func TestLostAnswers(t *testing.T) {
	bubble(t, func(r *rig) {
		n := 0
		r.g.lose = func(string) bool { n++; return n%2 == 1 }
		r.e.play = until(30, time.Second, 0)
	}, func(t *testing.T, r *rig) {
		var ids []string
		for range 3 {
			ids = append(ids, r.g.queue(600, "build"))
		}
		pass(10 * time.Minute)
		for _, id := range ids {
			if j := r.g.see(id); j.State != fleet.JobSucceeded || j.Attempt != 1 || r.g.log(id) != numbered(30) {
				t.Errorf("state %s, attempt %d, log %q", j.State, j.Attempt, r.g.log(id))
			}
		}
		if len(r.e.ends()) != 3 {
			t.Errorf("%d jobs ran", len(r.e.ends()))
		}
	})
}

// What the host adds to a job: its launcher and its credentials, which the job's own
// environment can replace.
func TestJobGetsTheHostsPart(t *testing.T) {
	bubble(t, func(r *rig) {
		path := filepath.Join(r.dir, "credential")
		if err := writeOwn(path, []byte("sk-agent\n")); err != nil {
			r.t.Fatal(err)
		}
		r.cfg.Credentials, r.cfg.Command = map[string]string{"AGENT_KEY": path, "OTHER": path}, []string{"launch", "--"}
		r.e.play = func(_ context.Context, j *Job) (int64, error) {
			fmt.Fprintf(j.Output, "%q %q %q %d", j.Command, j.Env["AGENT_KEY"], j.Env["OTHER"], j.MemoryBytes)
			return 0, nil
		}
	}, func(t *testing.T, r *rig) {
		id := r.g.queue(600, "build", "x")
		r.g.mu.Lock()
		r.g.job(id).Spec.Env = map[string]string{"OTHER": "own"}
		r.g.mu.Unlock()
		pass(time.Minute)
		if got, want := r.g.log(id), `["launch" "--" "build" "x"] "sk-agent" "own" 1073741824`; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// A command that writes faster than the gateway takes waits; none of it is lost.
func TestMuchOutput(t *testing.T) {
	const size = 5 << 20
	text := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	bubble(t, func(r *rig) {
		r.e.play = func(_ context.Context, j *Job) (int64, error) {
			_, err := j.Output.Write(text)
			return 0, err
		}
	}, func(t *testing.T, r *rig) {
		id := r.g.queue(600, "shout")
		pass(2 * time.Minute)
		if j := r.g.see(id); j.State != fleet.JobSucceeded || r.g.log(id) != string(text) {
			t.Errorf("state %s, log of %d bytes", j.State, len(r.g.log(id)))
		}
	})
}

func TestClaimThatMakesNoSense(t *testing.T) {
	good := api.ClaimedWork{ID: "33333333-3333-4333-8333-000000000000", Command: []string{"a"}, LeaseEpoch: 1, LeaseSeconds: 60}
	if err := checkClaim(&good); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*api.ClaimedWork){
		"path": func(w *api.ClaimedWork) { w.ID = "../../hosts" }, "no command": func(w *api.ClaimedWork) { w.Command = nil },
		"no lease": func(w *api.ClaimedWork) { w.LeaseSeconds = 0 }, "no epoch": func(w *api.ClaimedWork) { w.LeaseEpoch = 0 },
	} {
		w := good
		change(&w)
		if checkClaim(&w) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// roundTrip is a transport that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// contract: R-25
func TestEnroll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var asked api.CreateAPIKey
	transport := roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Header.Get("Authorization") != "Bearer once" || r.Header.Get("X-Outerlayer-App-Id") != testApp || r.URL.Path != "/v1/api-keys" || r.Header.Get("Signature") != "" {
			t.Errorf("asked %s with %v", r.URL, r.Header)
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		b, _ := json.Marshal(api.Data[api.NewAPIKey]{Data: api.NewAPIKey{APIKey: api.APIKey{ID: testKey}, PlaintextKey: "sk_outerlayer_new"}})
		return &http.Response{StatusCode: 201, Body: io.NopCloser(bytes.NewReader(b))}, nil
	})
	e := Enrollment{Dir: dir, Server: "https://cloud:9418", AppID: testApp, Host: testHost, Token: "once.00ff", Transport: transport}
	id, err := Enroll(t.Context(), e)
	if err != nil || id.KeyID != testKey || id.CAFingerprint != "00ff" {
		t.Fatalf("%+v, %v", id, err)
	}
	_, public, err := HostKey(dir)
	if err != nil || asked.Runner == nil || asked.Runner.PublicKey != public || asked.Runner.Host != testHost || len(asked.Permissions) != 2 {
		t.Errorf("asked for %+v, %v", asked, err)
	}
	loaded, _, secret, err := load(dir)
	if err != nil || loaded != id || secret != "sk_outerlayer_new" {
		t.Errorf("kept %+v, %q, %v", loaded, secret, err)
	}
	for _, name := range []string{fileHostKey, fileSecret, fileIdentity} {
		if text := readFile(t, filepath.Join(dir, name)); strings.Contains(text, "once") {
			t.Errorf("%s has the one-time token", name)
		}
		if _, err := readOwn(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if _, again, _ := HostKey(dir); again != public {
		t.Error("the host's key changed")
	}
	// A copy of the folder on another machine is told so (lesson 7).
	id.MachineID = strings.Repeat("0", 32)
	if err := writeOwn(filepath.Join(dir, fileIdentity), mustJSON(id)); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := load(dir); machineID() != "" && (err == nil || !strings.Contains(err.Error(), "another machine")) {
		t.Errorf("a copied folder: %v", err)
	}
	if _, _, _, err := load(t.TempDir()); !errors.Is(err, errNotEnrolled) {
		t.Errorf("an empty folder: %v", err)
	}
}

// A key that somebody made for this host beforehand.
func TestEnrollWithAKey(t *testing.T) {
	e := Enrollment{Dir: t.TempDir(), Server: "https://cloud:9418", AppID: testApp, Host: testHost, Token: "sk_outerlayer_made", KeyID: testKey}
	if id, err := Enroll(t.Context(), e); err != nil || id.KeyID != testKey {
		t.Errorf("%+v, %v", id, err)
	}
	e.Token = "an operator's"
	if _, err := Enroll(t.Context(), e); err == nil {
		t.Error("another token was taken for the key")
	}
}
