package apptest_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// The command that `outcrop node join-token` prints, run as it stands by a shell on
// a machine that knows nothing of the server, makes that machine a node over HTTPS
// with the server's own CA; afterwards the data folder alone is enough. Real
// processes, in a network of their own.
//
// contract: N-21
// lesson 8
func TestPrintedCommandJoins(t *testing.T) {
	if os.Getenv(netnsEnv) == "" {
		inNetns(t)
		return
	}
	loopback(t)
	p := startServer(t, t.TempDir(), "--listen", "0.0.0.0:0")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(p.url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	p.url = "https://127.0.0.1:" + port
	operator := p.client(t, p.operator(t))
	bin, data := t.TempDir(), filepath.Join(t.TempDir(), "node")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, filepath.Join(bin, "outcrop")); err != nil {
		t.Fatal(err)
	}
	env := []string{outcropEnv + "=1", "PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	outcrop := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "outcrop"), args...)
		cmd.Env = append(env, "OUTCROP_URL="+p.url, "OUTCROP_TOKEN="+p.operator(t))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("outcrop %v: %v\n%s", args, err, stderr.String())
		}
		return strings.TrimSpace(string(out))
	}
	// agent runs a command line until the server has heard of the node since.
	agent := func(line string) {
		t.Helper()
		line = "exec env " + strings.Replace(line, "/var/lib/outcrop-node", data, 1) + " --hypervisor fake --network none"
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c", line)
		cmd.Env = env
		var log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &log, &log
		begun := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for {
			var n api.Node
			if err := operator.Do(ctx, http.MethodGet, api.NodePath("n1"), nil, &n); err == nil && n.LastSeenAt.After(begun) {
				break
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("the node does not report: %s", log.String())
			}
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, log.String())
		}
		if strings.Contains(log.String(), "oct_") {
			t.Errorf("a token stands in the log:\n%s", log.String())
		}
	}
	agent(outcrop("node", "join-token", "--id", "n1"))
	agent("outcrop node --data /var/lib/outcrop-node")
	line := outcrop("node", "readmit", "n1")
	if err := os.RemoveAll(data); err != nil { // reinstalled
		t.Fatal(err)
	}
	agent(line)
	p.term(t)
}
