package e2e

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

const (
	project = compute.DefaultProject
	nodeID  = "n1"
	// The guests need 128 MiB; the machine's memory bounds how many there are.
	guestMemory = 128 << 20
)

// cloud is a server and a node of one scenario.
type cloud struct {
	t      *testing.T
	lab    *lab
	daemon *libvirtdtest.Daemon
	vms    *libvirt.Driver // a look past the agent
	dir    string          // QEMU's user can go through it

	listen, url string
	token       string   // the operator's
	serverFlags []string // beyond the usual
	op          *api.Client
	image       string // id of the micro image
	network     string // of the node: none, unless the scenario has a network namespace of its own

	server, node *process
	crashes      int
	ids          []string // of all instances that were created
}

// newCloud starts a server with the micro image, and no node yet.
func newCloud(t *testing.T, l *lab, serverFlags ...string) *cloud {
	t.Helper()
	return newCloudOn(t, l, l.daemon, serverFlags...)
}

func newCloudOn(t *testing.T, l *lab, d *libvirtdtest.Daemon, serverFlags ...string) *cloud {
	t.Helper()
	return newCloudAt(t, l, d, freeAddress(t), serverFlags...)
}

func newCloudAt(t *testing.T, l *lab, d *libvirtdtest.Daemon, listen string, serverFlags ...string) *cloud {
	t.Helper()
	c := &cloud{t: t, lab: l, daemon: d, vms: driver(t, d), serverFlags: serverFlags, listen: listen}
	c.url = "http://" + c.listen
	var err error
	if c.dir, err = os.MkdirTemp(d.Dir, "c"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(c.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			showLog(t, "server", c.path("server.log"))
			showLog(t, "node", c.path("node.log"))
			for _, id := range c.ids {
				t.Logf("console of %s:\n%s", id, c.console(id))
			}
		}
	})
	c.startServer()
	c.token = c.read("server/operator.token")
	if c.op, err = api.NewClient(c.url, c.token, "outcrop-e2e"); err != nil {
		t.Fatal(err)
	}
	nodeToken := c.cli("token", "create", "--role", "node", "--node", nodeID)
	if err := os.WriteFile(c.path("node.token"), []byte(nodeToken), 0o600); err != nil {
		t.Fatal(err)
	}
	c.image = c.importImage("micro", l.micro)
	return c
}

// freeAddress is a loopback address that nobody listens on, so that a server can
// come back to it.
func freeAddress(t *testing.T) string {
	t.Helper()
	n, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	return n.Addr().String()
}

