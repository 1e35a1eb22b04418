package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
)

// With this variable set the test binary is an agent, so that tests can kill one
// for real.
const agentEnv = "OUTCROP_TEST_AGENT"

func TestMain(m *testing.M) {
	if text := os.Getenv(agentEnv); text != "" {
		if err := agentMain(text); err != nil {
			slog.Error("agent", "error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

type agentSettings struct {
	URL, Dir, CrashAt string
	Join              bool // by a join token, in place of a token
}

func (s agentSettings) path(name string) string { return filepath.Join(s.Dir, name) }

func agentMain(text string) error {
	var s agentSettings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	hv, err := fake.New(fake.Options{Dir: s.path("vms")})
	if err != nil {
		return err
	}
	hook, err := CrashAt(s.CrashAt, s.path("crashed"))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg := Config{ServerURL: s.URL, TokenFile: s.path("token"), ID: "n1", DataDir: s.path("data"), Hypervisor: hv, StepHook: hook}
	if s.Join {
		cfg.TokenFile, cfg.JoinTokenFile, cfg.Log = "", s.path("join"), slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return Run(ctx, cfg)
}

// agentProcess keeps an agent running: one that was killed is started again.
type agentProcess struct {
	t     *testing.T
	s     agentSettings
	kills int
	stop  chan struct{}
	done  chan struct{}
}

func (p *agentProcess) run() {
	defer close(p.done)
	for {
		text, err := json.Marshal(p.s)
		if err != nil {
			p.t.Error(err)
			return
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), agentEnv+"="+string(text))
		var out bytes.Buffer
		cmd.Stderr = &out
		if err := cmd.Start(); err != nil {
			p.t.Error(err)
			return
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err = <-ended:
		case <-p.stop:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			err = <-ended
		}
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
			p.kills++
			continue
		}
		if err != nil {
			p.t.Errorf("the agent ended: %v\n%s", err, out.String())
		}
		return
	}
}

// await waits until the server sees something.
func (s *server) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		s.mu.Lock()
		done, changed := ok(), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("not in time: %s", what)
		}
	}
}

func (s *server) awaitState(t *testing.T, id string, want compute.InstanceState) {
	t.Helper()
	s.await(t, id+" becomes "+string(want), func() bool { return s.instances[id].State == want })
}

// An agent process that is killed with SIGKILL at a step, over real HTTP and
// with real overlays. The steps that leave something half done are here; all of
// them are in TestKilledAtEachStep.
func TestKillNine(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img (package qemu-utils) is not installed")
	}
	for _, at := range []string{"after:volume", "before:boot", "after:boot", "before:destroy", "after:undefine"} {
		t.Run(at, func(t *testing.T) {
			s := newServer()
			web := httptest.NewServer(s)
			defer web.Close()
			p := &agentProcess{t: t, s: agentSettings{URL: web.URL, Dir: t.TempDir(), CrashAt: at}, stop: make(chan struct{}), done: make(chan struct{})}
			if err := os.WriteFile(p.s.path("token"), []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			go p.run()
			ended := false
			end := func() {
				if !ended {
					ended = true
					close(p.stop)
					<-p.done
				}
			}
			defer end()

			s.create(idA, "one")
			s.awaitState(t, idA, compute.StateRunning)
			checkOverlay(t, p.s.path("data/instances/"+idA+"/"+fileRoot))
			s.stop(idA, 0, true)
			s.awaitState(t, idA, compute.StateStopped)
			s.edit(func() { s.setUserData(idA, "two") })
			s.start(idA)
			s.awaitState(t, idA, compute.StateRunning)
			seed, err := os.ReadFile(p.s.path("data/instances/" + idA + "/" + fileSeed))
			if err != nil || !bytes.Contains(seed, []byte("two\x00")) {
				t.Errorf("the seed is not the new one (%v)", err)
			}
			s.terminate(idA)
			s.awaitState(t, idA, compute.StateTerminated)
			end()
			if p.kills != 1 {
				t.Errorf("killed %d times", p.kills)
			}
			for _, dir := range []string{"vms", "data/instances"} {
				if left, err := os.ReadDir(p.s.path(dir)); len(left) > 0 || err != nil {
					t.Errorf("%s: left %v, %v", dir, left, err)
				}
			}
		})
	}
}

func checkOverlay(t *testing.T, path string) {
	t.Helper()
	out, err := exec.Command("qemu-img", "info", "--output=json", "-U", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Format      string `json:"format"`
		VirtualSize int64  `json:"virtual-size"`
		Backing     string `json:"backing-filename"`
		BackingFmt  string `json:"backing-filename-format"`
	}
	if err := json.Unmarshal(out, &info); err != nil {
		t.Fatal(err)
	}
	if info.Format != "qcow2" || info.VirtualSize != 1<<30 || info.Backing != fileBase || info.BackingFmt != "raw" {
		t.Errorf("overlay %+v", info)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("overlay %v, %v", info.Mode(), err)
	}
}

func TestCrashAtRefusesNonsense(t *testing.T) {
	for _, at := range []string{"", "boot", "during:boot", "before:dance"} {
		if _, err := CrashAt(at, "x"); err == nil {
			t.Errorf("%q accepted", at)
		}
	}
}
