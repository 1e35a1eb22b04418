package compute

import "time"

// How long each transitional state may last before the platform acts. A launch
// may have to fetch an image first.
const (
	CreateDeadline      = 30 * time.Minute
	StartDeadline       = 10 * time.Minute
	RebootDeadline      = 10 * time.Minute
	DefaultStopDeadline = 90 * time.Second
	MaxStopDeadline     = time.Hour
	// ForcedStopGrace is how long a pulled plug may take to be reported.
	ForcedStopGrace = 2 * time.Minute
)

// Verb is what a caller asks of an instance's life.
type Verb string

const (
	VerbStart     Verb = "start"
	VerbStop      Verb = "stop"
	VerbReboot    Verb = "reboot"
	VerbTerminate Verb = "terminate"
)

// Verdict is what a verb does in a state.
type Verdict uint8

const (
	Refuse Verdict = iota // 409 INVALID_STATE
	Accept                // the state changes
	Done                  // already so, or already on the way: answered as a success
)

// verdicts is the table of (state, verb); a test holds that no cell is missing.
// Terminate beats everything; stop may interrupt a launch; what is already on
// its way is not an error, so that a retried request is safe.
var verdicts = map[InstanceState]map[Verb]Verdict{
	StateCreating:    {VerbStart: Done, VerbStop: Accept, VerbReboot: Refuse, VerbTerminate: Accept},
	StateRunning:     {VerbStart: Done, VerbStop: Accept, VerbReboot: Accept, VerbTerminate: Accept},
	StateStopping:    {VerbStart: Refuse, VerbStop: Accept, VerbReboot: Refuse, VerbTerminate: Accept},
	StateStopped:     {VerbStart: Accept, VerbStop: Done, VerbReboot: Refuse, VerbTerminate: Accept},
	StateStarting:    {VerbStart: Done, VerbStop: Accept, VerbReboot: Refuse, VerbTerminate: Accept},
	StateRebooting:   {VerbStart: Done, VerbStop: Accept, VerbReboot: Done, VerbTerminate: Accept},
	StateMigrating:   {VerbStart: Refuse, VerbStop: Refuse, VerbReboot: Refuse, VerbTerminate: Accept},
	StateTerminating: {VerbStart: Refuse, VerbStop: Refuse, VerbReboot: Refuse, VerbTerminate: Done},
	StateTerminated:  {VerbStart: Refuse, VerbStop: Refuse, VerbReboot: Refuse, VerbTerminate: Done},
	StateError:       {VerbStart: Accept, VerbStop: Accept, VerbReboot: Refuse, VerbTerminate: Accept},
}

// Judge says what a verb does to an instance in state s.
func Judge(s InstanceState, v Verb) Verdict { return verdicts[s][v] }

// Start applies an accepted start.
func (i *Instance) Start(now time.Time) {
	i.to(StateStarting, GoalRunning, now.Add(StartDeadline))
}

// Reboot applies an accepted reboot; force gives the guest no time.
func (i *Instance) Reboot(now time.Time, force bool) {
	i.to(StateRebooting, GoalRunning, now.Add(RebootDeadline))
	i.ForceStopping = force
}

// Stop applies an accepted stop. A later stop only brings the deadline nearer,
// and force is a deadline that is now (lesson 20).
func (i *Instance) Stop(now time.Time, patience time.Duration, force bool) {
	deadline := now.Add(patience)
	if force {
		deadline = now
	}
	if i.State == StateStopping {
		if deadline.Before(i.Deadline) {
			i.Deadline = deadline
		}
		i.ForceStopping = i.ForceStopping || force
		return
	}
	i.to(StateStopping, GoalStopped, deadline)
	i.ForceStopping = force
}

// Terminate applies an accepted terminate. An instance that was never placed is
// gone at once.
func (i *Instance) Terminate(now time.Time) {
	if i.NodeID == "" {
		i.Epoch++
		i.becomeTerminated(now)
		return
	}
	i.to(StateTerminating, GoalGone, now)
}

