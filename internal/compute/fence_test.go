package compute

import (
	"testing"
	"time"
)

// Every state of an instance whose node is declared off.
// contract: U-21 lesson 3 lesson 4
func TestFence(t *testing.T) {
	want := map[InstanceState]InstanceState{
		StateCreating: StateStopped, StateRunning: StateStopped, StateStopping: StateStopped, StateStopped: StateStopped,
		StateStarting: StateStopped, StateRebooting: StateStopped, StateMigrating: StateStopped,
		StateTerminating: StateTerminated, StateTerminated: StateTerminated, StateError: StateError,
	}
	now := time.Unix(1, 0)
	for _, s := range InstanceStates {
		i := Instance{State: s, Goal: GoalRunning, Epoch: 5, NodeID: "n1", Deadline: now, Move: &Move{}}
		changed := i.Fence("its node is dead", now)
		if i.State != want[s] || changed != (i.State != s) {
			t.Errorf("%s becomes %s (changed %v), want %s", s, i.State, changed, want[s])
		}
		if !changed {
			if i.Epoch != 5 {
				t.Errorf("%s: epoch %d", s, i.Epoch)
			}
			continue
		}
		// A VM that runs there after all is taken down when the node is back.
		if i.Epoch <= 5 || i.Goal == GoalRunning || !i.Deadline.IsZero() || i.Move != nil || i.NodeID != "n1" {
			t.Errorf("%s: %+v", s, i)
		}
		if i.State == StateStopped && i.Message != "its node is dead" || i.State == StateTerminated && !i.TerminatedAt.Equal(now) {
			t.Errorf("%s: %+v", s, i)
		}
		if i.Observe(Observation{Phase: PhaseRunning, Epoch: 5}, now) {
			t.Errorf("%s: a report from before changes it to %s", s, i.State)
		}
	}
}

// A beat ends what an operator said.
// contract: N-23
func TestDeclaredOffUntilHeard(t *testing.T) {
	now := time.Unix(1000, 0)
	n := Node{Liveness: Liveness{BootID: "one"}, Maintenance: Maintenance{Mode: NodeMaintenance, DeclaredOff: now}}
	if n.State() != NodeOff || n.Calm("one") {
		t.Errorf("%s", n.State())
	}
	if !n.Heard("one", now.Add(time.Hour)) || n.State() != NodeMaintenance || !n.Maintenance.ReturnedAt.Equal(now.Add(time.Hour)) {
		t.Errorf("%s, %+v", n.State(), n.Maintenance)
	}
	if n.Heard("one", now.Add(2*time.Hour)) {
		t.Error("the next beat changes it again")
	}
	n.Maintenance.Leave()
	if n.Maintenance.ReturnedAt.IsZero() {
		t.Error("the end of a maintenance forgets it")
	}
}
