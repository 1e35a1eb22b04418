package control_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
)

func drain(s *apptest.System, node string, in api.DrainNode) (out api.Drain) {
	s.Operator.Do("POST", api.NodePath(node, "drain"), in).Want(202).Decode(&out)
	return out
}

func drained(s *apptest.System, node string) (out api.Drain) {
	s.Operator.Do("GET", api.NodePath(node, "drain"), nil).Want(200).Decode(&out)
	return out
}

func item(t *testing.T, d api.Drain, id string) api.DrainInstance {
	t.Helper()
	n := slices.IndexFunc(d.Instances, func(i api.DrainInstance) bool { return i.InstanceID == id })
	if n < 0 {
		t.Fatalf("the drain does not know %s: %+v", id, d.Instances)
	}
	return d.Instances[n]
}

func run(t *testing.T, loop func(context.Context) error) {
	t.Helper()
	if err := loop(t.Context()); err != nil {
		t.Error(err)
	}
}

// drive lets machines and the drain's loop go on until nothing changes.
func drive(t *testing.T, s *apptest.System, machines ...*machine) {
	t.Helper()
	for range 6 {
		run(t, s.Control.Drain)
		settle(machines...)
	}
}

// only places what is created meanwhile on the one node.
func only(s *apptest.System, node string, others []string, fn func()) {
	for _, id := range others {
		s.Operator.Do("POST", api.NodePath(id, "cordon"), nil).Want(200)
	}
	fn()
	for _, id := range others {
		s.Operator.Do("POST", api.NodePath(id, "uncordon"), nil).Want(200)
	}
}

// launched are instances that run on the first machine.
func launched(t *testing.T, s *apptest.System, on *machine, other *machine, specs ...api.CreateInstance) (out []api.Instance) {
	t.Helper()
	only(s, on.ID, []string{other.ID}, func() {
		for _, in := range specs {
			out = append(out, s.Create("default", in))
		}
		place(t, s)
		settle(on, other)
	})
	for n := range out {
		if out[n] = s.Operator.Instance("default", out[n].ID); out[n].State != "running" || out[n].NodeID != on.ID {
			t.Fatalf("%s is %s on %s: %s", out[n].ID, out[n].State, out[n].NodeID, out[n].StateMessage)
		}
	}
	return out
}

