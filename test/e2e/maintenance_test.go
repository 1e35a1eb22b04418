package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

// TestMaintenance moves real guests between three nodes, each in a network namespace of
// its own: two with real VMs, one with a fake hypervisor.
// contract: N-05 N-20 N-23 U-07 U-21 lesson 4 lesson 17 lesson 22
func TestMaintenance(t *testing.T) { isolated(t, []string{"micro"}, maintenance) }

// The server's own address, which every node reaches by its default route.
const hubAddress = "10.98.0.1"

// machineNode is a node's agent in a namespace.
type machineNode struct {
	id, ns, dir string
	process     *process
}

// nodeSpace makes a namespace for node n, joined to this one.
func nodeSpace(t *testing.T, n int) string {
	t.Helper()
	ns := fmt.Sprintf("oc-n%d-%d", n, os.Getpid())
	ip(t, "netns", "add", ns)
	t.Cleanup(func() { ip(t, "netns", "del", ns) })
	near, far := fmt.Sprintf("10.98.%d.1", n), fmt.Sprintf("10.98.%d.2", n)
	device := fmt.Sprintf("node%d", n)
	ip(t, "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", ns)
	ip(t, "addr", "add", near+"/24", "dev", device)
	ip(t, "link", "set", device, "up")
	ip(t, "-n", ns, "link", "set", "lo", "up")
	ip(t, "-n", ns, "addr", "add", far+"/24", "dev", "eth0")
	ip(t, "-n", ns, "link", "set", "eth0", "up")
	ip(t, "-n", ns, "route", "add", "default", "via", near)
	return ns
}

