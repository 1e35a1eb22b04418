package node

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/metadata"
	"github.com/outcrop-cloud/outcrop/internal/network"
)

// ports are the interfaces that the node's network was last made for.
func (e *env) ports() (ids []string) {
	d, _ := e.net.Current()
	for _, p := range d.Ports {
		ids = append(ids, p.InstanceID)
	}
	slices.Sort(ids)
	return ids
}

// contract: U-12 lesson 25
func TestNetworkOfAVM(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		nic := nicOf(idA)
		d, _ := e.net.Current()
		if len(d.Subnets) != 1 || !d.Subnets[0].Egress || len(d.Ports) != 1 || d.Ports[0].MAC.String() != nic.MAC || d.Ports[0].Address.String() != nic.Address || d.Ports[0].Hostname != "web" {
			t.Errorf("network %+v", d)
		}
		w := e.agent.workers[idA]
		vols, err := readVolumes(w.order().desired)
		if err != nil {
			t.Fatal(err)
		}
		spec := w.spec(w.order().desired, vols, e.agent.dir.socket(idA))
		if err := spec.Validate(); err != nil || len(spec.NICs) != 1 || spec.NICs[0].Tap != d.Ports[0].Tap() || spec.NICs[0].MAC != nic.MAC {
			t.Errorf("cards %+v, %v", spec.NICs, err)
		}
		seed := e.vms.seeds[idA][0]
		for _, want := range []string{"macaddress: \"" + nic.MAC, "set-name: \"eth0\"", "dhcp4: true"} {
			if !strings.Contains(string(seed), want) {
				t.Errorf("the seed does not say %q", want)
			}
		}
		// The port is kept over a stop, and gone with the instance.
		e.stop(idA, 0, true)
		e.reaches(t, idA, compute.StateStopped, 10*time.Second)
		if !slices.Equal(e.ports(), []string{idA}) {
			t.Errorf("ports %v of a stopped VM", e.ports())
		}
		e.terminate(idA)
		e.until(t, "no port", 10*time.Second, func() bool { return len(e.ports()) == 0 })
	})
}

// A VM does not start without its network, and says what is wrong. lesson 29
func TestBootWaitsForItsPort(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.net.FailWith(func(network.Desired) error { return errors.New("no bridge") })
		e.create(idA, "x")
		e.until(t, "trouble", 10*time.Second, func() bool {
			r := e.last(idA)
			return r.Step == stepInterface && strings.Contains(r.Message, "no bridge")
		})
		if e.vm(idA) != "none" {
			t.Errorf("the VM is %s", e.vm(idA))
		}
		if !slices.ContainsFunc(e.agent.findings(time.Now()), func(f api.Finding) bool { return f.Code == findingNetwork }) {
			t.Error("no finding")
		}
		e.net.FailWith(nil)
		e.reaches(t, idA, compute.StateRunning, 2*time.Minute)
	})
}

// One interface that cannot be costs nobody else their network.
func TestBadInterface(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.edit(func() {
			e.extra[idA] = func(d *api.DesiredInstance) { d.Interfaces[0].Address = "10.0.0.9" }
		})
		e.create(idA, "x")
		e.create(idB, "x")
		e.reaches(t, idB, compute.StateRunning, 10*time.Second)
		e.until(t, "trouble", 10*time.Second, func() bool { return strings.Contains(e.last(idA).Message, "usable address") })
		e.edit(func() { delete(e.extra, idA) })
		e.reaches(t, idA, compute.StateRunning, time.Minute)
	})
}

// An agent without the server's word touches nothing that it does not know of, and
// keeps up what it does. lesson 3
func TestNetworkWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		defer e.vms.Close()
		defer func() { e.downAgent() }()
		e.edit(func() { e.server.down = errors.New("down") })
		e.up(t)
		<-time.After(10 * time.Minute)
		if _, runs := e.net.Current(); runs != 0 {
			t.Errorf("%d runs without knowing anything", runs)
		}
		e.edit(func() { e.server.down = nil })
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)

		e.downAgent()
		e.edit(func() { e.server.down = errors.New("down") })
		e.net = &network.Fake{} // the kernel keeps what it has: what matters is what is asked of it
		e.up(t)
		<-time.After(time.Minute)
		if !slices.Equal(e.ports(), []string{idA}) {
			t.Errorf("ports %v", e.ports())
		}
		key := metadata.PortKey{SubnetID: subnetA, Address: mustAddr(nicOf(idA).Address)}
		if i, ok := e.agent.guests.Instance(key); !ok || i.ID != idA || string(i.UserData) != "x" {
			t.Errorf("metadata of %+v, %v", i, ok)
		}
	})
}

