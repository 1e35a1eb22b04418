package compute

import (
	"testing"
	"time"
)

// A migration from its acceptance to either end.
// contract: U-19 U-21 // lesson 4 // lesson 19
func TestMove(t *testing.T) {
	now := time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)
	for _, was := range []InstanceState{StateRunning, StateStopped} {
		begun := func() *Instance {
			i := &Instance{State: was, Goal: GoalRunning, Epoch: 5, NodeID: "a"}
			i.Migrate(now, Move{To: "b", StopBy: now.Add(time.Minute)}, now.Add(time.Hour))
			return i
		}
		there, here := StateStopped, StateStopped
		if was == StateRunning {
			there, here = StateStarting, StateStarting
		}
		i := begun()
		if i.State != StateMigrating || i.Goal != GoalStopped || i.Epoch != 6 || i.NodeID != "a" || i.Move.WasRunning != (was == StateRunning) {
			t.Fatalf("from %s: %+v %+v", was, i, i.Move)
		}
		if i.Observe(Observation{Phase: PhaseStopped, Epoch: 5}, now) || i.Move.AtRest {
			t.Error("an earlier epoch's word put it at rest")
		}
		if !i.Observe(Observation{Phase: PhaseStopped, Epoch: 6}, now) || !i.Move.AtRest || i.State != StateMigrating {
			t.Errorf("%+v %+v", i, i.Move)
		}
		if i.Observe(Observation{Phase: PhaseStopped, Epoch: 6}, now) {
			t.Error("the same word again changed something")
		}
		if i.Expire(now.Add(time.Hour-1), time.Time{}) {
			t.Error("over before its deadline")
		}
		late := *i
		if !late.Expire(now.Add(time.Hour), time.Time{}) || late.State != here || late.NodeID != "a" || late.Move != nil || late.Message == "" {
			t.Errorf("out of time: %+v", late)
		}
		i.Arrive(now)
		if i.State != there || i.NodeID != "b" || i.Epoch != 7 || i.Move != nil || (i.Goal == GoalRunning) != (was == StateRunning) {
			t.Errorf("arrived: %+v", i)
		}
		i = begun()
		i.Terminate(now)
		if i.State != StateTerminating || i.Move != nil || i.NodeID != "a" {
			t.Errorf("terminated: %+v", i)
		}
	}
}

// Draining asks for more than maintenance, and leaving ends both. That a machine was
// declared off is another matter.
// contract: N-20 N-23
func TestMaintenanceModes(t *testing.T) {
	now := time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)
	m := Maintenance{DeclaredOff: now}
	if m.Leave() || !m.Enter(NodeMaintenance, "ann", "disks", now) || m.Enter(NodeMaintenance, "bob", "", now.Add(1)) || m.By != "ann" {
		t.Errorf("%+v", m)
	}
	if !m.Enter(NodeDraining, "bob", "", now.Add(2)) || m.Enter(NodeMaintenance, "eve", "", now.Add(3)) || m.Mode != NodeDraining || m.By != "bob" {
		t.Errorf("%+v", m)
	}
	// Whoever asks again with another reason is believed; since when stays.
	if !m.Enter(NodeDraining, "eve", "power", now.Add(4)) || m.Enter(NodeDraining, "bob", "power", now.Add(5)) || m.Enter(NodeDraining, "bob", "", now.Add(5)) ||
		m.By != "eve" || m.Reason != "power" || !m.Since.Equal(now.Add(2)) {
		t.Errorf("%+v", m)
	}
	if !m.Leave() || m != (Maintenance{DeclaredOff: now}) {
		t.Errorf("%+v", m)
	}
}
