package compute

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var states = []InstanceState{StateCreating, StateRunning, StateStopping, StateStopped, StateStarting, StateRebooting, StateMigrating, StateTerminating, StateTerminated, StateError}
var phases = []Phase{PhasePreparing, PhaseRunning, PhasePaused, PhaseStopped, PhaseCrashed, PhaseFailed, PhaseGone, PhaseUnknown}

// Every cell of (state, verb): A accepted, D done already, - refused.
// contract: U-02 U-19 // lesson 19
func TestVerdicts(t *testing.T) {
	verbs := []Verb{VerbStart, VerbStop, VerbReboot, VerbTerminate}
	for state, row := range map[InstanceState]string{
		//            start, stop, reboot, terminate
		StateCreating:    "DA-A",
		StateRunning:     "DAAA",
		StateStopping:    "-A-A",
		StateStopped:     "AD-A",
		StateStarting:    "DA-A",
		StateRebooting:   "DADA",
		StateMigrating:   "---A",
		StateTerminating: "---D",
		StateTerminated:  "---D",
		StateError:       "AA-A",
	} {
		for i, v := range verbs {
			if got := map[Verdict]byte{Accept: 'A', Done: 'D', Refuse: '-'}[Judge(state, v)]; got != row[i] {
				t.Errorf("%s an instance that is %s: %c, want %c", v, state, got, row[i])
			}
		}
	}
	if len(verdicts) != len(states) {
		t.Errorf("the table has %d states of %d", len(verdicts), len(states))
	}
	for s, row := range verdicts {
		if len(row) != len(verbs) {
			t.Errorf("%s: %d verbs of %d", s, len(row), len(verbs))
		}
		if row[VerbTerminate] == Refuse {
			t.Errorf("%s refuses to terminate, which beats everything", s)
		}
	}
}

// Every cell of (state, reported phase): the state that follows.
// contract: U-19 // lesson 3 // lesson 9
func TestReports(t *testing.T) {
	next := map[byte]InstanceState{'r': StateRunning, 's': StateStopped, 'e': StateError, 't': StateTerminated}
	goals := map[InstanceState]Goal{StateStopping: GoalStopped, StateStopped: GoalStopped, StateError: GoalStopped, StateTerminating: GoalGone, StateTerminated: GoalGone}
	for state, row := range map[InstanceState]string{
		// preparing, running, paused, stopped, crashed, failed, gone, unknown; . stays
		StateCreating:    ".r.seee.",
		StateStarting:    ".r.seee.",
		StateRebooting:   ".r.seee.",
		StateRunning:     "...seee.",
		StateStopping:    "...ssee.",
		StateStopped:     "......e.",
		StateMigrating:   ".....se.",
		StateTerminating: "......t.",
		StateTerminated:  "........",
		StateError:       "........",
	} {
		for n, p := range phases {
			goal := goals[state]
			if goal == "" {
				goal = GoalRunning
			}
			i := Instance{State: state, Goal: goal, Epoch: 5, NodeID: "n", Move: &Move{To: "m"}}
			i.Observe(Observation{Phase: p, Epoch: 5}, time.Unix(100, 0))
			want := state
			if row[n] != '.' {
				want = next[row[n]]
			}
			if i.State != want {
				t.Errorf("%s, and the node says %s: %s, want %s", state, p, i.State, want)
			}
			if row[n] == 'e' && i.Message == "" {
				t.Errorf("%s, and the node says %s: error without a word", state, p)
			}
			for _, epoch := range []int64{4, 6} {
				old := Instance{State: state, Goal: goal, Epoch: 5, NodeID: "n", Move: &Move{To: "m"}}
				if old.Observe(Observation{Phase: p, Epoch: epoch}, time.Unix(100, 0)) || old.State != state {
					t.Errorf("%s: a report of epoch %d counted at epoch 5", state, epoch)
				}
			}
		}
	}
}

