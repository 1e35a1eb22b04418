package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain lets this program be process 1 of a job, as outcrop is with the command
// "runner job-init", and a runner that a test can kill.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "job-init":
			JobInit()
		case "doomed-runner":
			doomedRunner(os.Args[2])
		}
	}
	os.Exit(m.Run())
}

// children makes an engine, or skips where this user cannot.
func children(t *testing.T, slots int, visible ...string) (*Children, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	c := newTestChildren(dir, slots, visible...)
	if reason := c.Check(t.Context()); reason != "" {
		t.Skip(reason)
	}
	t.Cleanup(func() {
		if _, err := c.Sweep(context.Background(), func(string) bool { return false }); err != nil {
			t.Error(err)
		}
		c.Close()
	})
	return c, dir
}

func newTestChildren(dir string, slots int, visible ...string) *Children {
	c, err := NewChildren(ChildConfig{Dir: dir, Slots: slots, Visible: visible, Init: []string{"/proc/self/exe", "job-init"}})
	if err != nil {
		panic(err)
	}
	return c
}

// collected is a job with its output gathered.
type collected struct {
	*Job
	mu   sync.Mutex
	text strings.Builder
	line chan string
	done chan struct{}
}

var testJobs struct {
	sync.Mutex
	n int
}

// shellJob is a job that runs a script.
func shellJob(script string, args ...string) *collected {
	testJobs.Lock()
	testJobs.n++
	id := fmt.Sprintf("00000000-0000-4000-8000-%012d", testJobs.n)
	testJobs.Unlock()
	c := &collected{Job: &Job{ID: id, Epoch: 1, Command: append([]string{"/bin/sh", "-c", script, "sh"}, args...), MemoryBytes: 256 << 20, Output: newOutput()},
		line: make(chan string, 1000), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		rest := ""
		for {
			b := c.Output.next(context.Background())
			if b == nil {
				return
			}
			c.Output.drop(len(b))
			c.mu.Lock()
			c.text.Write(b)
			c.mu.Unlock()
			rest += string(b)
			for {
				line, after, ok := strings.Cut(rest, "\n")
				if !ok {
					break
				}
				rest = after
				select {
				case c.line <- line:
				default:
				}
			}
		}
	}()
	return c
}

func (c *collected) run(ctx context.Context, e Engine) (int64, string, error) {
	exit, err := e.Run(ctx, c.Job)
	c.Output.Close()
	<-c.done
	return exit, c.text.String(), err
}

func mustRun(t *testing.T, e Engine, script string, args ...string) (int64, string) {
	t.Helper()
	exit, out, err := shellJob(script, args...).run(t.Context(), e)
	if err != nil {
		t.Fatalf("run %q: %v, output %q", script, err, out)
	}
	return exit, out
}

func TestChildRuns(t *testing.T) {
	c, _ := children(t, 1)
	j := shellJob(`echo out; echo err >&2; echo "$SECRET $1"; cat /dev/null; echo x >/tmp/f && cat /tmp/f; pwd; id -un; exit 7`, "a b")
	j.Env = map[string]string{"SECRET": "s3"}
	exit, out, err := j.run(t.Context(), c)
	if want := "out\nerr\ns3 a b\nx\n/workspace\njob\n"; exit != 7 || out != want || err != nil {
		t.Errorf("got %d, %q, %v; want 7, %q", exit, out, err, want)
	}
	for _, tc := range []struct {
		command []string
		want    int64
	}{{[]string{"no-such-program"}, 127}, {[]string{"/etc/passwd"}, 126}, {[]string{"sh", "-c", "kill -9 $$"}, 137}, {[]string{"true"}, 0}} {
		j := shellJob("")
		j.Command = tc.command
		if exit, out, err := j.run(t.Context(), c); exit != tc.want || err != nil {
			t.Errorf("%v: exit %d, %q, %v; want %d", tc.command, exit, out, err, tc.want)
		}
	}
}