// A drain by each strategy, shown first, up to a machine that may be powered off, and
// back.
// contract: N-20 N-23 U-16 // lesson 22
func TestDrain(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
		is := launched(t, s, a, b,
			api.CreateInstance{Name: "runs", DesiredState: "running"},
			api.CreateInstance{Name: "rests"},
			api.CreateInstance{Name: "stays", MaintenanceStrategy: "stop", DesiredState: "running", StartOnNodeBoot: true},
			api.CreateInstance{Name: "anew", MaintenanceStrategy: "recreate"},
			api.CreateInstance{Name: "waits"})
		runs, rests, stays, anew, waits := is[0], is[1], is[2], is[3], is[4]
		s.Operator.Do("POST", api.InstancePath("default", rests.ID, "stop"), nil).Want(202)
		settle(a, b)
		a.write(runs.ID, "work")
		a.write(rests.ID, "asleep")
		a.write(anew.ID, "lost")

		preview := drain(s, "n1", api.DrainNode{DryRun: true, Overrides: map[string]string{waits.ID: "stop"}})
		if !preview.DryRun || preview.NodeState != "ready" || preview.SafeToPowerOff || len(preview.Instances) != 5 {
			t.Errorf("%+v", preview)
		}
		for id, want := range map[string]struct{ strategy, target, says string }{
			runs.ID: {"migrate", "n2", "started there"}, rests.ID: {"migrate", "n2", "stays stopped"}, stays.ID: {"stop", "", "takes part again"},
			anew.ID: {"recreate", "n2", "is lost"}, waits.ID: {"stop", "", "takes part again"},
		} {
			i := item(t, preview, id)
			if i.Strategy != want.strategy || i.TargetNodeID != want.target || !strings.Contains(i.Message, want.says) || i.Status != "planned" {
				t.Errorf("%s: %+v", i.Name, i)
			}
		}
		if i := item(t, preview, runs.ID); i.Volumes != 1 || i.MaxBytes != 2<<30 || !i.Running {
			t.Errorf("%+v", i)
		}
		if n := committed(s, "n2"); n != 0 {
			t.Errorf("the preview holds %d on n2", n)
		}

		begun := drain(s, "n1", api.DrainNode{Reason: "new memory", Overrides: map[string]string{waits.ID: "stop"}, Parallel: 2})
		if begun.NodeState != "draining" || begun.Outcome != "" || begun.Deadline == nil || begun.By == "" || begun.Reason != "new memory" {
			t.Errorf("%+v", begun)
		}
		run(t, s.Control.Drain)
		active := 0
		for _, i := range drained(s, "n1").Instances {
			if i.Status != "pending" {
				active++
			}
		}
		if active > 2 {
			t.Errorf("%d are on their way, 2 may be", active)
		}
		s.Restart() // it goes on, once the old server's lease is over
		s.Clock.Advance(31 * time.Second)
		drive(t, s, a, b)

		d := drained(s, "n1")
		if d.Outcome != "done" || d.NodeState != "maintenance" || !d.SafeToPowerOff || len(d.NotSafe) != 0 {
			t.Fatalf("%+v", d)
		}
		for id, want := range map[string]struct{ status, node, state, root string }{
			runs.ID: {"done", "n2", "running", "work"}, rests.ID: {"done", "n2", "stopped", ""}, anew.ID: {"done", "n2", "running", "image"},
			stays.ID: {"held", "n1", "stopped", "image"}, waits.ID: {"held", "n1", "stopped", "image"},
		} {
			i, v := s.Operator.Instance("default", id), item(t, d, id)
			if v.Status != want.status || i.NodeID != want.node || i.State != want.state {
				t.Errorf("%s: %s, %s on %s (%s)", i.Name, v.Status, i.State, i.NodeID, v.Message)
			}
			m := map[string]*machine{"n1": a, "n2": b}[i.NodeID]
			if got := m.files[i.RootVolumeID]; got != want.root {
				t.Errorf("%s: its root volume holds %q", i.Name, got)
			}
			if on := hasFile([]*machine{a, b}, i.RootVolumeID); len(on) > 1 {
				t.Errorf("%s: its root volume is on %v", i.Name, on)
			}
		}
		books(t, s)

		// Nothing starts what was stopped: not its wish, not the node's boot, nobody.
		a.BootID = "second"
		run(t, s.Control.Converge)
		a.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{BootID: "first", Instances: []api.ObservedInstance{}}).Want(200)
		a.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{BootID: "second", Instances: []api.ObservedInstance{}}).Want(200)
		s.Operator.Do("POST", api.InstancePath("default", stays.ID, "start"), nil).Refused(409, "INVALID_STATE")
		settle(a, b)
		if d := drained(s, "n1"); !d.SafeToPowerOff {
			t.Errorf("%v", d.NotSafe)
		}
		// Uncordoned, it takes part again, and what ran there runs again.
		s.Operator.Do("POST", api.NodePath("n1", "uncordon"), nil).Want(200)
		settle(a, b)
		for _, i := range []api.Instance{stays, waits} {
			if i := s.Operator.Instance("default", i.ID); i.State != "running" || i.NodeID != "n1" {
				t.Errorf("%s: %s on %s", i.Name, i.State, i.NodeID)
			}
		}
		// What rested can be started where it is now, with what it held.
		s.Operator.Do("POST", api.InstancePath("default", rests.ID, "start"), nil).Want(202)
		settle(a, b)
		if got := b.files[rests.RootVolumeID]; got != "asleep" {
			t.Errorf("the stopped one's root volume holds %q", got)
		}
	})
}

// A drain that finds no room says so, goes on when there is some, and at its deadline
// leaves what is left, named with its reason.
// contract: N-20 // lesson 14 // lesson 18 // lesson 22
func TestDrainWithoutRoom(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
		is := launched(t, s, a, b, api.CreateInstance{VCPUs: 40, MemoryBytes: 1 << 30}, api.CreateInstance{VCPUs: 20, MemoryBytes: 1 << 30},
			api.CreateInstance{MaintenanceStrategy: "recreate", DataVolumes: []api.DataVolumeInput{{SizeBytes: 1 << 20}}})
		big, small, odd := is[0], is[1], is[2]
		filler := launched(t, s, b, a, api.CreateInstance{VCPUs: 40, MemoryBytes: 1 << 30})[0]

		preview := drain(s, "n1", api.DrainNode{DryRun: true})
		if i := item(t, preview, big.ID); i.Placement == nil || i.Placement.Nearest == nil || !strings.Contains(i.Message, "vCPUs") || i.TargetNodeID != "" {
			t.Errorf("%+v", i)
		}
		if i := item(t, preview, odd.ID); !strings.Contains(i.Message, "data volumes") {
			t.Errorf("%+v", i)
		}
		drain(s, "n1", api.DrainNode{DeadlineSeconds: 100})
		drive(t, s, a, b)
		d := drained(s, "n1")
		if i := item(t, d, big.ID); i.Status != "pending" || !strings.Contains(i.Message, "vCPUs") {
			t.Errorf("%+v", i)
		}
		if i := item(t, d, small.ID); i.Status != "done" || i.TargetNodeID != "n2" {
			t.Errorf("%+v", i)
		}
		if d.SafeToPowerOff || d.NodeState != "draining" || d.Outcome != "" {
			t.Errorf("%+v", d)
		}
		// Room appears, and it goes.
		s.Operator.Do("DELETE", api.InstancePath("default", filler.ID), nil).Want(202)
		settle(a, b)
		s.Clock.Advance(20 * time.Second)
		drive(t, s, a, b)
		if i := item(t, drained(s, "n1"), big.ID); i.Status != "done" {
			t.Errorf("%+v", i)
		}
		// What cannot go is named at the deadline.
		s.Clock.Advance(50 * time.Second)
		a.Beat(apptest.Machine("n1"))
		s.Clock.Advance(50 * time.Second)
		drive(t, s, a, b)
		d = drained(s, "n1")
		if i := item(t, d, odd.ID); i.Status != "failed" || !strings.Contains(i.Message, "data volumes") {
			t.Errorf("%+v", i)
		}
		if d.Outcome != "deadline" || d.NodeState != "maintenance" || d.SafeToPowerOff || d.EndedAt == nil {
			t.Errorf("%+v", d)
		}
		if i := s.Operator.Instance("default", odd.ID); i.State != "running" {
			t.Errorf("%s", i.State)
		}
		books(t, s)
	})
}