// A VM that the server does not name keeps its network for as long as it is there.
// lesson 3
func TestUnnamedVMKeepsItsNetwork(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.create(idB, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.reaches(t, idB, compute.StateRunning, 10*time.Second)
		kept := e.instances[idA]
		e.edit(func() { delete(e.instances, idA) })
		<-time.After(5 * time.Minute)
		if !slices.Equal(e.ports(), []string{idA, idB}) || e.vm(idA) != "running" {
			t.Errorf("ports %v, VM %s", e.ports(), e.vm(idA))
		}
		e.edit(func() { e.instances[idA] = kept })
		<-time.After(time.Second)
		e.terminate(idA)
		e.until(t, "one port", 10*time.Second, func() bool { return slices.Equal(e.ports(), []string{idB}) })
	})
}

// What the metadata service says is this boot's, whatever comes for the next one;
// options and tags hold at once. contract: U-03 U-18
func TestMetadataOfABoot(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		key := metadata.PortKey{SubnetID: subnetA, Address: mustAddr(nicOf(idA).Address)}
		get := func() *metadata.Instance {
			t.Helper()
			i, ok := e.agent.guests.Instance(key)
			if !ok {
				t.Fatal("the metadata service does not know the guest")
			}
			return i
		}
		e.create(idA, "first\x00")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		<-time.After(time.Second)
		before := get()
		if before.RerunID != "" {
			t.Errorf("a first boot has the rerun's id %s", before.RerunID)
		}
		if string(before.UserData) != "first\x00" || before.Hostname != "web.internal" || before.Interfaces[0].Subnet.String() != "172.31.0.0/16" || before.Options.Disabled {
			t.Errorf("metadata %+v", before)
		}
		<-time.After(2 * time.Minute)
		if get() != before {
			t.Error("a new pointer though nothing changed")
		}
		e.edit(func() {
			e.setUserData(idA, "second")
			e.extra[idA] = func(d *api.DesiredInstance) {
				d.Metadata = api.MetadataOptions{HTTPEndpoint: "disabled", HTTPTokens: "optional", HTTPPutResponseHopLimit: 2, InstanceMetadataTags: "enabled"}
				d.Tags, d.CloudInitID = map[string]string{"a": "b"}, idB
			}
		})
		<-time.After(time.Second)
		after := get()
		if string(after.UserData) != "first\x00" || after.Options != (metadata.Options{Disabled: true, HopLimit: 2, Tags: true}) || after.Tags["a"] != "b" || after.ID != idA || after.RerunID != idB {
			t.Errorf("metadata %+v", after)
		}
		e.reboot(idA, true)
		e.until(t, "second boot", time.Minute, func() bool { return e.vms.boots(idA) == 2 })
		if string(get().UserData) != "second" || !e.vms.sawUserData(idA, "second") {
			t.Errorf("user-data %q", get().UserData)
		}
		file := filepath.Join(e.vms.dir, "instances", idA, fileUserData)
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
	})
}

// Without a network a VM has no card, and nothing waits for one.
func TestNoNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.cfg.Network = nil
		e.up(t)
		defer func() { e.downAgent(); e.vms.Close() }()
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		w := e.agent.workers[idA]
		vols, _ := readVolumes(w.order().desired)
		if spec := w.spec(w.order().desired, vols, e.agent.dir.socket(idA)); len(spec.NICs) != 0 {
			t.Errorf("cards %+v", spec.NICs)
		}
		if !strings.Contains(string(e.vms.seeds[idA][0]), "ethernets: {}") {
			t.Error("the seed speaks of a network")
		}
	})
}

// The keys of the metadata service are made once and closed to others.
func TestKeysAreKept(t *testing.T) {
	l := layout{t.TempDir()}
	if err := os.WriteFile(l.file(fileIdentityKey), identity(), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := l.tokenKey()
	if err != nil || len(first) < 32 {
		t.Fatal(len(first), err)
	}
	if again, err := l.tokenKey(); err != nil || !slices.Equal(first, again) {
		t.Errorf("another key: %v", err)
	}
	if _, err := l.identityKey(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(l.file(fileTokenKey)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.WriteFile(l.file(fileIdentityKey), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.identityKey(); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("a broken key: %v", err)
	}
}

// A broken file of what is known is told and changes nothing.
func TestBrokenKnown(t *testing.T) {
	path := filepath.Join(t.TempDir(), fileKnown)
	if _, ok, err := readKnown(path); ok || err != nil {
		t.Errorf("none: %v, %v", ok, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := readKnown(path); ok || err == nil {
		t.Errorf("broken: %v, %v", ok, err)
	}
}

// A network that cannot be made ends the agent before it does anything.
func TestNetworkRefused(t *testing.T) {
	e := newEnvIn(t, t.TempDir(), fakeNow)
	defer e.vms.Close()
	e.cfg.Network = func(func(string, net.Listener)) (network.Network, error) { return nil, errors.New("taken") }
	e.cfg.ServerURL = "http://127.0.0.1:1"
	if err := Run(context.Background(), e.cfg); err == nil || !strings.Contains(err.Error(), "taken") {
		t.Errorf("error %v", err)
	}
}