// What a job must not reach, each tried by a job that wants to.
func TestChildIsWalledIn(t *testing.T) {
	c, dir := children(t, 2)
	if err := os.Chmod(dir, 0o755); err != nil { // the folder's own mode is not what keeps a job out
		t.Fatal(err)
	}
	if _, _, err := HostKey(dir); err != nil {
		t.Fatal(err)
	}
	world := filepath.Join(dir, "world-readable")
	if err := os.WriteFile(world, []byte("host secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	hold := shellJob(`echo neighbour >secret; chmod 644 secret; chmod 755 .; echo ready; sleep 60`)
	ctx, stop := context.WithCancelCause(t.Context())
	var other sync.WaitGroup
	other.Go(func() { _, _, _ = hold.run(ctx, c) })
	defer other.Wait()
	defer stop(ErrLeaseLost)
	if line := <-hold.line; line != "ready" {
		t.Fatalf("the other job said %q", line)
	}
	neighbour := filepath.Join(c.work, hold.Key(), "home", "secret")
	if b, err := os.ReadFile(neighbour); err != nil || string(b) != "neighbour\n" {
		t.Fatalf("the other job's file: %q, %v", b, err)
	}
	pid := strconv.Itoa(os.Getpid())
	for _, tc := range []struct{ name, script string }{
		{"the host's key", `cat ` + filepath.Join(dir, fileHostKey)},
		{"a readable file of the host", `cat ` + world},
		{"another job's workspace", `cat ` + neighbour},
		{"any other workspace", `ls ` + c.work},
		{"passwords", `cat /etc/shadow`},
		{"root's home", `ls /root/.* 2>/dev/null | grep -q ssh`},
		{"the runner's environment", `tr '\0' '\n' </proc/` + pid + `/environ | grep .`},
		{"process 1's environment", `cat /proc/1/environ | grep -q .`},
		{"process 1's memory", `head -c 1 /proc/1/mem`},
		{"process 1's descriptors", `ls /proc/1/fd/`},
		{"ending process 1", `kill -9 1; sleep 0.2; kill -0 1 && exit 1`},
		{"processes of others", `[ $(ls -d /proc/[0-9]* | wc -l) -gt 8 ]`},
		{"root by setuid", `su -c true </dev/null`},
		{"becoming root", `setpriv --reuid 0 true`},
		{"mounting", `mount -t tmpfs none /tmp`},
		{"undoing a mount", `umount /proc`},
		{"making a device", `mknod /tmp/sda b 8 0 && head -c 1 /tmp/sda`},
		{"changing programs", `touch /usr/bin/evil`},
		{"changing the root", `touch /evil || touch /etc/evil || touch /dev/evil`},
		{"control groups", `ls /sys/fs/cgroup`},
		{"the host's name", `hostname evil`},
		{"KVM", `test -e /dev/kvm`},
		{"the network, by interface", `tail -n +3 /proc/net/dev | grep -v lo:`},
		{"the network, by route", `tail -n +2 /proc/net/route | grep .`},
		{"sockets of the host", `ls /run/* /var/run/*`},
		{"message queues of the host", `tail -n +2 /proc/sysvipc/shm | grep .`},
		{"lowering its niceness", `renice -n -5 -p $$`},
		{"a chosen oom score", `echo -900 >/proc/self/oom_score_adj`},
	} {
		if exit, out := mustRun(t, c, tc.script); exit == 0 {
			t.Errorf("%s: a job reached it: %q", tc.name, out)
		}
	}
	// The bounding set is that of the job's user namespace, which owns nothing.
	_, out := mustRun(t, c, `id -u; grep -E '^(CapEff|CapPrm|CapAmb|NoNewPrivs)' /proc/self/status | tr -d '\n\t'; nice; cat /proc/self/oom_score_adj; readlink /proc/self/ns/user`)
	host, _ := os.Readlink("/proc/self/ns/user")
	if want := strconv.Itoa(firstUID+1) + "\nCapPrm:0000000000000000CapEff:0000000000000000CapAmb:0000000000000000NoNewPrivs:10\n500\nuser:"; !strings.HasPrefix(out, want) || strings.Contains(out, host) {
		t.Errorf("a job's powers: %q; want %q", out, want)
	}
}

// A loopback of its own lets tests in a job listen.
func TestChildHasLoopback(t *testing.T) {
	c, _ := children(t, 1)
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
	if exit, out := mustRun(t, c, `bash -c 'exec 3<>/dev/tcp/127.0.0.1/9' 2>&1 | grep -q refused`); exit != 0 {
		t.Errorf("loopback: %d, %q", exit, out)
	}
}

// Its end takes every process of a job along, even one that left its session.
func TestChildEndsWithAllItStarted(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cause error
		trap  string
		quick bool
	}{
		{name: "lease lost", cause: ErrLeaseLost, quick: true},
		{name: "timeout", cause: errTimeout, quick: true},
		{name: "timeout, deaf", cause: errTimeout, trap: "trap '' TERM;"},
		{name: "command ends"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _ := children(t, 1)
			mark := strconv.Itoa(40000 + os.Getpid()%1000)
			script := tc.trap + `setsid sh -c 'setsid sleep ` + mark + `.5 & sleep ` + mark + `.25' & sleep ` + mark + `.125 & echo ready; `
			if tc.cause != nil {
				script += "wait; sleep " + mark + ".0625"
			}
			j := shellJob(script)
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			ended := make(chan struct{})
			go func() { defer close(ended); _, _, _ = j.run(ctx, c) }()
			<-j.line
			begun := time.Now()
			stop(tc.cause)
			<-ended
			if took := time.Since(begun); tc.quick && took > termGrace-time.Second {
				t.Errorf("it took %s", took)
			}
			out, _ := exec.Command("pgrep", "-f", "sleep "+mark).Output()
			if len(out) > 0 {
				t.Errorf("processes are left: %s", out)
			}
			if left, _ := os.ReadDir(c.work); len(left) > 0 {
				t.Errorf("workspaces are left: %v", left)
			}
		})
	}
}