// agentOn starts a node's agent in its namespace.
func (c *cloud) agentOn(m *machineNode, flags ...string) {
	c.t.Helper()
	token := c.path(m.id + ".token")
	if _, err := os.Stat(token); err != nil {
		text := c.cli("token", "create", "--role", "node", "--node", m.id)
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	argv := append([]string{"ip", "netns", "exec", m.ns, c.lab.binary, "node", "--server", c.url, "--id", m.id, "--token-file", token, "--data", m.dir,
		"--power", "record", "--reserve-memory", "0", "--reserve-vcpus", "0", "--vcpu-ratio", "16"}, flags...)
	m.process = startProcess(c.t, c.path(m.id+".log"), nil, argv...)
	c.t.Cleanup(func() {
		if c.t.Failed() {
			showLog(c.t, m.id, c.path(m.id+".log"))
		}
	})
	await(c.t, soon, "node "+m.id, func() (string, bool) {
		var n api.Node
		err := c.op.Do(c.t.Context(), http.MethodGet, api.NodePath(m.id), nil, &n)
		return fmt.Sprint(n.Liveness, err), err == nil
	})
}

// saysOn waits until a guest says text in its nth boot on a node.
func (c *cloud) saysOn(m *machineNode, id string, n int, text string) (said string) {
	c.t.Helper()
	await(c.t, patience, fmt.Sprintf("%q in boot %d of %s on %s", text, n, id, m.id), func() (string, bool) {
		b, _ := os.ReadFile(filepath.Join(m.dir, "instances", id, "console.log"))
		all := strings.Split(strings.ReplaceAll(string(b), "\r", ""), saysUserland)[1:]
		if len(all) < n {
			return fmt.Sprintf("%d boots, console %q", len(all), b), false
		}
		said = all[n-1]
		return said, strings.Contains(said, text)
	})
	return said
}

// diary is user-data that tells what the last boot wrote to both disks, and writes
// anew. The micro image mounts no disk, so it writes beyond the file system there.
const diary = `#!/bin/sh
at=409600
for disk in vda vdb; do
  echo "$disk holds <$(dd if=/dev/$disk bs=512 skip=$at count=1 2>/dev/null | tr -d '\000')>"
  n=$(dd if=/dev/$disk bs=512 skip=$at count=1 2>/dev/null | tr -dc '0-9')
  { echo "$disk written by boot $((n + 1))"; head -c 512 /dev/zero; } | head -c 512 | dd of=/dev/$disk bs=512 seek=$at conv=notrunc,fsync 2>/dev/null
done
sync
echo "diary is written"
`

func maintenance(t *testing.T, l *lab) {
	ip(t, "addr", "add", hubAddress+"/32", "dev", "lo")
	var nodes [3]*machineNode
	for n := range nodes {
		nodes[n] = &machineNode{id: fmt.Sprintf("n%d", n+1), ns: nodeSpace(t, n+1)}
	}
	first, second := libvirtdtest.StartIn(t, nodes[0].ns), libvirtdtest.StartIn(t, nodes[1].ns)
	c := newCloudAt(t, l, first, hubAddress+":9418", "--insecure-http", "--heartbeat-interval", "2s")
	nodes[0].dir, nodes[1].dir, nodes[2].dir = filepath.Join(first.Dir, "n1"), filepath.Join(second.Dir, "n2"), c.path("n3")
	for n, d := range []*libvirtdtest.Daemon{first, second} {
		c.agentOn(nodes[n], "--libvirt", d.URI, "--acceleration", "tcg", "--network", "host")
	}
	c.agentOn(nodes[2], "--hypervisor", "fake", "--network", "none")
	a, b := nodes[0], nodes[1]
	for _, m := range []*machineNode{a, b} { // the fake node is no place for a guest
		c.cli("node", "update", m.id, "--label", "topology.rack=real")
	}

	// One guest on each node.
	guest := func(name, strategy string, others ...string) string {
		for _, other := range others {
			c.cli("node", "cordon", other)
		}
		id := c.launch(api.CreateInstance{Name: name, ImageID: c.image, VCPUs: 1, MemoryBytes: guestMemory, RootVolumeBytes: 1 << 30, UserData: encode([]byte(diary)),
			DataVolumes: []api.DataVolumeInput{{SizeBytes: 512 << 20}}, Selectors: []string{"topology.rack=real"}, MaintenanceStrategy: strategy})
		await(t, soon, "placement of "+name, func() (string, bool) { i := c.get(id); return i.State + i.StateMessage, i.NodeID != "" })
		for _, other := range others {
			c.cli("node", "uncordon", other)
		}
		return id
	}
	web, db := guest("web", "", b.id), guest("db", "stop", a.id)
	if said := c.saysOn(a, web, 1, "diary is written"); !strings.Contains(said, "vda holds <>") || !strings.Contains(said, "vdb holds <>") {
		t.Errorf("the first boot says %s", said)
	}
	c.saysOn(a, web, 1, "net address=")
	was := c.reaches(web, compute.StateRunning)
	c.saysOn(b, db, 1, "diary is written")
	c.reaches(db, compute.StateRunning)

	// A migration, by the CLI.
	began := time.Now()
	c.cli("instance", "migrate", "web", "--to", b.id, "--wait")
	moved := time.Since(began)
	is := c.get(web)
	if is.NodeID != b.id || is.State != "running" || is.NetworkInterfaces[0] != was.NetworkInterfaces[0] || is.RootVolumeID != was.RootVolumeID || is.DataVolumes[0] != was.DataVolumes[0] {
		t.Errorf("it was %+v, it is %+v", was, is)
	}
	said := c.saysOn(b, web, 1, "diary is written")
	booted := time.Since(began)
	for _, want := range []string{"vda holds <vda written by boot 1", "vdb holds <vdb written by boot 1"} {
		if !strings.Contains(said, want) {
			t.Errorf("after the migration it does not say %q:\n%s", want, said)
		}
	}
	if said := c.saysOn(b, web, 1, "net address="); !strings.Contains(said, "mac="+was.NetworkInterfaces[0].MAC) || !strings.Contains(said, "net address="+was.NetworkInterfaces[0].PrivateIP+"/") {
		t.Errorf("it has another address than %+v:\n%s", was.NetworkInterfaces[0], said)
	}
	t.Logf("cold migration: %v until it runs on the other node, %v until the guest has read its disks; events:\n%s", moved.Round(10*time.Millisecond), booted.Round(10*time.Millisecond), c.cli("instance", "events", "web"))
	c.clean(a, web, was)

	// A drain, shown first; what it leaves is stopped, and the machine may go off.
	preview := c.cli("node", "drain", b.id, "--dry-run")
	t.Logf("the preview:\n%s", preview)
	if !strings.Contains(preview, "nothing was changed") || !strings.Contains(preview, "started again when the node takes part again") {
		t.Errorf("the preview says\n%s", preview)
	}
	began = time.Now()
	t.Logf("the drain:\n%s", c.cli("node", "drain", b.id, "--deadline", "10m", "--reason", "new memory", "--wait"))
	t.Logf("drained within %v", time.Since(began).Round(10*time.Millisecond))
	var d api.Drain
	if err := json.Unmarshal([]byte(c.cli("node", "drain", b.id, "--status", "-o", "json")), &d); err != nil || !d.SafeToPowerOff || d.Outcome != "done" || len(d.Instances) != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	if i := c.get(db); i.State != "stopped" || i.NodeID != b.id {
		t.Errorf("db is %s on %s", i.State, i.NodeID)
	}
	said = c.saysOn(a, web, 1, "diary is written")
	for _, want := range []string{"vda holds <vda written by boot 2", "vdb holds <vdb written by boot 2"} {
		if !strings.Contains(said, want) {
			t.Errorf("after the drain it does not say %q:\n%s", want, said)
		}
	}
	c.clean(b, web, was)

	// The agent comes back, in maintenance still; then all runs again.
	b.process.kill()
	c.agentOn(b, "--libvirt", second.URI, "--acceleration", "tcg", "--network", "host")
	if out := c.cli("node", "get", b.id); !strings.Contains(out, "maintenance by") || !strings.Contains(out, "new memory") {
		t.Errorf("the node is\n%s", out)
	}
	c.cli("node", "uncordon", b.id)
	if said := c.saysOn(b, db, 2, "diary is written"); !strings.Contains(said, "vda holds <vda written by boot 1") {
		t.Errorf("the stopped one says\n%s", said)
	}
	for _, id := range c.ids {
		c.terminate(id)
	}
	for _, id := range c.ids {
		c.reaches(id, compute.StateTerminated)
	}
	for _, m := range nodes {
		await(t, soon, "node "+m.id+" that is charged nothing", func() (string, bool) {
			var n api.Node
			c.call(http.MethodGet, api.NodePath(m.id), nil, &n)
			return fmt.Sprintf("%d bytes of memory, %d of disk", n.CommittedMemoryBytes, n.CommittedDiskBytes), n.CommittedMemoryBytes == 0 && n.CommittedDiskBytes == 0
		})
	}
	for _, m := range nodes {
		m.process.stop(t)
	}
	c.server.stop(t)
}

// clean waits until nothing of an instance is left on a node.
func (c *cloud) clean(m *machineNode, id string, i api.Instance) {
	c.t.Helper()
	await(c.t, soon, "node "+m.id+" without "+id, func() (string, bool) {
		left, _ := filepath.Glob(filepath.Join(m.dir, "instances", id))
		for _, v := range i.DataVolumes {
			more, _ := filepath.Glob(filepath.Join(m.dir, "volumes", v.VolumeID))
			left = append(left, more...)
		}
		return strings.Join(left, " "), len(left) == 0
	})
}