// Deadlines, on both sides of each.
// contract: U-19 // lesson 19
func TestDeadlines(t *testing.T) {
	t0 := time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name  string
		do    func(*Instance)
		state InstanceState
		after time.Duration
		fails bool
	}{
		{"launch", func(i *Instance) { i.Deadline = t0.Add(CreateDeadline) }, StateCreating, CreateDeadline - 1, false},
		{"launch", func(i *Instance) { i.Deadline = t0.Add(CreateDeadline) }, StateCreating, CreateDeadline, true},
		{"start", func(i *Instance) { i.Start(t0) }, StateStarting, StartDeadline - 1, false},
		{"start", func(i *Instance) { i.Start(t0) }, StateStarting, StartDeadline, true},
		{"reboot", func(i *Instance) { i.Reboot(t0, false) }, StateRebooting, RebootDeadline - 1, false},
		{"reboot", func(i *Instance) { i.Reboot(t0, true) }, StateRebooting, RebootDeadline, true},
		{"stop", func(i *Instance) { i.Stop(t0, time.Minute, false) }, StateStopping, time.Minute + ForcedStopGrace - 1, false},
		{"stop", func(i *Instance) { i.Stop(t0, time.Minute, false) }, StateStopping, time.Minute + ForcedStopGrace, true},
		{"forced stop", func(i *Instance) { i.Stop(t0, time.Minute, true) }, StateStopping, ForcedStopGrace, true},
		{"terminate", func(i *Instance) { i.Terminate(t0) }, StateTerminating, 1000 * time.Hour, false}, // driven for ever
	} {
		i := Instance{State: StateCreating, Goal: GoalRunning, NodeID: "n", Epoch: 1}
		c.do(&i)
		if i.State != c.state {
			t.Errorf("%s: %s", c.name, i.State)
		}
		epoch := i.Epoch
		if got := i.Expire(t0.Add(c.after), time.Time{}); got != c.fails || (i.State == StateError) != c.fails {
			t.Errorf("%s after %v: %v, %s", c.name, c.after, got, i.State)
		}
		if c.fails && (i.Goal != GoalStopped || i.Epoch == epoch || i.Message == "") {
			t.Errorf("%s failed: goal %s, epoch %d → %d, %q", c.name, i.Goal, epoch, i.Epoch, i.Message)
		}
	}
}

// contract: U-16
func TestNodeBooted(t *testing.T) {
	now := time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)
	becomes := map[InstanceState]InstanceState{
		StateStopped: StateStarting, StateError: StateStarting, StateRunning: StateStarting, StateStarting: StateStarting,
		StateRebooting: StateStarting, StateCreating: StateCreating,
	}
	for _, state := range states {
		for _, asks := range []bool{true, false} {
			i := Instance{State: state, Goal: GoalRunning, NodeID: "n", Epoch: 7, Spec: InstanceSpec{StartOnNodeBoot: asks}}
			did, want := i.NodeBooted(now), becomes[state]
			if did != (asks && want != "") || did && (i.State != want || i.Epoch != 8 || i.Goal != GoalRunning) || !did && (i.State != state || i.Epoch != 7) {
				t.Errorf("%s, asks for it %v: %v, %s in epoch %d", state, asks, did, i.State, i.Epoch)
			}
		}
	}
}

// A node that was away has its time anew from when it is heard of again.
// contract: U-21
func TestExpireAfterSilence(t *testing.T) {
	t0 := time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)
	back := t0.Add(5 * time.Hour)
	for name, c := range map[string]struct {
		do   func(*Instance)
		anew time.Duration
	}{
		"launch": {func(i *Instance) { i.Deadline = t0.Add(CreateDeadline) }, CreateDeadline},
		"start":  {func(i *Instance) { i.Start(t0) }, StartDeadline},
		"reboot": {func(i *Instance) { i.Reboot(t0, true) }, RebootDeadline},
		"stop":   {func(i *Instance) { i.Stop(t0, time.Minute, false) }, ForcedStopGrace},
	} {
		i := Instance{State: StateCreating, Goal: GoalRunning, NodeID: "n", Epoch: 1}
		c.do(&i)
		if early, late := i.Expire(back.Add(c.anew-1), back), i.Expire(back.Add(c.anew), back); early || !late {
			t.Errorf("%s: expired early %v, in time %v", name, early, late)
		}
	}
}

