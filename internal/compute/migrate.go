package compute

import "time"

// MigrateDeadline bounds a migration up to its switch.
const MigrateDeadline = time.Hour

// Move is a migration of an instance, from when it is accepted until the instance is
// another node's. Up to that switch it can be given up; from then on it is an
// instance that starts, or is stopped, like any other.
type Move struct {
	To         string // node
	Recreate   bool   // the root volume is made anew there, and not carried
	WasRunning bool   // it is started there, and here again if nothing comes of it
	Drain      bool   // a drain of its node asked for it
	Since      time.Time
	StopBy     time.Time // until when the guest may take to go down
	// AtRest: the node has said that the VM is down, at the epoch of the migration.
	// Nothing is read of its volumes before, and it is nowhere started (contract U-21,
	// lesson 4).
	AtRest bool
}

// Migrate applies an accepted migration.
func (i *Instance) Migrate(now time.Time, m Move, deadline time.Time) {
	m.WasRunning, m.Since, m.AtRest = m.WasRunning || i.State == StateRunning, now, false
	i.to(StateMigrating, GoalStopped, deadline)
	i.Move = &m
}

// Stay ends a migration before the switch: the instance stays where it is, and starts
// again there if it ran.
func (i *Instance) Stay(now time.Time, why string) {
	if i.Move.WasRunning {
		i.to(StateStarting, GoalRunning, now.Add(StartDeadline))
	} else {
		i.settle(StateStopped, "")
	}
	i.Message = "it was not moved: " + why
}

// Arrive is the switch: the instance is the other node's. What it may have to fetch
// there first is as much as a launch fetches.
func (i *Instance) Arrive(now time.Time) {
	m := i.Move
	i.NodeID = m.To
	if m.WasRunning {
		i.to(StateStarting, GoalRunning, now.Add(CreateDeadline))
	} else {
		i.to(StateStopped, GoalStopped, time.Time{})
	}
}

// The reactions of a migration to the node's report.

func comeToRest(i *Instance, _ Observation, _ time.Time) {
	if i.Move.AtRest {
		return
	}
	m := *i.Move
	m.AtRest = true
	i.Move = &m
}

func stayBehind(i *Instance, o Observation, now time.Time) {
	i.Stay(now, orText(o.Message, "the node could not stop it"))
}