func (c *cloud) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cloud) read(name string) string {
	c.t.Helper()
	b, err := os.ReadFile(c.path(name))
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// startServer returns when requests are answered.
func (c *cloud) startServer() {
	c.t.Helper()
	argv := append([]string{c.lab.binary, "server", "--data", c.path("server"), "--listen", c.listen}, c.serverFlags...)
	c.server = startProcess(c.t, c.path("server.log"), nil, argv...)
	await(c.t, soon, "server", func() (string, bool) {
		resp, err := http.Get(c.url + "/readyz")
		if err != nil {
			return err.Error(), !c.server.alive()
		}
		resp.Body.Close()
		return resp.Status, resp.StatusCode == http.StatusOK
	})
	if !c.server.alive() {
		c.t.Fatalf("the server ended: %v", c.server.end)
	}
}

// crashServer is a kill -9 and a new start.
func (c *cloud) crashServer() {
	c.t.Helper()
	c.server.kill()
	c.startServer()
}

// startNode starts the agent. A crash point, where given, kills it once.
func (c *cloud) startNode(crashAt ...string) {
	c.t.Helper()
	var env []string
	for _, at := range crashAt {
		c.crashes++
		env = append(env, "OUTCROP_CRASH_AT="+at, fmt.Sprintf("OUTCROP_CRASH_ONCE=%s/crash-%d", c.dir, c.crashes))
	}
	c.node = startProcess(c.t, c.path("node.log"), env, c.lab.binary, "node", "--server", c.url, "--id", nodeID,
		"--token-file", c.path("node.token"), "--data", c.path("node"), "--libvirt", c.daemon.URI,
		"--acceleration", "tcg", "--power", "record", "--network", "none", "--reserve-memory", "0", "--reserve-vcpus", "0", "--vcpu-ratio", "16",
		"--network", cmp.Or(c.network, "none"))
}

// cli runs a command of the CLI as a user would and returns its output.
func (c *cloud) cli(args ...string) string {
	c.t.Helper()
	out, err := c.tryCLI(args...)
	if err != nil {
		c.t.Fatalf("outcrop %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func (c *cloud) tryCLI(args ...string) (string, error) {
	cmd := exec.Command(c.lab.binary, args...)
	cmd.Env = append(os.Environ(), "OUTCROP_URL="+c.url, "OUTCROP_TOKEN="+c.token, "XDG_CONFIG_HOME="+c.dir)
	return output(cmd)
}

// output is what cmd prints, and its complaints in the error.
func output(cmd *exec.Cmd) (string, error) {
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, complaints.String())
	}
	return strings.TrimRight(string(out), "\n"), err
}

// importImage returns the id.
func (c *cloud) importImage(name, file string) string {
	c.t.Helper()
	return c.cli("image", "import", "-q", "--name", name, file)
}

// call is an operator's request that must succeed.
func (c *cloud) call(method, path string, in, out any, opts ...api.Option) {
	c.t.Helper()
	if err := c.op.Do(c.t.Context(), method, path, in, out, opts...); err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// create makes a small instance and returns its id; user-data may be nil.
func (c *cloud) create(name string, userData []byte) string {
	c.t.Helper()
	return c.launch(api.CreateInstance{Name: name, ImageID: c.image, VCPUs: 1, MemoryBytes: guestMemory, UserData: encode(userData)})
}

func (c *cloud) launch(in api.CreateInstance, opts ...api.Option) string {
	c.t.Helper()
	var i api.Instance
	c.call(http.MethodPost, api.InstancePath(project, ""), in, &i, opts...)
	c.ids = append(c.ids, i.ID)
	return i.ID
}

// encode makes bytes the base64 of a create; nil is no user-data.
func encode(b []byte) *string {
	if b == nil {
		return nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return &s
}

func (c *cloud) get(id string) (i api.Instance) {
	c.t.Helper()
	c.call(http.MethodGet, api.InstancePath(project, id), nil, &i)
	return i
}

func (c *cloud) start(id string) (i api.Instance) {
	c.t.Helper()
	c.call(http.MethodPost, api.InstancePath(project, id, "start"), nil, &i)
	return i
}

func (c *cloud) stop(id string, in api.StopInstance) (i api.Instance) {
	c.t.Helper()
	c.call(http.MethodPost, api.InstancePath(project, id, "stop"), in, &i)
	return i
}

// within is a stop that gives the guest so many seconds.
func within(seconds int64) api.StopInstance { return api.StopInstance{DeadlineSeconds: &seconds} }

var force = api.StopInstance{Force: true}

func (c *cloud) reboot(id string, force bool) (i api.Instance) {
	c.t.Helper()
	c.call(http.MethodPost, api.InstancePath(project, id, "reboot"), api.RebootInstance{Force: force}, &i)
	return i
}

func (c *cloud) terminate(id string) (i api.Instance) {
	c.t.Helper()
	c.call(http.MethodDelete, api.InstancePath(project, id), nil, &i)
	return i
}

func (c *cloud) putUserData(id string, b []byte) (i api.Instance, err error) {
	return i, c.op.Do(c.t.Context(), http.MethodPut, api.InstancePath(project, id, "user-data"), bytes.NewReader(b), &i)
}

func (c *cloud) getNode() (n api.Node) {
	c.t.Helper()
	c.call(http.MethodGet, api.NodePath(nodeID), nil, &n)
	return n
}

// reaches waits until an instance is in the state. One that is in error by then
// has missed it. A server that is away is asked again.
func (c *cloud) reaches(id string, want compute.InstanceState) (i api.Instance) {
	c.t.Helper()
	await(c.t, patience, fmt.Sprintf("%s instance %s", want, id), func() (string, bool) {
		var v api.Instance
		if err := c.op.Do(c.t.Context(), http.MethodGet, api.InstancePath(project, id), nil, &v); err != nil {
			return err.Error(), false
		}
		if i = v; want != compute.StateError && compute.InstanceState(v.State) == compute.StateError {
			c.t.Fatalf("instance %s is in error, wanted %s: %s", id, want, v.StateMessage)
		}
		return v.State + " " + v.StateMessage, v.State == string(want)
	})
	return i
}

// end terminates all instances and holds that nothing of them is left, neither
// on the node nor in the server's books; then node and server end in order.
func (c *cloud) end() {
	c.t.Helper()
	for _, id := range c.ids {
		c.terminate(id)
	}
	for _, id := range c.ids {
		c.reaches(id, compute.StateTerminated)
	}
	c.checkClean()
	c.node.stop(c.t)
	c.server.stop(c.t)
}

// checkClean looks for what an instance could have left behind.
func (c *cloud) checkClean() {
	c.t.Helper()
	for _, id := range c.ids {
		if vm, err := c.vms.Get(c.t.Context(), id); !errors.Is(err, hypervisor.ErrNotFound) {
			c.t.Errorf("VM of %s is left: %+v, %v", id, vm, err)
		}
	}
	if n := c.getNode(); n.CommittedVCPUs != 0 || n.CommittedMemoryBytes != 0 {
		c.t.Errorf("the node is still charged %d vCPUs and %d bytes", n.CommittedVCPUs, n.CommittedMemoryBytes)
	}
	c.checkNode()
}

// checkNode looks at the machine: the node must not only have said so. virtlogd
// and QEMU end on their own time.
func (c *cloud) checkNode() {
	c.t.Helper()
	await(c.t, soon, "clean node", func() (string, bool) {
		left := slices.Concat(c.leftFiles(), c.leftProcesses(), c.leftSockets(), c.farSockets())
		return strings.Join(left, "\n"), len(left) == 0
	})
}

// ofTheNode are files that a node keeps for itself.
var ofTheNode = []string{".", "lock", "images", "instances", "identity.pem", "known.json", "metadata.key"}

// leftFiles lists what is in the node's folder beyond its own files and whole
// images, and whether the node still knows what is gone.
func (c *cloud) leftFiles() (left []string) {
	root, err := filepath.EvalSymlinks(c.path("node"))
	if err != nil {
		return []string{err.Error()}
	}
	_ = filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(root, p)
		whole := filepath.Dir(name) == "images" && len(filepath.Base(name)) == 64
		if !whole && !slices.Contains(ofTheNode, name) {
			left = append(left, p)
		}
		return err
	})
	known, _ := os.ReadFile(c.path("node/known.json")) // not every node has one
	for _, id := range c.ids {
		if bytes.Contains(known, []byte(id)) {
			left = append(left, "known.json knows "+id)
		}
	}
	return left
}

// leftProcesses lists processes that hold on to the node's instances.
func (c *cloud) leftProcesses() (left []string) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		b, _ := os.ReadFile(file) // one that has ended since is none
		if bytes.Contains(b, []byte(c.path("node/instances"))) {
			left = append(left, string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
		}
	}
	return left
}

// leftSockets lists bound unix sockets below the scenario's folder.
func (c *cloud) leftSockets() (left []string) {
	b, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, c.dir) {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return left
}

// farSockets lists the consoles that found no place in the node's folder.
func (c *cloud) farSockets() (all []string) {
	for _, id := range c.ids {
		found, _ := filepath.Glob("/run/outcrop/*" + id)
		all = append(all, found...)
	}
	return all
}

// refused holds that err is a refusal with the code.
func refused(t *testing.T, err error, code string) {
	t.Helper()
	if !fault.HasCode(err, code) {
		t.Errorf("got %v, want %s", err, code)
	}
}

// raw sends a request without the client and returns status and body.
func (c *cloud) raw(method, path string, body io.Reader) (int, string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
