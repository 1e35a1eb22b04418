package compute

import (
	"testing"
	"time"
)

var t0 = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// running is an instance that has run since t0 and wants an agent.
func running() (Instance, Agent) {
	return Instance{ID: "i-A8c2D4e6F", State: StateRunning, LaunchedAt: t0, Spec: InstanceSpec{AgentEnabled: true}},
		Agent{Activation: ActivationAutomatic, RunningSince: t0, SampledAt: t0}
}

// contract: U-07 U-10
func TestHealth(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		change func(*Instance, *Agent)
		at     time.Duration // after t0
		want   Health
		agent  Health
	}{
		{"not reported, 2:59 after launch", nil, 179 * s, HealthUnknown, HealthUnknown},
		{"not reported, 3:00 after launch", nil, 180 * s, HealthUnhealthy, HealthUnknown},
		{"heartbeat and sample fresh", beatAt(100*s, 100*s), 130 * s, HealthHealthy, HealthHealthy},
		{"heartbeat 1 s late is no flap", beatAt(100*s, 100*s), 131 * s, HealthHealthy, HealthHealthy},
		{"heartbeat 90 s old", beatAt(100*s, 180*s), 190 * s, HealthHealthy, HealthHealthy},
		{"heartbeat 91 s old, sample fresh", beatAt(100*s, 180*s), 191 * s, HealthDegraded, HealthDegraded},
		{"heartbeat 2:59 old, sample fresh", beatAt(100*s, 270*s), 279 * s, HealthDegraded, HealthDegraded},
		{"heartbeat 3:00 old", beatAt(100*s, 270*s), 280 * s, HealthUnhealthy, HealthUnhealthy},
		{"sample 3:00 old", beatAt(290*s, 120*s), 300 * s, HealthHealthy, HealthHealthy},
		{"sample 3:01 old", beatAt(290*s, 119*s), 300 * s, HealthDegraded, HealthDegraded},
		{"both late", beatAt(100*s, 100*s), 278 * s, HealthDegraded, HealthDegraded},
		{"heartbeat of an earlier run only", func(_ *Instance, a *Agent) { a.LastHeartbeatAt = t0.Add(-s) }, 60 * s, HealthUnknown, HealthUnknown},
		{"heartbeat of an earlier run only, 3:00 into this one", func(_ *Instance, a *Agent) { a.LastHeartbeatAt = t0.Add(-s) }, 180 * s, HealthUnhealthy, HealthUnhealthy},
		{"enrolled later: the window runs from there", func(_ *Instance, a *Agent) { a.EnrolledAt = t0.Add(600 * s) }, 779 * s, HealthUnknown, HealthUnknown},
		{"enrolled later and silent", func(_ *Instance, a *Agent) { a.EnrolledAt = t0.Add(600 * s) }, 780 * s, HealthUnhealthy, HealthUnknown},
		{"enrollment pending", func(_ *Instance, a *Agent) { a.EnrollmentPending = true }, 3600 * s, HealthUnknown, HealthEnrollmentPending},
		{"agent not wanted", func(i *Instance, _ *Agent) { i.Spec.AgentEnabled = false }, 3600 * s, HealthAgentDisabled, HealthAgentDisabled},
		{"error beats not wanted", func(i *Instance, _ *Agent) { i.State = StateError; i.Spec.AgentEnabled = false }, 0, HealthUnhealthy, HealthAgentDisabled},
		{"migrating beats not wanted", func(i *Instance, _ *Agent) { i.State = StateMigrating; i.Spec.AgentEnabled = false }, 0, HealthMigrating, HealthAgentDisabled},
		{"migrating with a fresh heartbeat", func(i *Instance, a *Agent) { i.State = StateMigrating; beatAt(0, 0)(i, a) }, s, HealthMigrating, HealthUnknown},
		{"error with a fresh heartbeat", func(i *Instance, a *Agent) { i.State = StateError; beatAt(0, 0)(i, a) }, s, HealthUnhealthy, HealthUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			i, a := running()
			if c.change != nil {
				c.change(&i, &a)
			}
			now := t0.Add(c.at)
			if got := i.Health(&a, now); got != c.want {
				t.Errorf("health %q, want %q", got, c.want)
			}
			if got := i.AgentHealth(&a, now); got != c.agent {
				t.Errorf("agent's health %q, want %q", got, c.agent)
			}
		})
	}
}

