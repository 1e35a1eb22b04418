package e2e

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is one outcrop process with its log. It ends with the test, and also
// when the test binary is killed.
type process struct {
	name string
	pid  int
	log  string // file
	done chan struct{}
	end  *os.ProcessState // read after done
}

// startProcess runs argv with more environment; its output is appended to the log.
func startProcess(t *testing.T, log string, env []string, argv ...string) *process {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{name: strings.Join(argv, " "), log: log, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig follows the thread, so it must live as long as the process
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			p.end = cmd.ProcessState
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	t.Cleanup(p.kill)
	return p
}

// alive reports whether it still runs.
func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill is kill -9, over when the process is gone.
func (p *process) kill() {
	if p.alive() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	<-p.done
}

// stop asks the process to end, which it must do at once and well.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if !p.alive() {
		t.Errorf("%s ended by itself: %v", p.name, p.end)
		return
	}
	_ = syscall.Kill(p.pid, syscall.SIGTERM)
	select {
	case <-p.done:
		if !p.end.Success() {
			t.Errorf("%s, asked to end: %v", p.name, p.end)
		}
	case <-time.After(soon):
		t.Errorf("%s does not end", p.name)
		p.kill()
	}
}

// killedItself waits until the process has died of its own SIGKILL.
func (p *process) killedItself(t *testing.T) {
	t.Helper()
	ctx, cancel := bounded(t, patience)
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		t.Fatalf("%s has not come to its crash point", p.name)
	}
	if s := p.end.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGKILL {
		t.Fatalf("%s: %v, not a crash", p.name, p.end)
	}
}

// maxShown bounds how much of a log a failed test shows.
const maxShown = 30 << 10

// showLog prints the end of a log.
func showLog(t *testing.T, name, file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Logf("%s: %v", name, err)
		return
	}
	t.Logf("%s:\n%s", name, b[max(0, len(b)-maxShown):])
}
