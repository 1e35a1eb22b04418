package guest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// service is a node's metadata service as an agent sees it.
type service struct {
	mu       sync.Mutex
	settings api.AgentSettings
	token    string // the one that is valid; another one is given at the next request for one
	tokens   int
	beats    []api.AgentHeartbeat
	after    func(n int) // called after beat n was taken
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Path == "/latest/api/token" {
		if r.Method != http.MethodPut || r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") == "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.tokens++
		s.token = "token-" + string(rune('a'+s.tokens))
		_, _ = w.Write([]byte(s.token))
		return
	}
	if s.token == "" || r.Header.Get("X-aws-ec2-metadata-token") != s.token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/latest/outcrop/agent/heartbeat" {
		var h api.AgentHeartbeat
		if err := json.NewDecoder(r.Body).Decode(&h); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.beats = append(s.beats, h)
		if s.after != nil {
			s.after(len(s.beats))
		}
	}
	_ = json.NewEncoder(w).Encode(s.settings)
}

func start(t *testing.T, s *service, cfg Config) (run func() error, cancel func()) {
	t.Helper()
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	cfg.URL = web.URL
	if cfg.Root == nil {
		cfg.Root = files(resultFile, `{"v1":{"errors":[]}}`, userDataFile, "x")
	}
	if cfg.StateDir == "" {
		cfg.StateDir = t.TempDir()
	}
	ctx, stop := context.WithCancel(t.Context())
	return func() error { return Run(ctx, cfg) }, stop
}

// An agent of the image that is not enabled ends and says nothing. contract: U-09
func TestDormant(t *testing.T) {
	for _, settings := range []api.AgentSettings{
		{Enabled: false, Activation: Automatic},
		{Enabled: true, Activation: InstallCommand}, // forced: an installed one takes its place
	} {
		s := &service{settings: settings}
		run, _ := start(t, s, Config{Uninstall: func() error { return errors.New("uninstalled") }})
		if err := run(); err != nil || len(s.beats) != 0 {
			t.Errorf("%+v: %v, %d heartbeats", settings, err, len(s.beats))
		}
	}
}

// contract: U-09 U-10
func TestReportsUntilDisabled(t *testing.T) {
	s := &service{settings: api.AgentSettings{Enabled: true, Activation: Automatic}}
	s.after = func(int) { s.settings.Enabled = false }
	run, _ := start(t, s, Config{Version: "1.2"})
	if err := run(); err != nil {
		t.Fatal(err)
	}
	want := api.BootReport{Status: "done", UserDataHash: hashOf("x")}
	if len(s.beats) != 1 || s.beats[0].Version != "1.2" || s.beats[0].ReconcileResult != "ok" || *s.beats[0].Boot != want {
		t.Errorf("heartbeats %+v", s.beats)
	}
	if s.tokens != 1 {
		t.Errorf("%d tokens", s.tokens)
	}
}

// What cannot be read is an error of the pass, and the guest is alive all the same.
func TestReportsTrouble(t *testing.T) {
	s := &service{settings: api.AgentSettings{Enabled: true, Activation: Automatic}}
	a := &agent{cfg: Config{Activation: Automatic, Version: "1", Root: files(resultFile, "{")}}
	web := httptest.NewServer(s)
	defer web.Close()
	a.imds = newIMDS(web.URL)
	if wanted, err := a.pass(t.Context()); !wanted || err == nil {
		t.Errorf("wanted %v, %v", wanted, err)
	}
	if len(s.beats) != 1 || s.beats[0].ReconcileResult != "error" || s.beats[0].Boot != nil {
		t.Errorf("heartbeats %+v", s.beats)
	}
	// A token that has ended is replaced. lesson 27
	s.token = "other"
	if wanted, _ := a.pass(t.Context()); !wanted || len(s.beats) != 2 || s.tokens != 2 {
		t.Errorf("wanted %v, %d heartbeats, %d tokens", wanted, len(s.beats), s.tokens)
	}
}

// The code is shown until it must have been heard, also while the flag lags behind it; and a disabled agent removes
// itself. contract: U-09
func TestEnrollsAndUninstalls(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "code"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &service{settings: api.AgentSettings{Enabled: false, Activation: InstallCommand}}
	web := httptest.NewServer(s)
	defer web.Close()
	a := &agent{cfg: Config{Activation: InstallCommand, Version: "1", StateDir: dir, Root: files()}, imds: newIMDS(web.URL)}
	for n := 1; n <= showings; n++ {
		if n == 2 {
			s.settings.Enabled = true
		}
		if wanted, err := a.pass(t.Context()); !wanted || err != nil {
			t.Fatalf("pass %d: wanted %v, %v", n, wanted, err)
		}
		if code := s.beats[n-1].InstallCode; code != "secret" {
			t.Errorf("heartbeat %d shows %q", n, code)
		}
	}
	if _, err := os.Stat(a.codeFile()); !os.IsNotExist(err) {
		t.Errorf("the code is still there: %v", err)
	}
	if wanted, err := a.pass(t.Context()); !wanted || err != nil || s.beats[showings].InstallCode != "" {
		t.Errorf("wanted %v, %v, %+v", wanted, err, s.beats[showings])
	}
	s.settings.Enabled = false
	gone := false
	cfg := a.cfg
	cfg.URL, cfg.Uninstall = web.URL, func() error { gone = true; return nil }
	if err := Run(t.Context(), cfg); err != nil || !gone {
		t.Errorf("uninstalled %v, %v", gone, err)
	}
}

// Once the flag was seen, it alone decides: a code that is still to be shown keeps no disabled agent.
func TestDisabledWhileEnrolling(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "code"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &service{settings: api.AgentSettings{Enabled: true, Activation: InstallCommand}}
	s.after = func(int) { s.settings.Enabled = false }
	gone := false
	run, _ := start(t, s, Config{Activation: InstallCommand, StateDir: dir, Uninstall: func() error { gone = true; return nil }})
	if err := run(); err != nil || !gone || len(s.beats) != 1 {
		t.Errorf("%v, uninstalled %v, %d heartbeats", err, gone, len(s.beats))
	}
}

// lesson 32
func TestDelay(t *testing.T) {
	a := &agent{}
	for _, tt := range []struct {
		failures int
		base     time.Duration
	}{{0, 30 * time.Second}, {1, time.Second}, {2, 2 * time.Second}, {6, 30 * time.Second}, {1000, 30 * time.Second}} {
		for range 100 {
			if d := a.delay(tt.failures); d < tt.base*9/10 || d > tt.base*11/10+1 {
				t.Fatalf("after %d failures: %v", tt.failures, d)
			}
		}
	}
	a.take(api.AgentSettings{IntervalSeconds: 5})
	if d := a.delay(0); d > 6*time.Second {
		t.Errorf("interval %v", d)
	}
}