func beatAt(heartbeat, sample time.Duration) func(*Instance, *Agent) {
	return func(_ *Instance, a *Agent) { a.LastHeartbeatAt, a.SampledAt = t0.Add(heartbeat), t0.Add(sample) }
}

// contract: U-07
func TestHealthOfEveryStateThatIsNotRunning(t *testing.T) {
	want := map[InstanceState]Health{
		StateCreating: HealthUnknown, StateStopping: HealthUnknown, StateStopped: HealthUnknown, StateStarting: HealthUnknown,
		StateRebooting: HealthUnknown, StateMigrating: HealthMigrating, StateTerminating: HealthUnknown, StateTerminated: HealthUnknown,
		StateError: HealthUnhealthy,
	}
	for _, s := range InstanceStates {
		if s == StateRunning {
			continue
		}
		i, a := running()
		i.State = s
		beatAt(0, 0)(&i, &a)
		if got := i.Health(&a, t0); got != want[s] {
			t.Errorf("%s: health %q, want %q", s, got, want[s])
		}
	}
}

// contract: U-08 U-09
func TestHealthReason(t *testing.T) {
	const s = time.Second
	grace := t0.Add(15 * time.Minute)
	for _, c := range []struct {
		name     string
		change   func(*Instance, *Agent)
		at       time.Duration
		code     string // empty: nothing to explain
		since    time.Time
		deadline time.Time
	}{
		{"just launched", nil, s, ReasonAgentPending, t0, grace},
		{"one second before the grace window ends", nil, 899 * s, ReasonAgentPending, t0, grace},
		{"the grace window has ended", nil, 900 * s, ReasonAgentNeverReported, t0, time.Time{}},
		{"the window runs from the enrollment", func(_ *Instance, a *Agent) { a.EnrolledAt = t0.Add(time.Hour) }, 3600*s + 899*s, ReasonAgentPending, t0.Add(time.Hour), t0.Add(75 * time.Minute)},
		{"never reported since the enrollment", func(_ *Instance, a *Agent) { a.EnrolledAt = t0.Add(time.Hour) }, 3600*s + 900*s, ReasonAgentNeverReported, t0.Add(time.Hour), time.Time{}},
		{"healthy", beatAt(100*s, 100*s), 120 * s, "", time.Time{}, time.Time{}},
		{"heartbeat 90 s old", beatAt(100*s, 180*s), 190 * s, "", time.Time{}, time.Time{}},
		{"heartbeat 91 s old", beatAt(100*s, 180*s), 191 * s, ReasonAgentGoneQuiet, t0.Add(100 * s), time.Time{}},
		{"gone quiet", beatAt(100*s, 600*s), 600 * s, ReasonAgentGoneQuiet, t0.Add(100 * s), time.Time{}},
		{"only the sample is stale", beatAt(600*s, 100*s), 600 * s, "", time.Time{}, time.Time{}},
		{"pending enrollment", func(_ *Instance, a *Agent) { a.EnrollmentPending = true }, s, ReasonEnrollmentPending, time.Time{}, time.Time{}},
		{"not wanted", func(i *Instance, _ *Agent) { i.Spec.AgentEnabled = false }, s, ReasonAgentDisabled, time.Time{}, time.Time{}},
		{"not wanted, stopped", func(i *Instance, _ *Agent) { i.Spec.AgentEnabled = false; i.State = StateStopped }, s, ReasonAgentDisabled, time.Time{}, time.Time{}},
		{"stopped: the state explains", func(i *Instance, _ *Agent) { i.State = StateStopped }, s, "", time.Time{}, time.Time{}},
		{"error: the state explains", func(i *Instance, _ *Agent) { i.State = StateError }, s, "", time.Time{}, time.Time{}},
		{"migrating: the state explains", func(i *Instance, _ *Agent) { i.State = StateMigrating }, s, "", time.Time{}, time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			i, a := running()
			if c.change != nil {
				c.change(&i, &a)
			}
			r := i.HealthReason(&a, t0.Add(c.at))
			if r == nil {
				r = &HealthReason{}
			}
			if r.Code != c.code || !r.Since.Equal(c.since) || !r.Deadline.Equal(c.deadline) {
				t.Errorf("got %q since %v deadline %v; want %q, %v, %v", r.Code, r.Since, r.Deadline, c.code, c.since, c.deadline)
			}
			if (r.Message == "") != (c.code == "") {
				t.Errorf("message %q with code %q", r.Message, r.Code)
			}
		})
	}
}

