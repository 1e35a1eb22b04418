package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

// inNamespace is set for a test binary that runs in a network namespace of its own.
const inNamespace = "OUTCROP_E2E_NETNS"

// Addresses around a node in a namespace.
const (
	nodeOutside = "198.51.100.2" // the node on the network outside
	wayOut      = "198.51.100.1"
	somewhere   = "203.0.113.7" // behind the node's default route
	nodeMgmt    = "10.99.0.1"   // the node on its management network
	neighbour   = "10.99.0.2"   // another machine there
	beneath     = "169.254.169.254"
)

// isolated runs a test in network namespaces that are made for it, so that a node
// can make networks as on a machine of its own: the test binary is started again in
// there, and so is all that it starts. The images are built before, for there is no
// way to the packages from in there.
func isolated(t *testing.T, images []string, run func(t *testing.T, l *lab)) {
	if os.Getenv(inNamespace) != "" {
		run(t, newLabWithAgent(t))
		return
	}
	if testing.Short() {
		t.Skip("boots real guests")
	}
	if os.Getuid() != 0 {
		libvirtdtest.Missing(t, "root, for libvirtd and for network namespaces")
	}
	agent := buildAgent(t, t.TempDir())
	for _, kind := range images {
		if _, err := buildImage(kind, "--agent", agent); err != nil {
			libvirtdtest.Missing(t, "the "+kind+" image: "+err.Error())
		}
	}
	inside, outside := surroundings(t)
	args := []string{"netns", "exec", inside, os.Args[0], "-test.run", "^" + t.Name() + "$", "-test.v"}
	if end, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout", time.Until(end).Round(time.Second).String())
	}
	cmd := exec.Command("ip", args...)
	cmd.Env = append(os.Environ(), inNamespace+"="+outside)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	t.Logf("in the namespace %s:\n%s", inside, out.String())
	if strings.Contains(out.String(), "--- SKIP: "+t.Name()+" ") {
		t.SkipNow()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// surroundings makes a node's namespace, joined to an outside by its default route
// and to a management network.
func surroundings(t *testing.T) (inside, outside string) {
	t.Helper()
	inside, outside = fmt.Sprintf("oc-in-%d", os.Getpid()), fmt.Sprintf("oc-out-%d", os.Getpid())
	for _, ns := range []string{inside, outside} {
		ip(t, "netns", "add", ns)
		t.Cleanup(func() { ip(t, "netns", "del", ns) })
		ip(t, "-n", ns, "link", "set", "lo", "up")
	}
	for device, ends := range map[string][2]string{"eth0": {nodeOutside, wayOut}, "mgmt": {nodeMgmt, neighbour}} {
		ip(t, "-n", inside, "link", "add", device, "type", "veth", "peer", "name", device, "netns", outside)
		for n, ns := range []string{inside, outside} {
			ip(t, "-n", ns, "addr", "add", ends[n]+"/24", "dev", device)
			ip(t, "-n", ns, "link", "set", device, "up")
		}
	}
	ip(t, "-n", inside, "route", "add", "default", "via", wayOut)
	for _, a := range []string{somewhere, beneath} { // the latter: the metadata service of a cloud underneath
		ip(t, "-n", outside, "addr", "add", a+"/32", "dev", "lo")
	}
	return inside, outside
}

// greet answers HTTP on an address of the namespace outside, or of this one, with
// who asks.
func greet(t *testing.T, namespace, address string) {
	t.Helper()
	l, err := listenIn(namespace, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "hello %s\n", r.RemoteAddr)
		}))
	}()
}

// listenIn opens a listener on a thread in the namespace; it stays there.
func listenIn(namespace, address string) (l net.Listener, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if namespace != "" {
			f, e := os.Open(filepath.Join("/run/netns", namespace))
			if e != nil {
				err = e
				return
			}
			defer f.Close()
			if err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
				return
			}
		}
		l, err = net.Listen("tcp4", address)
	}()
	<-done
	return l, err
}

// newLabWithAgent has the guest agent beside the program and in the micro image.
func newLabWithAgent(t *testing.T) *lab {
	t.Helper()
	l := newLab(t)
	agent := buildAgent(t, filepath.Dir(l.binary))
	var err error
	if l.micro, err = buildImage("micro", "--agent", agent); err != nil {
		libvirtdtest.Missing(t, "the micro image: "+err.Error())
	}
	l.debian = func() (string, error) { return buildImage("debian", "--agent", agent) }
	return l
}

// buildAgent makes the small program. It is the same wherever it is built, so that
// images with it are, too.
func buildAgent(t *testing.T, dir string) string {
	t.Helper()
	agent := filepath.Join(dir, "outcrop-guest")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", agent, filepath.Join(root(), "cmd", "outcrop-guest"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	info, err := os.Stat(agent)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 10<<20 {
		t.Errorf("the guest agent has %d bytes, at most 10 MiB are wanted", info.Size())
	}
	return agent
}

// outsideOf is the namespace around the node's.
func outsideOf(t *testing.T) string {
	t.Helper()
	ns := os.Getenv(inNamespace)
	if ns == "" {
		t.Fatal(errors.New("not in a namespace"))
	}
	return ns
}
