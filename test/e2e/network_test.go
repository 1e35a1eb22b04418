package e2e

import (
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// TestNetwork has a node make the networks of two projects on a machine of its own,
// a network namespace, with real guests on them.
// contract: U-03 U-12 U-18 lesson 25 lesson 27 lesson 28 lesson 29
func TestNetwork(t *testing.T) { isolated(t, []string{"micro"}, networks) }

const other = "other" // a second project

func networks(t *testing.T, l *lab) {
	c := newCloud(t, l)
	c.network = "host"
	c.image = c.cli("image", "import", "-q", "--public", "--name", "micro-public", l.micro)
	c.cli("project", "create", other)
	greet(t, outsideOf(t), somewhere+":80")
	greet(t, outsideOf(t), neighbour+":80")
	greet(t, outsideOf(t), beneath+":80")
	greet(t, "", "0.0.0.0:9999") // a service of the node's own
	c.startNode()

	data := []byte("for a\x00\xff")
	a, b := c.create("alpha", data), c.create("beta", nil)
	d := c.createIn(other, "alpha", nil)
	for _, id := range []string{a, b, d} {
		c.says(id, 1, "imds user-data") // the last of what the guest does by itself; there is an error where it has none
	}
	addressOf := func(i api.Instance) string { return i.NetworkInterfaces[0].PrivateIP }
	inA, inB, inD := c.get(a), c.get(b), c.getIn(other, d)
	t.Logf("addresses: %s %s, and %s in the other project", addressOf(inA), addressOf(inB), addressOf(inD))

	// Each has the address that the API tells, and is itself at the metadata service.
	for _, i := range []api.Instance{inA, inB, inD} {
		said := c.console(i.ID)
		for _, want := range []string{"mac=" + i.NetworkInterfaces[0].MAC + " mtu=1500", "net address=" + addressOf(i) + "/16", "imds instance-id=" + i.ID + "\n"} {
			if !strings.Contains(said, want) {
				t.Errorf("%s does not say %q:\n%s", i.ID, want, said)
			}
		}
	}
	// The same bytes by the seed and by the service. contract: U-03
	for _, want := range []string{digest("user-data", data), digest("imds user-data", data)} {
		if said := c.console(a); !strings.Contains(said, want) {
			t.Errorf("%s does not say %q:\n%s", a, want, said)
		}
	}
	if said := c.console(b); !strings.Contains(said, `imds user-data error="latest/user-data: 404 Not Found"`) {
		t.Errorf("an instance without user-data:\n%s", said)
	}

	shA, shB, shD := c.shell(a), c.shell(b), c.shell(d)
	reach(t, shA, shD, addressOf(inA), addressOf(inB), addressOf(inD))
	spoof(t, shA, addressOf(inA), inA.NetworkInterfaces[0].MAC, addressOf(inB), shB)
	options(t, c, a, shA)
	flood(t, shA, shD)
	survives(t, c, a, shA, addressOf(inB))

	// The address is kept over a stop and a start.
	_ = shA.io.Close()
	c.stop(a, within(60))
	c.reaches(a, compute.StateStopped)
	again := []byte("again")
	if _, err := c.putUserData(a, again); err != nil {
		t.Fatal(err)
	}
	c.start(a)
	said := c.says(a, 2, "imds user-data")
	for _, want := range []string{"net address=" + addressOf(inA) + "/16", digest("imds user-data", again)} {
		if !strings.Contains(said, want) {
			t.Errorf("after the start %s does not say %q:\n%s", a, want, said)
		}
	}
	if i := c.get(a); addressOf(i) != addressOf(inA) || i.NetworkInterfaces[0].MAC != inA.NetworkInterfaces[0].MAC {
		t.Errorf("the address became %s, it was %s", addressOf(i), addressOf(inA))
	}

	// Nothing is left of the networks when the last guest is gone.
	c.call(http.MethodDelete, api.InstancePath(other, d), nil, nil)
	for _, id := range []string{a, b} {
		c.terminate(id)
		c.reaches(id, compute.StateTerminated)
	}
	await(t, soon, "removal of all devices", func() (string, bool) {
		left := devices(t)
		return strings.Join(left, " "), len(left) == 0
	})
	c.node.stop(t)
}

func (c *cloud) createIn(project, name string, userData []byte) string {
	c.t.Helper()
	var i api.Instance
	c.call(http.MethodPost, api.InstancePath(project, ""), api.CreateInstance{Name: name, ImageID: c.image, VCPUs: 1, MemoryBytes: guestMemory, UserData: encode(userData)}, &i)
	c.ids = append(c.ids, i.ID)
	return i.ID
}

func (c *cloud) getIn(project, id string) (i api.Instance) {
	c.t.Helper()
	c.call(http.MethodGet, api.InstancePath(project, id), nil, &i)
	return i
}

// reach holds what a guest may reach, and what not.
func reach(t *testing.T, a, d *shell, addrA, addrB, addrD string) {
	t.Helper()
	const gateway, dns = "172.31.0.1", "172.31.0.2"
	for _, tt := range []struct {
		name string
		ok   bool
		got  bool
	}{
		{"its gateway", true, a.can("ping -c 1 -W 5 " + gateway)},
		{"its neighbour", true, a.can("ping -c 1 -W 5 " + addrB)},
		{"the way out", true, a.reaches(somewhere, 80)},
		{"the metadata service", true, a.reaches(beneath, 80)},
		{"its name server", true, a.can("nslookup beta.internal " + dns)},
		{"a service of the node by the gateway", false, a.reaches(gateway, 9999)},
		{"a service of the node by its outer address", false, a.reaches(nodeOutside, 9999)},
		{"a service of the node by its management address", false, a.reaches(nodeMgmt, 9999)},
		{"a service at the metadata address", false, a.reaches(beneath, 9999)},
		{"the management network", false, a.reaches(neighbour, 80)},
		{"a name that is another project's", false, d.can("nslookup beta.internal " + dns)},
	} {
		if tt.got != tt.ok {
			t.Errorf("reaches %s: %v, want %v", tt.name, tt.got, tt.ok)
		}
	}
	// Whoever has an address in one project is nobody in the other.
	for _, address := range []string{addrA, addrB} {
		if address != addrD && d.can("ping -c 1 -W 2 "+address) {
			t.Errorf("the other project reaches %s", address)
		}
	}
	// The metadata service of a cloud underneath is never the one that answers.
	if said, _ := a.run("wget -q -O - http://169.254.169.254/ 2>&1"); strings.Contains(said, "hello") || !strings.Contains(said, "401") {
		t.Errorf("at the metadata address: %q", said)
	}
	if said, _ := a.run("wget -q -O - http://" + somewhere + "/ 2>&1"); !strings.Contains(said, "hello "+nodeOutside) {
		t.Errorf("outside, a guest is %q, want the node's address", said)
	}
}

// spoof holds that nothing goes out under an address that is not the guest's.
func spoof(t *testing.T, a *shell, addr, mac, neighbourAddr string, b *shell) {
	t.Helper()
	a.run("ip addr add 172.31.77.77/16 dev eth0")
	if a.can("ping -c 1 -W 2 -I 172.31.77.77 172.31.0.1") || a.can("ping -c 1 -W 2 -I 172.31.77.77 "+neighbourAddr) {
		t.Error("an address that is not the guest's gets an answer")
	}
	a.run("ip addr del 172.31.77.77/16 dev eth0")
	// The neighbour's own address: nobody else may be it.
	a.run("ip addr add " + neighbourAddr + "/16 dev eth0")
	if said, _ := b.run("arping -D -c 2 -w 3 -I eth0 " + neighbourAddr + " 2>&1"); strings.Contains(said, mac) {
		t.Errorf("a neighbour's address is claimed: %q", said)
	}
	a.run("ip addr del " + neighbourAddr + "/16 dev eth0")
	a.run("ip link set eth0 address 02:00:00:00:00:99")
	if a.can("ping -c 1 -W 2 172.31.0.1") {
		t.Error("a MAC that is not the guest's gets an answer")
	}
	a.run("ip link set eth0 address " + mac)
	if !a.can("ping -c 3 -W 5 172.31.0.1") {
		t.Errorf("%s under its own MAC gets no answer", addr)
	}
}

// options holds that the metadata options of a running guest are in force at once.
// contract: U-18
func options(t *testing.T, c *cloud, id string, a *shell) {
	t.Helper()
	set := func(o api.MetadataOptions) {
		c.call(http.MethodPost, api.InstancePath(project, id, "modify-metadata-options"), o, nil)
	}
	answers := func(want string) {
		t.Helper()
		await(t, soon, "metadata service that says "+want, func() (string, bool) {
			said, _ := a.run("wget -q -O - http://169.254.169.254/latest/meta-data/instance-id 2>&1")
			return said, strings.Contains(said, want)
		})
	}
	answers("401")
	set(api.MetadataOptions{HTTPEndpoint: "disabled"})
	answers("403")
	set(api.MetadataOptions{HTTPEndpoint: "enabled"})
	answers("401")
}

// flood measures one guest's requests while another one's flood the service. Both
// are emulated by the same two cores, so the bound is wide; what counts is that each
// request is answered.
func flood(t *testing.T, flooder, measured *shell) {
	t.Helper()
	const request = "wget -q -O - http://169.254.169.254/"
	before := measured.times(20, request)
	flooder.run("for n in 1 2 3 4; do (while [ ! -e /tmp/enough ]; do " + request + "; done) >/dev/null 2>&1 & done")
	during := measured.times(20, request)
	flooder.run("touch /tmp/enough; wait")
	slices.Sort(before)
	slices.Sort(during)
	t.Logf("a guest's request: median %v, worst %v; while another floods: median %v, worst %v", before[10], before[19], during[10], during[19])
	if during[10] > 20*before[10]+patience/60 {
		t.Errorf("a flood makes a request of another guest take %v instead of %v", during[10], before[10])
	}
}

// survives holds that guests keep their network while the agent is away, and their
// metadata as soon as it is back, also where the server is not.
func survives(t *testing.T, c *cloud, id string, a *shell, neighbourAddr string) {
	t.Helper()
	c.server.kill()
	c.node.kill()
	if !a.can("ping -c 1 -W 5 "+neighbourAddr) || !a.reaches(somewhere, 80) {
		t.Error("without its agent a guest has no network")
	}
	c.startNode()
	await(t, soon, "metadata service without a server", func() (string, bool) {
		said, _ := a.run("wget -q -O - http://169.254.169.254/latest/meta-data/instance-id 2>&1")
		return said, strings.Contains(said, "401")
	})
	c.startServer()
	c.reaches(id, compute.StateRunning)
}

var ours = regexp.MustCompile(`\boc[tbrx][a-z0-9]{10}\b`)

// devices are the node's devices of ours.
func devices(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("ip", "-o", "link").CombinedOutput()
	if err != nil {
		t.Fatal(fmt.Errorf("ip: %w: %s", err, out))
	}
	return ours.FindAllString(string(out), -1)
}
