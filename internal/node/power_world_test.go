package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// powerWorld is a server and three nodes, one of whose hosts is in the test's hand.
type powerWorld struct {
	*world
	t    *testing.T
	box  *box
	host *machineHost
}

func (w *powerWorld) call(method, path string, in, out any) {
	w.t.Helper()
	if err := w.tenant.Do(w.t.Context(), method, path, in, out); err != nil {
		w.t.Fatal(err)
	}
}

// awaits asks for something until it is so.
func (w *powerWorld) awaits(what string, within time.Duration, ok func() (string, bool)) {
	w.t.Helper()
	for end := time.Now().Add(within); ; <-time.After(time.Second) {
		said, is := ok()
		if is {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("not within %v: %s; it is %s\n%s", within, what, said, w.logs.about(20, w.box.id))
		}
	}
}

func (w *powerWorld) node(state compute.NodeState, within time.Duration) (n api.Node) {
	w.t.Helper()
	w.awaits("the node is "+string(state), within, func() (string, bool) {
		if err := w.tenant.Do(w.t.Context(), "GET", api.NodePath(w.box.id), nil, &n); err != nil {
			return err.Error(), false // not yet known
		}
		return fmt.Sprintf("%s, %+v", n.State, n.PowerAction), n.State == string(state)
	})
	return n
}

func (w *powerWorld) instance(id string, state compute.InstanceState, within time.Duration) {
	w.t.Helper()
	w.awaits("an instance is "+string(state), within, func() (string, bool) {
		var i api.Instance
		w.call("GET", api.InstancePath("default", id), nil, &i)
		return i.State, i.State == string(state)
	})
}

// launch makes an instance on the node.
func (w *powerWorld) launch(in api.CreateInstance) string {
	w.t.Helper()
	in.ImageID, in.VCPUs, in.MemoryBytes, in.Name = w.image, 1, 256<<20, "x"
	in.Selectors = []string{"here"}
	var i api.Instance
	w.call("POST", api.InstancePath("default", ""), in, &i)
	w.instance(i.ID, compute.StateRunning, time.Minute)
	return i.ID
}

// inPowerWorld runs fn in a bubble with a world of the real server and real agents,
// whose first box is the one that the test is about.
func inPowerWorld(t *testing.T, fn func(t *testing.T, w *powerWorld)) {
	identity() // made outside of the bubble
	dir, err := os.MkdirTemp(memory(), "world")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) {
		base, err := newWorld(t, dir)
		defer func() { err := base.end(); errorsIn(t, err) }()
		errorsIn(t, err)
		fn(t, &powerWorld{base, t, base.boxes[0], &machineHost{}})
	})
}

// A node goes down and comes back, the real server and real agents on both ends: the
// guests go first, the host once, another node wakes it, and then runs again what is to.
// contract: N-18 N-19 N-20 N-23 U-16
func TestPowerFromServerToHost(t *testing.T) {
	inPowerWorld(t, func(t *testing.T, w *powerWorld) {
		went := make(chan struct{}, 1)
		w.host.before = func() {
			for _, vm := range w.box.list() {
				if vm.State == hypervisor.Running {
					t.Errorf("%s runs as its host goes down", vm.ID)
				}
			}
			went <- struct{}{}
		}
		neighbours := &machineHost{}
		for _, b := range w.boxes[1:] {
			b.stop()
			b.cfg.Host = neighbours
			errorsIn(t, b.start())
		}
		w.box.stop()
		w.box.cfg.Host, w.box.cfg.WakeMAC = w.host, "3c:fd:fe:00:00:01"
		errorsIn(t, w.box.start())
		w.node(compute.NodeReady, time.Minute)
		w.call("PATCH", api.NodePath(w.box.id), map[string]any{"declaredCapabilities": map[string]string{"here": "yes"}}, nil)

		wanted, atBoot, neither := w.launch(api.CreateInstance{DesiredState: "running"}), w.launch(api.CreateInstance{StartOnNodeBoot: true}), w.launch(api.CreateInstance{})
		var f interface{ Error() string }
		if err := w.tenant.Do(t.Context(), "POST", api.NodePath(w.box.id, "shutdown"), nil, nil); !errors.As(err, &f) {
			t.Error("a node with instances is shut down without force")
		}
		w.call("POST", api.NodePath(w.box.id, "shutdown"), api.PowerRequest{Force: true}, nil)
		<-went
		w.instance(wanted, compute.StateStopped, time.Minute) // said before the host is gone
		w.box.reboot()
		n := w.node(compute.NodeOff, 5*time.Minute)
		if n.PowerAction.OffAt == nil || n.PowerAction.PowerOn.WakeOnLanMAC != "3c:fd:fe:00:00:01" {
			t.Errorf("%+v", n.PowerAction)
		}
		if err := w.server.stop(false); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		errorsIn(t, w.server.start())
		<-time.After(5 * time.Minute)
		w.node(compute.NodeOff, 0)

		var sent api.WakeSent
		w.call("POST", api.NodePath(w.box.id, "wake"), nil, &sent)
		if !slices.Contains([]string{"n2", "n3"}, sent.Via) {
			t.Errorf("woken by %s", sent.Via)
		}
		w.awaits("the packet is sent", time.Minute, func() (string, bool) {
			neighbours.mu.Lock()
			defer neighbours.mu.Unlock()
			return fmt.Sprint(neighbours.woken), slices.Equal(neighbours.woken, []string{"3c:fd:fe:00:00:01"})
		})
		errorsIn(t, w.box.start())
		if n = w.node(compute.NodeReady, time.Minute); n.PowerAction.State != "done" {
			t.Errorf("%+v", n.PowerAction)
		}
		w.instance(wanted, compute.StateRunning, time.Minute)
		w.instance(atBoot, compute.StateRunning, time.Minute)
		<-time.After(10 * time.Minute)
		w.instance(neither, compute.StateStopped, 0)
		if got := w.host.did(); !slices.Equal(got, []compute.PowerVerb{compute.PowerShutdown}) {
			t.Errorf("the host was asked to %v", got)
		}

		// A host that refuses, and one that does nothing.
		w.host.fail(errors.New("a backup runs"))
		w.call("POST", api.NodePath(w.box.id, "reboot"), api.PowerRequest{Force: true}, nil)
		<-went
		if n = w.node(compute.NodeReady, time.Minute); n.PowerAction.Message != "the host did not act: a backup runs" {
			t.Errorf("%+v", n.PowerAction)
		}
		w.instance(wanted, compute.StateRunning, time.Minute)
		w.host.fail(nil)
		w.call("POST", api.NodePath(w.box.id, "reboot"), api.PowerRequest{Force: true}, nil)
		<-went
		w.node(compute.NodeRebooting, 0)
		if n = w.node(compute.NodeReady, 15*time.Minute); n.PowerAction.State != "failed" {
			t.Errorf("%+v", n.PowerAction)
		}
		w.instance(wanted, compute.StateRunning, time.Minute)
	})
}

func errorsIn(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