// A later stop brings the deadline nearer, never further; force is now.
// contract: U-17 U-19 // lesson 20
func TestStopOnlyComesNearer(t *testing.T) {
	t0 := time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)
	rapid.Check(t, func(r *rapid.T) {
		i := Instance{State: StateRunning, Goal: GoalRunning, Epoch: 1, NodeID: "n"}
		i.Stop(t0, time.Hour, false)
		epoch, forced := i.Epoch, false
		now := t0
		for range rapid.IntRange(1, 10).Draw(r, "stops") {
			now = now.Add(time.Duration(rapid.IntRange(0, 600).Draw(r, "later")) * time.Second)
			before := i.Deadline
			force := rapid.IntRange(0, 4).Draw(r, "force") == 0
			patience := time.Duration(rapid.IntRange(0, 7200).Draw(r, "patience")) * time.Second
			i.Stop(now, patience, force)
			forced = forced || force
			if i.Deadline.After(before) {
				r.Fatalf("the deadline went from %s to %s", before, i.Deadline)
			}
			if force && i.Deadline.After(now) || i.ForceStopping != forced || i.Epoch != epoch || i.State != StateStopping {
				r.Fatalf("%+v after a stop with force %v", i, force)
			}
		}
	})
}

// Whatever happens in whatever order: terminate wins and stays, a state in
// transition has a deadline or is driven, an error says why, and an epoch never
// goes back.
// contract: U-19 // lesson 19
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		now := time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)
		i := Instance{State: StateCreating, Goal: GoalRunning, Epoch: 1, NodeID: "n", Deadline: now.Add(CreateDeadline)}
		terminated := false
		for range rapid.IntRange(1, 40).Draw(r, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(r, "later")) * time.Second)
			before := i
			switch e := rapid.IntRange(0, 9).Draw(r, "event"); {
			case e < 4:
				v := []Verb{VerbStart, VerbStop, VerbReboot, VerbTerminate}[e]
				if Judge(i.State, v) != Accept {
					continue
				}
				switch v {
				case VerbStart:
					i.Start(now)
				case VerbStop:
					i.Stop(now, time.Duration(rapid.IntRange(0, 100).Draw(r, "patience"))*time.Second, rapid.Bool().Draw(r, "force"))
				case VerbReboot:
					i.Reboot(now, rapid.Bool().Draw(r, "force"))
				case VerbTerminate:
					i.Terminate(now)
					terminated = true
				}
			case e < 8:
				i.Observe(Observation{Phase: rapid.SampledFrom(phases).Draw(r, "phase"), Epoch: i.Epoch - int64(rapid.IntRange(0, 1).Draw(r, "old"))}, now)
			default:
				i.Expire(now, now.Add(-time.Duration(rapid.IntRange(0, 7200).Draw(r, "heard"))*time.Second))
			}
			if i.Epoch < before.Epoch {
				r.Fatalf("the epoch went from %d to %d", before.Epoch, i.Epoch)
			}
			if i.Goal != before.Goal && i.Epoch == before.Epoch {
				r.Fatalf("the goal went from %s to %s within epoch %d", before.Goal, i.Goal, i.Epoch)
			}
			if terminated && i.State != StateTerminating && i.State != StateTerminated {
				r.Fatalf("terminated, and then %s", i.State)
			}
			if i.State.Transitional() && i.State != StateTerminating && i.Deadline.IsZero() {
				r.Fatalf("%s has no deadline", i.State)
			}
			if !i.State.Transitional() && !i.Deadline.IsZero() {
				r.Fatalf("%s has the deadline %s", i.State, i.Deadline)
			}
			if i.State == StateError && i.Message == "" {
				r.Fatal("an error without a word")
			}
			if i.ForceStopping && i.State != StateStopping && i.State != StateRebooting {
				r.Fatalf("%s is being stopped by force", i.State)
			}
		}
	})
}

// One that was never placed is gone at once: nothing runs anywhere.
// contract: U-19
func TestTerminateUnplaced(t *testing.T) {
	i := Instance{State: StateCreating, Goal: GoalRunning, Epoch: 1, Deadline: time.Unix(1, 0)}
	i.Terminate(time.Unix(5, 0))
	if i.State != StateTerminated || !i.TerminatedAt.Equal(time.Unix(5, 0)) || !i.Deadline.IsZero() {
		t.Errorf("%+v", i)
	}
}
