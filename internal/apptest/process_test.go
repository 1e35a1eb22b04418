package apptest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/cli"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// This program is outcrop itself when asked to be, so that a test can run the
// real process, signals and all.
const (
	outcropEnv = "OUTCROP_APPTEST_MAIN"
	netnsEnv   = "OUTCROP_APPTEST_NETNS"
)

func TestMain(m *testing.M) {
	if os.Getenv(outcropEnv) != "" {
		os.Exit(cli.Main())
	}
	os.Exit(m.Run())
}

// process is a running `outcrop server`.
type process struct {
	cmd  *exec.Cmd
	url  string
	dir  string
	done chan error
}

var listening = regexp.MustCompile(`msg=listening url=(\S+)`)

func startServer(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{dir: dir, done: make(chan error, 1), cmd: exec.Command(exe, append([]string{"server", "--data", dir}, args...)...)}
	p.cmd.Env = append(os.Environ(), outcropEnv+"=1")
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	url := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		var all bytes.Buffer
		for lines.Scan() {
			fmt.Fprintln(&all, lines.Text())
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				url <- m[1]
			}
		}
		close(url)
		err := p.cmd.Wait()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, all.Bytes())
		}
		p.done <- err
	}()
	p.url = <-url
	if p.url == "" {
		t.Fatalf("the server does not start: %v", <-p.done)
	}
	return p
}

// operator is the token that the first start left.
func (p *process) operator(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, "operator.token"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (p *process) client(t *testing.T, token string) *api.Client {
	t.Helper()
	c, err := api.NewClient(p.url, token, "test")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// term sends SIGTERM and waits for the end, which is to be a clean one.
func (p *process) term(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("the server ends with %v", err)
		}
	case <-time.After(40 * time.Second):
		t.Fatal("the server does not end")
	}
}

// SIGTERM under load: what was answered is there after the next start, nothing
// that was accepted is refused by the way, and a held sync does not hold the end
// back.
func TestGracefulStopLosesNothing(t *testing.T) {
	dir := t.TempDir()
	p := startServer(t, dir, "--listen", "127.0.0.1:0")
	token := p.operator(t)
	operator := p.client(t, token)
	var agent api.NewToken
	if err := operator.Do(t.Context(), "POST", "/v1/tokens", api.CreateToken{Role: "node", NodeID: "n1"}, &agent); err != nil {
		t.Fatal(err)
	}
	node := p.client(t, agent.Secret)
	beat := `{"hostname":"n1","role":"hypervisor","architecture":"amd64","capacity":{"totalVCPUs":4,"totalMemoryBytes":1,"totalDiskBytes":1}}`
	if err := node.Do(t.Context(), "PUT", api.NodePath("n1", "heartbeat"), strings.NewReader(beat), nil); err != nil {
		t.Fatal(err)
	}
	var out api.SyncResponse
	if err := node.Do(t.Context(), "POST", api.NodePath("n1", "sync"), api.SyncRequest{Instances: []api.ObservedInstance{}}, &out); err != nil {
		t.Fatal(err)
	}
	var load sync.WaitGroup
	load.Go(func() {
		_ = node.Do(context.Background(), "POST", api.NodePath("n1", "sync"), api.SyncRequest{Revision: out.Revision, Instances: []api.ObservedInstance{}, WaitSeconds: 60}, nil)
	})
	const workers = 8
	made := make([][]string, workers)
	var count atomic.Int64
	enough := make(chan struct{})
	for w := range workers {
		load.Go(func() {
			c := p.client(t, token)
			for n := 0; ; n++ {
				id := fmt.Sprintf("p-%d-%d", w, n)
				err := c.Do(context.Background(), "POST", "/v1/projects", api.CreateProject{ID: id}, nil)
				var refused *fault.Error
				if errors.As(err, &refused) {
					t.Errorf("%s: an accepted request is answered %s: %v", id, refused.Code, err)
				}
				if err != nil {
					return // no connection any more
				}
				made[w] = append(made[w], id)
				if count.Add(1) == 400 {
					close(enough)
				}
			}
		})
	}
	<-enough
	p.term(t)
	load.Wait()

	p = startServer(t, dir, "--listen", "127.0.0.1:0")
	there := map[string]bool{}
	err := api.Pages(t.Context(), p.client(t, token), "/v1/projects", func(v api.Project) error {
		there[v.ID] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, ids := range made {
		for _, id := range ids {
			if !there[id] {
				t.Errorf("%s was answered and is gone", id)
			}
		}
	}
	t.Logf("%d projects made before the end", count.Load())
	p.term(t)
}

// loopback brings up the loopback device of a network of the test's own.
func loopback(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
}

// Beyond loopback the server speaks HTTPS with a CA of its own, unless it is told
// otherwise. The test moves into a network of its own, so that "all addresses"
// is nobody else's.
func TestBeyondLoopback(t *testing.T) {
	if os.Getenv(netnsEnv) == "" {
		inNetns(t)
		return
	}
	loopback(t)
	dir := t.TempDir()
	p := startServer(t, dir, "--listen", "0.0.0.0:0")
	token := p.operator(t)
	if _, fp := api.SplitToken(token); fp == "" || !strings.HasPrefix(p.url, "https://") {
		t.Fatalf("url %s, a token with the fingerprint %q", p.url, fp)
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(p.url, "https://"), "]:")
	if port == "" {
		_, port, _ = strings.Cut(strings.TrimPrefix(p.url, "https://"), ":")
	}
	p.url = "https://127.0.0.1:" + port
	if err := p.client(t, token).Do(t.Context(), "GET", "/v1/whoami", nil, nil); err != nil {
		t.Error(err)
	}
	secret, _ := api.SplitToken(token)
	if err := p.client(t, secret).Do(t.Context(), "GET", "/v1/whoami", nil, nil); err == nil {
		t.Error("a client that knows nothing of the CA trusts the server")
	}
	if resp, err := http.Get("http://127.0.0.1:" + port + "/healthz"); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("plain HTTP is answered beyond loopback")
		}
	}
	p.term(t)

	plain := startServer(t, t.TempDir(), "--listen", "0.0.0.0:0", "--insecure-http")
	if !strings.HasPrefix(plain.url, "http://") {
		t.Errorf("with --insecure-http: %s", plain.url)
	}
	plain.term(t)
	loopback := startServer(t, t.TempDir(), "--listen", "127.0.0.1:0")
	if !strings.HasPrefix(loopback.url, "http://") {
		t.Errorf("on loopback: %s", loopback.url)
	}
	loopback.term(t)
}

// inNetns runs this very test once more in a network namespace of its own.
func inNetns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network of its own needs root")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), netnsEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The default address is the documents' local one, and the first start leaves an
// operator's token that only its owner reads.
// contract: E-09
func TestDefaults(t *testing.T) {
	if api.DefaultURL != "http://127.0.0.1:9418" {
		t.Errorf("the default address is %s", api.DefaultURL)
	}
	dir := t.TempDir()
	p := startServer(t, dir, "--listen", "127.0.0.1:0")
	for _, name := range []string{"operator.token", "token.key"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, st.Mode(), err)
		}
	}
	var list api.List[api.Project]
	if err := p.client(t, p.operator(t)).Do(t.Context(), "GET", "/v1/projects", nil, &list); err != nil || len(list.Items) != 1 || list.Items[0].ID != "default" {
		t.Errorf("projects of a new install: %+v, %v", list.Items, err)
	}
	p.term(t)
}