// Every cell of (state, phase) is filled, and what each does is written here a
// second time.
//
// lesson 19
func TestReactions(t *testing.T) {
	up, down, fails, dead := StateRunning, StateStopped, StateError, StateTerminated
	// Order of the columns: running, paused, stopped, crashed, failed, gone,
	// preparing, unknown.
	phases := []Phase{PhaseRunning, PhasePaused, PhaseStopped, PhaseCrashed, PhaseFailed, PhaseGone, PhasePreparing, PhaseUnknown}
	want := map[InstanceState][]InstanceState{
		StateCreating:    {up, StateCreating, down, fails, fails, fails, StateCreating, StateCreating},
		StateStarting:    {up, StateStarting, down, fails, fails, fails, StateStarting, StateStarting},
		StateRebooting:   {up, StateRebooting, down, fails, fails, fails, StateRebooting, StateRebooting},
		StateRunning:     {up, up, down, fails, fails, fails, up, up},
		StateStopping:    {StateStopping, StateStopping, down, down, fails, fails, StateStopping, StateStopping},
		StateStopped:     {down, down, down, down, down, fails, down, down},
		StateMigrating:   {StateMigrating, StateMigrating, StateMigrating, StateMigrating, StateStarting, fails, StateMigrating, StateMigrating},
		StateTerminating: {StateTerminating, StateTerminating, StateTerminating, StateTerminating, StateTerminating, dead, StateTerminating, StateTerminating},
		StateTerminated:  {dead, dead, dead, dead, dead, dead, dead, dead},
		StateError:       {fails, fails, fails, fails, fails, fails, fails, fails},
	}
	for _, s := range InstanceStates {
		if len(reactions[s]) != len(phases) {
			t.Errorf("%s: %d cells, want %d", s, len(reactions[s]), len(phases))
		}
		for n, p := range phases {
			for _, epoch := range []int64{6, 7, 8} {
				i := Instance{State: s, Epoch: 7, Goal: GoalRunning, Move: &Move{To: "m", WasRunning: true}}
				expect := want[s][n]
				if epoch != i.Epoch {
					expect = s // another epoch's word
				}
				changed := i.Observe(Observation{Phase: p, Epoch: epoch, Message: "why"}, t0)
				if i.State != expect {
					t.Errorf("%s, %s of epoch %d: %s, want %s", s, p, epoch, i.State, expect)
				}
				if i.State != s && !changed {
					t.Errorf("%s, %s: changed to %s and did not say so", s, p, i.State)
				}
				if i.State == StateError && s != StateError && (i.Goal != GoalStopped || i.Epoch == 7 || i.Message == "") {
					t.Errorf("%s, %s: an error must take the VM down and say why: %+v", s, p, i)
				}
			}
		}
	}
}
