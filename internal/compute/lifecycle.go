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

// NodeBooted starts an instance again whose node has booted, if it asks for that, and
// says whether it does. Its VM is down, whatever was last heard of it: a boot that was
// under way was cut off, or has been without anybody's hearing of it, so it is asked
// for anew.
func (i *Instance) NodeBooted(now time.Time) bool {
	if !i.Spec.StartOnNodeBoot {
		return false
	}
	switch i.State {
	case StateStopped, StateError, StateRunning, StateStarting, StateRebooting:
		i.Start(now)
	case StateCreating:
		i.Epoch++
	default:
		return false
	}
	return true
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
// gone at once. There is no deadline: it is driven until it is done.
func (i *Instance) Terminate(now time.Time) {
	if i.NodeID == "" {
		i.Epoch++
		i.becomeTerminated(now)
		return
	}
	i.to(StateTerminating, GoalGone, time.Time{})
}

func (i *Instance) to(s InstanceState, g Goal, deadline time.Time) {
	i.State, i.Goal, i.Deadline, i.Message, i.ForceStopping, i.Move = s, g, deadline, "", false, nil
	i.Epoch++
}

func (i *Instance) settle(s InstanceState, message string) {
	i.State, i.Message, i.Deadline, i.ForceStopping, i.Move = s, message, time.Time{}, false, nil
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

// reaction is what an event does to an instance.
type reaction func(i *Instance, o Observation, now time.Time)

// The reactions to a node's report. keep is one of them: a cell that changes
// nothing is written down as such.
func keep(*Instance, Observation, time.Time) {}

func comeUp(i *Instance, _ Observation, now time.Time) {
	i.settle(StateRunning, "")
	if i.LaunchedAt.IsZero() {
		i.LaunchedAt = now
	}
}

func goOn(i *Instance, _ Observation, _ time.Time) { i.Message = "" } // it may have been paused

func goDown(i *Instance, _ Observation, _ time.Time) { i.settle(StateStopped, "") }

// powerOff: the guest powered itself off, so it is to stay off.
func powerOff(i *Instance, _ Observation, _ time.Time) {
	i.settle(StateStopped, "")
	i.Goal = GoalStopped
	i.Epoch++
}

func crash(i *Instance, o Observation, _ time.Time) {
	i.Fail("the VM crashed (" + orText(o.Message, "no reason known") + "); start it again or terminate it")
}

func breakDown(i *Instance, o Observation, _ time.Time) {
	i.Fail(orText(o.Message, "the node could not do it"))
}

func vanish(i *Instance, _ Observation, _ time.Time) {
	i.Fail("the VM is gone from its node; terminate the instance and create it again")
}

func standStill(i *Instance, o Observation, _ time.Time) { i.Message = o.Message }

func end(i *Instance, _ Observation, now time.Time) { i.becomeTerminated(now) }

// reactions is the table of (state, phase that the node reports); a test holds
// that no cell is missing. Terminating is driven until the node says gone,
// whatever fails meanwhile.
var reactions = map[InstanceState]map[Phase]reaction{
	StateCreating:    row(comeUp, keep, powerOff, crash, breakDown, vanish),
	StateStarting:    row(comeUp, keep, powerOff, crash, breakDown, vanish),
	StateRebooting:   row(comeUp, keep, powerOff, crash, breakDown, vanish),
	StateRunning:     row(goOn, standStill, powerOff, crash, breakDown, vanish),
	StateStopping:    row(keep, keep, goDown, goDown, breakDown, vanish),
	StateStopped:     row(keep, keep, keep, keep, keep, vanish),
	StateMigrating:   row(keep, keep, comeToRest, comeToRest, stayBehind, vanish),
	StateTerminating: row(keep, keep, keep, keep, keep, end),
	StateTerminated:  row(keep, keep, keep, keep, keep, keep),
	StateError:       row(keep, keep, keep, keep, keep, keep),
}

func row(running, paused, stopped, crashed, failed, gone reaction) map[Phase]reaction {
	return map[Phase]reaction{
		PhaseRunning: running, PhasePaused: paused, PhaseStopped: stopped, PhaseCrashed: crashed, PhaseFailed: failed, PhaseGone: gone,
		// On the way, or not known: nothing follows from it (lesson 9).
		PhasePreparing: keep, PhaseUnknown: keep,
	}
}

// Observe applies what the node reports and says whether anything changed. A
// report of another epoch says nothing about the present goal.
func (i *Instance) Observe(o Observation, now time.Time) bool {
	react := reactions[i.State][o.Phase]
	if react == nil || o.Epoch != i.Epoch {
		return false
	}
	state, message, epoch, move := i.State, i.Message, i.Epoch, i.Move
	react(i, o, now)
	return i.State != state || i.Message != message || i.Epoch != epoch || i.Move != move
}

func orText(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// anew is how long a state may last from when the instance's node is heard of again.
var anew = map[InstanceState]time.Duration{
	StateCreating: CreateDeadline, StateStarting: StartDeadline, StateRebooting: RebootDeadline, StateStopping: ForcedStopGrace,
}

// Expire applies a deadline that has passed and says whether anything changed.
// heard is since when the instance's node has been heard of without a break: what it
// was not told of it has not failed to do, so from then on it has its time anew. The
// zero time is for an instance that waits for no node. Stopping needs nothing but
// patience: the node knows the deadline and pulls the plug; terminating is driven
// until it is done. An instance on an unreachable node keeps its intent (contract
// U-21), so the caller asks only for reachable ones.
func (i *Instance) Expire(now, heard time.Time) bool {
	if i.Deadline.IsZero() || now.Before(i.Deadline) || now.Before(heard.Add(anew[i.State])) {
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
	case StateMigrating:
		i.Stay(now, "it did not arrive in time")
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
