package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// drain is how long output may lag behind the end of the process that wrote it.
const drain = 300 * time.Millisecond

// environment of everything that init starts.
var environment = []string{"PATH=/bin:/sbin", "HOME=/root", "TERM=vt100", "PS1=micro# "}

// processes starts programs and collects their ends. PID 1 must wait for orphans too, so nothing else
// (os/exec among it) may wait for children in this program.
type processes struct {
	mu    sync.Mutex
	ends  map[int]chan int
	child chan os.Signal
}

func newProcesses() *processes {
	p := &processes{ends: map[int]chan int{}, child: make(chan os.Signal, 1)}
	signal.Notify(p.child, syscall.SIGCHLD)
	return p
}

// reap waits for every child, for ever. A burst of ends may raise one signal only, hence the inner loop.
func (p *processes) reap() {
	for range p.child {
		for p.reapOne() {
		}
	}
}

func (p *processes) reapOne() bool {
	p.mu.Lock() // start holds it from fork to the entry in ends, so no end can come too early
	defer p.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if err == syscall.EINTR {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if end, ok := p.ends[pid]; ok {
		delete(p.ends, pid)
		end <- exitStatus(status)
	}
	return true
}

// exitStatus is the number that a shell would show: the exit code, or 128 + the signal.
func exitStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// start runs argv with the given standard files. Its exit status comes on the channel, once.
func (p *processes) start(argv []string, files []*os.File, sys *syscall.SysProcAttr) (<-chan int, error) {
	attr := &syscall.ProcAttr{Dir: "/", Env: environment, Sys: sys}
	for _, f := range files {
		attr.Files = append(attr.Files, f.Fd())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return nil, &os.PathError{Op: "run", Path: argv[0], Err: err}
	}
	end := make(chan int, 1)
	p.ends[pid] = end
	return end, nil
}

// run runs argv to its end with its output going to emit line by line. What a process left in the
// background writes later still reaches emit.
func (p *processes) run(emit func(string), argv ...string) (status int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	end, err := p.start(argv, []*os.File{null, w, w}, &syscall.SysProcAttr{Setsid: true})
	w.Close()
	if err != nil {
		r.Close()
		return 0, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.Close()
		copyLines(r, emit)
	}()
	status = <-end
	select {
	case <-done:
	case <-time.After(drain):
	}
	return status, nil
}

// runScript runs user-data as a shell script with its output on the console.
func runScript(con *console, procs *processes, userData []byte) error {
	const path = "/run/user-data"
	con.fact("script begin")
	if err := os.WriteFile(path, userData, 0o700); err != nil {
		con.fact("script end", "error", err)
		return err
	}
	status, err := procs.run(con.line, "/bin/sh", path)
	if err != nil {
		con.fact("script end", "error", err)
		return err
	}
	con.fact("script end", "status", status)
	if status != 0 {
		return fmt.Errorf("the script ended with status %d", status)
	}
	return nil
}

// runShell keeps a shell on the console terminal, with job control. It never returns.
func runShell(con *console, procs *processes) {
	path := "/dev/" + consoleTTY(sysText(os.DirFS("/sys"), "class/tty/console/active"))
	con.share()
	for ; ; time.Sleep(time.Second) {
		tty, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			continue // no such terminal, or hung up: try again
		}
		end, err := procs.start([]string{"/bin/sh"}, []*os.File{tty, tty, tty}, &syscall.SysProcAttr{Setsid: true, Setctty: true})
		tty.Close()
		if err != nil {
			con.fact("shell", "error", err)
			continue
		}
		<-end
	}
}

// consoleTTY picks the terminal behind /dev/console: the last of the kernel's active consoles.
func consoleTTY(active string) string {
	fields := strings.Fields(active)
	if len(fields) == 0 {
		return "ttyS0"
	}
	return fields[len(fields)-1]
}