func (i *Instance) to(s InstanceState, g Goal, deadline time.Time) {
	i.State, i.Goal, i.Deadline, i.Message, i.ForceStopping = s, g, deadline, "", false
	i.Epoch++
}

func (i *Instance) settle(s InstanceState, message string) {
	i.State, i.Message, i.Deadline, i.ForceStopping = s, message, time.Time{}, false
}

func (i *Instance) becomeTerminated(now time.Time) {
	i.settle(StateTerminated, "")
	i.Goal, i.TerminatedAt = GoalGone, now
}

// Fail puts the instance into error and asks the node to take down what a failed
// launch may have left running.
func (i *Instance) Fail(message string) {
	i.settle(StateError, message)
	i.Goal = GoalStopped
	i.Epoch++
}

// Observe applies what the node reports and says whether anything changed. A
// report of an older epoch says nothing about the present goal.
func (i *Instance) Observe(o Observation, now time.Time) bool {
	if o.Epoch != i.Epoch || i.State == StateTerminated {
		return false
	}
	before := *i
	switch o.Phase {
	case PhaseRunning:
		i.observeRunning(now)
	case PhaseStopped, PhaseCrashed:
		i.observeDown(o)
	case PhaseFailed:
		i.observeFailed(o)
	case PhaseGone:
		if i.Goal == GoalGone {
			i.becomeTerminated(now)
		} else if i.State != StateError {
			i.Fail("the VM is gone from its node; terminate the instance and create it again")
		}
	case PhasePaused:
		if i.State == StateRunning && i.Message != o.Message {
			i.Message = o.Message
		}
	}
	return i.State != before.State || i.Message != before.Message || i.Epoch != before.Epoch
}

func (i *Instance) observeRunning(now time.Time) {
	switch i.State {
	case StateCreating, StateStarting, StateRebooting:
		i.settle(StateRunning, "")
		if i.LaunchedAt.IsZero() {
			i.LaunchedAt = now
		}
	case StateRunning:
		i.Message = "" // it may have been paused
	}
}

// observeDown: a guest that powered itself off is stopped, a crashed one is an
// error that start or terminate ends.
func (i *Instance) observeDown(o Observation) {
	switch {
	case i.State == StateStopping || i.State == StateStopped:
		i.settle(StateStopped, "")
	case i.State == StateError || i.Goal == GoalGone:
	case o.Phase == PhaseCrashed:
		i.settle(StateError, "the VM crashed ("+orText(o.Message, "no reason known")+"); start it again or terminate it")
		i.Goal = GoalStopped
		i.Epoch++
	default:
		i.settle(StateStopped, "")
		i.Goal = GoalStopped
		i.Epoch++
	}
}

func (i *Instance) observeFailed(o Observation) {
	if i.Goal == GoalGone || i.State == StateError {
		return // terminate is driven for ever; the message is in the events
	}
	i.Fail(orText(o.Message, "the node could not do it"))
}

func orText(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// Expire applies a deadline that has passed and says whether anything changed.
// Stopping needs nothing: the node knows the deadline and pulls the plug;
// terminating is driven until it is done. An instance on an unreachable node
// keeps its intent (contract U-21), so the caller asks only for reachable ones.
func (i *Instance) Expire(now time.Time) bool {
	if i.Deadline.IsZero() || now.Before(i.Deadline) {
		return false
	}
	switch i.State {
	case StateCreating:
		i.Fail("the launch did not finish in time" + waiting(i.Message) + "; look at the events, then start it again or terminate it")
	case StateStarting, StateRebooting:
		i.Fail("the VM did not come up in time" + waiting(i.Message) + "; look at the console, then start it again or terminate it")
	case StateStopping:
		if now.Sub(i.Deadline) < ForcedStopGrace {
			return false
		}
		i.Fail("the node could not stop the VM in time; stop it with force, or terminate it")
	default:
		return false
	}
	return true
}

func waiting(message string) string {
	if message == "" {
		return ""
	}
	return " (" + message + ")"
}