func TestChildLimits(t *testing.T) {
	c, _ := children(t, 1)
	j := shellJob(`head -c 300000000 /dev/zero | tail -c 300000000 | wc -c`) // tail holds it all
	j.MemoryBytes = 32 << 20
	if exit, out, err := j.run(t.Context(), c); err != nil || !strings.Contains(out, "more than its memory") {
		t.Errorf("memory: %d, %q, %v", exit, out, err)
	}
	j = shellJob(`head -c 3000000 /dev/zero >big; ls -l big; exit 3`)
	j.DiskBytes = 1 << 20
	if exit, out, err := j.run(t.Context(), c); exit != 3 || err != nil || !strings.Contains(out, " 1048576 ") {
		t.Errorf("one large file: %d, %q, %v", exit, out, err)
	}
	j = shellJob(`for i in 1 2 3 4; do head -c 900000 /dev/zero >f$i; done; sleep 60`)
	j.DiskBytes = 1 << 20
	var unfit *Unfit
	if _, _, err := j.run(t.Context(), c); !errors.As(err, &unfit) {
		t.Errorf("many files: %v; want an Unfit", err)
	}
}

// doomedRunner begins a job in dir and waits to be killed.
func doomedRunner(dir string) {
	j := shellJob(`setsid sleep 41234 & echo ready; exec sleep 41234`)
	go func() {
		<-j.line
		fmt.Println("ready")
	}()
	_, _, _ = j.run(context.Background(), newTestChildren(dir, 1))
	os.Exit(0)
}

// A runner that is killed leaves nothing running, and the next one cleans up.
func TestChildAfterCrash(t *testing.T) {
	c, dir := children(t, 1)
	cmd := exec.Command("/proc/self/exe", "doomed-runner", dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	left, err := workspaces(c.work)
	if err != nil || len(left) != 1 {
		t.Fatalf("workspaces: %v, %v", left, err)
	}
	for key, owner := range left {
		if owner.Job+".1" != key || owner.UID != firstUID || time.Since(owner.CreatedAt) > time.Minute {
			t.Errorf("the owner of %s is %+v", key, owner)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for {
		out, _ := exec.Command("pgrep", "-f", "sleep 41234").Output()
		if len(out) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes are left: %s", out)
		}
	}
	gone, err := c.Sweep(t.Context(), func(string) bool { return false })
	if err != nil || len(gone) != 1 {
		t.Errorf("swept %v, %v", gone, err)
	}
	if left, _ := workspaces(c.work); len(left) > 0 || len(c.groups.list()) > 0 {
		t.Errorf("left: %v, %v", left, c.groups.list())
	}
}
