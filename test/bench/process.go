package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child that serves HTTP at addr.
type process struct {
	cmd  *exec.Cmd
	addr string
	out  bytes.Buffer // its stderr
}

// bareEnv makes this program the reference of a server instead: the address.
const bareEnv = "OUTCROP_BENCH_BARE"

// serveBare answers every request by reading its body: what any server on
// net/http pays.
func serveBare(addr string) error {
	answer := []byte(`{"ok":true}` + "\n")
	return http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	}))
}

func startBare(ctx context.Context) (*process, error) { return startSelf(ctx, bareEnv) }

// startSelf runs this program again, as the server that the variable names.
func startSelf(ctx context.Context, variable string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), variable+"="+addr)
	return start(ctx, cmd, addr)
}

// startServer runs the real server over the data folder.
func (e *env) startServer(ctx context.Context, data, database string) (*process, error) {
	if err := e.build(ctx); err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	args := []string{"server", "--data", data, "--listen", addr}
	if database != "" {
		args = append(args, "--database", database)
	}
	return start(ctx, exec.Command(e.binary, args...), addr)
}

// build makes bin/outcrop in the module that holds this program.
func (e *env) build(ctx context.Context) error {
	if e.binary != "" {
		return nil
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	binary := filepath.Join(root, "bin", "outcrop")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/outcrop")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building outcrop: %w\n%s", err, out)
	}
	e.binary = binary
	return nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	mod := strings.TrimSpace(string(out))
	if err != nil || filepath.Base(mod) != "go.mod" {
		return "", errors.New("run it inside the repository")
	}
	return filepath.Dir(mod), nil
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// start runs the command until it takes connections at addr.
func start(ctx context.Context, cmd *exec.Cmd, addr string) (*process, error) {
	p := &process{cmd: cmd, addr: addr}
	cmd.Stderr = &p.out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return p, nil
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("%s ended early: %w\n%s", filepath.Base(cmd.Path), err, p.out.Bytes())
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the child and waits until it no longer serves.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	for range 1500 {
		if p.cmd.Process.Signal(syscall.Signal(0)) != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	_ = p.cmd.Process.Kill()
}

// cpu is the processor time that the child has used, in clock ticks of 10 ms.
func (p *process) cpu() time.Duration {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(after)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}
