package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Addresses of the two machines that this test makes of network namespaces.
const (
	serverAddress = "10.97.41.1"
	nodeAddress   = "10.97.41.2"
)

// Beyond loopback the server speaks HTTPS with a CA of its own, and a token that
// it made is all that a node needs to know it by.
// contract: N-01 E-09 lesson 12
func tlsBeyondLoopback(t *testing.T, l *lab) {
	there, here := twoMachines(t)
	c := &cloud{t: t, lab: l, daemon: l.daemon, vms: driver(t, l.daemon)}
	var err error
	if c.dir, err = os.MkdirTemp(l.daemon.Dir, strings.Repeat("long", 20)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(c.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			showLog(t, "server", c.path("server.log"))
			showLog(t, "node", c.path("node.log"))
		}
	})
	url := "https://" + serverAddress + ":9418"
	server := there.command(l.binary, "server", "--data", c.path("server"), "--listen", serverAddress+":9418")
	c.server = startProcess(t, c.path("server.log"), nil, server...)
	awaitFile(t, c.path("server.log"), "listening")
	token := c.read("server/operator.token")
	secret, fingerprint := api.SplitToken(token)
	if fingerprint == "" {
		t.Fatal("the token does not carry the CA's fingerprint")
	}
	cli := func(url, token string, args ...string) (string, error) {
		argv := here.command(append([]string{l.binary}, args...)...)
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "OUTCROP_URL="+url, "OUTCROP_TOKEN="+token, "XDG_CONFIG_HOME="+c.dir)
		return output(cmd)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := cli(url, token, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	run("node", "list")
	for name, try := range map[string][2]string{
		"without the fingerprint": {url, secret},
		"of another server":       {url, secret + "." + strings.Repeat("0", len(fingerprint))},
		"in the clear":            {strings.Replace(url, "https", "http", 1), token},
	} {
		if out, err := cli(try[0], try[1], "node", "list"); err == nil {
			t.Errorf("a token %s was taken: %s", name, out)
		}
	}

	nodeToken := run("token", "create", "--role", "node", "--node", nodeID)
	if err := os.WriteFile(c.path("node.token"), []byte(nodeToken), 0o600); err != nil {
		t.Fatal(err)
	}
	run("image", "import", "--name", "micro", l.micro)
	agent := here.command(l.binary, "node", "--server", url, "--id", nodeID, "--token-file", c.path("node.token"),
		"--data", c.path("node"), "--libvirt", l.daemon.URI, "--acceleration", "tcg", "--power", "record", "--reserve-memory", "0", "--network", "none")
	c.node = startProcess(t, c.path("node.log"), nil, agent...)

	release := l.boot(t)
	data := []byte("over TLS")
	if err := os.WriteFile(c.path("data"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	id := run("instance", "create", "-q", "--wait", "--name", "far", "--image", "micro", "--vcpus", "1", "--memory", "128MiB", "--user-data", c.path("data"))
	c.ids = append(c.ids, id)
	c.says(id, 1, digest("user-data", data))
	release()
	if len(c.farSockets()) != 1 {
		t.Error("the node's path is not too long for a socket; nothing is shown of those")
	}

	// A new certificate of the same CA comes with every start.
	c.server.kill()
	c.server = startProcess(t, c.path("server.log"), nil, server...)
	await(t, soon, "server", func() (string, bool) {
		out, err := cli(url, token, "instance", "stop", "far")
		return fmt.Sprint(out, err), err == nil
	})
	await(t, patience, "stopped instance", func() (string, bool) {
		out := run("instance", "list")
		return out, strings.Contains(out, " "+string(compute.StateStopped)+" ")
	})
	run("instance", "terminate", "--wait", "far")
	c.checkNode()
	c.node.stop(t)
	c.server.stop(t)
}

// machine is a network namespace.
type machine string

// twoMachines makes two that reach each other and nothing else.
func twoMachines(t *testing.T) (there, here machine) {
	t.Helper()
	there, here = machine(fmt.Sprintf("oc-s-%d", os.Getpid())), machine(fmt.Sprintf("oc-n-%d", os.Getpid()))
	for _, m := range []machine{there, here} {
		ip(t, "netns", "add", string(m))
		t.Cleanup(func() { ip(t, "netns", "del", string(m)) })
	}
	ip(t, "-n", string(there), "link", "add", "e0", "type", "veth", "peer", "name", "e0", "netns", string(here))
	for m, address := range map[machine]string{there: serverAddress, here: nodeAddress} {
		ip(t, "-n", string(m), "addr", "add", address+"/30", "dev", "e0")
		ip(t, "-n", string(m), "link", "set", "e0", "up")
		ip(t, "-n", string(m), "link", "set", "lo", "up")
	}
	return there, here
}

// command is argv run on the machine.
func (m machine) command(argv ...string) []string {
	return append([]string{"ip", "netns", "exec", string(m)}, argv...)
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