// A drain can be cancelled at any moment: the node takes part again, what has not
// switched stays, what has stays gone.
// contract: N-20 // lesson 22
func TestDrainCancelled(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
		is := launched(t, s, a, b, api.CreateInstance{}, api.CreateInstance{}, api.CreateInstance{MaintenanceStrategy: "stop"}, api.CreateInstance{})
		s.Operator.Do("POST", api.NodePath("n1", "drain/cancel"), nil).Refused(409, "INVALID_STATE")
		drain(s, "n1", api.DrainNode{Parallel: 3})
		run(t, s.Control.Drain)
		var gone string
		for _, i := range drained(s, "n1").Instances { // one of them gets there
			if i.Status == "stopping" && i.Strategy == "migrate" && gone == "" {
				gone = i.InstanceID
			}
		}
		a.sync()
		rest(a)
		for a.upload() {
			a.sync()
			if s.Operator.Instance("default", gone).NodeID == "n2" {
				break
			}
		}
		a.sync()
		var out api.Drain
		s.Operator.Do("POST", api.NodePath("n1", "drain/cancel"), nil).Want(200).Decode(&out)
		if out.NodeState != "ready" || out.Outcome != "cancelled" || out.SafeToPowerOff {
			t.Errorf("%+v", out)
		}
		drive(t, s, a, b)
		moved := 0
		for _, i := range is {
			i = s.Operator.Instance("default", i.ID)
			if i.State != "running" {
				t.Errorf("%s is %s: %s\n%s", i.ID, i.State, i.StateMessage, timeline(t, s, "default", i.ID))
			}
			if i.NodeID == "n2" {
				moved++
			}
		}
		if moved == 0 || moved == len(is) {
			t.Errorf("%d of %d moved", moved, len(is))
		}
		books(t, s)
	})
}

// A node in maintenance takes nothing new, whatever it reports and whoever restarts;
// what runs there goes on, and can be started again there.
// contract: N-05 N-20 N-23 // lesson 9
func TestCordon(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a := newMachine(t, s, "n1")
		i := s.Create("default", api.CreateInstance{})
		place(t, s)
		settle(a)
		var n api.Node
		for range 2 { // twice is once
			s.Operator.Do("POST", api.NodePath("n1", "cordon"), api.CordonNode{Reason: "fan"}).Want(200).Decode(&n)
		}
		since := n.Maintenance.Since
		a.Beat(apptest.Machine("n1"))
		s.Restart()
		a.Beat(apptest.Machine("n1"))
		s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&n)
		if m := n.Maintenance; n.State != "maintenance" || m == nil || m.Mode != "maintenance" || m.Reason != "fan" || m.By == "" || !m.Since.Equal(since) {
			t.Errorf("%s %+v", n.State, m)
		}
		waits := s.Create("default", api.CreateInstance{})
		place(t, s)
		if w := s.Operator.Instance("default", waits.ID); w.NodeID != "" || !strings.Contains(w.StateMessage, "maintenance") {
			t.Errorf("%s on %q: %s", w.State, w.NodeID, w.StateMessage)
		}
		s.Operator.Do("POST", api.InstancePath("default", i.ID, "stop"), nil).Want(202)
		settle(a)
		s.Operator.Do("POST", api.InstancePath("default", i.ID, "start"), nil).Want(202)
		settle(a)
		if i := s.Operator.Instance("default", i.ID); i.State != "running" {
			t.Errorf("%s", i.State)
		}
		for range 2 {
			n = api.Node{}
			s.Operator.Do("POST", api.NodePath("n1", "uncordon"), nil).Want(200).Decode(&n)
		}
		if n.State != "ready" || n.Maintenance != nil {
			t.Errorf("%s %+v", n.State, n.Maintenance)
		}
		place(t, s)
		settle(a)
		if w := s.Operator.Instance("default", waits.ID); w.NodeID != "n1" {
			t.Errorf("%s on %q", w.State, w.NodeID)
		}
	})
}
