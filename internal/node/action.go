package node

import (
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// goalNone is the goal of a VM that the server does not name.
const goalNone compute.Goal = ""

// sight is a VM as its worker sees it: the hypervisor's word, read together with
// the mark and the epoch that is wanted.
type sight string

const (
	sightUnknown sight = "unknown" // the hypervisor or the mark could not be read
	sightGone    sight = "gone"    // not defined, and no file of it
	sightAbsent  sight = "absent"  // not defined
	sightOff     sight = "off"     // down; this epoch has not run it yet
	sightEnded   sight = "ended"   // ran in this epoch and went down by itself
	sightCrashed sight = "crashed" // ran in this epoch and crashed
	sightFailed  sight = "failed"  // this epoch cannot start it, and trying again will not help
	sightRunning sight = "running"
	sightPaused  sight = "paused"  // stands still for a reason that needs somebody
	sightStarved sight = "starved" // stood still for want of disk space, and there is some again
	sightOld     sight = "old"     // up, from an earlier epoch
	sightUnsaid  sight = "unsaid"  // up, and its mark does not say yet that this epoch did start it
)

// action is what a worker does about what it sees.
type action string

const (
	rest    action = "rest"    // the goal is reached, or nothing may be done: report
	hold    action = "hold"    // look again later
	start   action = "start"   // build what is missing and boot
	resume  action = "resume"  // let it go on
	confirm action = "confirm" // note that it did start, for when it is down
	replace action = "replace" // take down the VM of an earlier epoch
	stop    action = "stop"    // ask the guest to go down, then pull the plug
	remove  action = "remove"  // end it and remove all that it has on the node
	forget  action = "forget"  // nothing is left and nobody asks
	await   action = "await"   // the host goes down: start it after the boot; see departing
)

// actions is the table of (goal, sight); a test holds that no cell is missing.
// The row of goalNone is the rule that nothing is removed on the node's own
// initiative (lesson 3); the column of sightUnknown that not knowing is no
// reason to act (lesson 9).
var actions = map[compute.Goal]map[sight]action{
	compute.GoalRunning: {
		sightUnknown: hold, sightGone: start, sightAbsent: start, sightOff: start, sightEnded: rest,
		sightCrashed: rest, sightFailed: rest, sightRunning: rest, sightPaused: rest, sightStarved: resume, sightOld: replace,
		sightUnsaid: confirm,
	},
	compute.GoalStopped: {
		sightUnknown: hold, sightGone: rest, sightAbsent: rest, sightOff: rest, sightEnded: rest,
		sightCrashed: rest, sightFailed: rest, sightRunning: stop, sightPaused: stop, sightStarved: stop, sightOld: stop,
		sightUnsaid: stop,
	},
	compute.GoalGone: {
		sightUnknown: hold, sightGone: rest, sightAbsent: remove, sightOff: remove, sightEnded: remove,
		sightCrashed: remove, sightFailed: remove, sightRunning: remove, sightPaused: remove, sightStarved: remove, sightOld: remove,
		sightUnsaid: remove,
	},
	goalNone: {
		sightUnknown: hold, sightGone: forget, sightAbsent: rest, sightOff: rest, sightEnded: rest,
		sightCrashed: rest, sightFailed: rest, sightRunning: rest, sightPaused: rest, sightStarved: rest, sightOld: rest,
		// What runs is reported as running, so it did run: a guest that powers itself off
		// before the server names it must not be started again.
		sightUnsaid: confirm,
	},
}

// phases is what is reported of a VM at rest. A VM that is gone is reported so
// only where that was the goal; else it is a VM that does not run.
var phases = map[sight]compute.Phase{
	sightUnknown: compute.PhaseUnknown,
	sightGone:    compute.PhaseStopped,
	sightAbsent:  compute.PhaseStopped,
	sightOff:     compute.PhaseStopped,
	sightEnded:   compute.PhaseStopped,
	sightCrashed: compute.PhaseCrashed,
	sightFailed:  compute.PhaseFailed,
	sightRunning: compute.PhaseRunning,
	sightPaused:  compute.PhasePaused,
	sightStarved: compute.PhasePaused,
	sightOld:     compute.PhaseRunning,
	sightUnsaid:  compute.PhaseRunning,
}

func phaseAtRest(g compute.Goal, s sight) compute.Phase {
	if g == compute.GoalGone && s == sightGone {
		return compute.PhaseGone
	}
	return phases[s]
}

// glance is what a worker knows of its VM at one moment.
type glance struct {
	defined bool
	state   hypervisor.State // while defined
	files   bool             // its directory exists
	mark    mark
	failed  bool // the wanted epoch has failed for good
	fed     bool // it paused while the disk was full, and the disk is no longer
}

// up reports whether the VM's process exists.
func (g glance) up() bool {
	return g.defined && (g.state == hypervisor.Running || g.state == hypervisor.Paused)
}

// sight reads the glance for a wanted epoch.
//
// A VM that is up from a later epoch counts as running, so that a server which
// was restored from a backup restarts nothing. So does one without a mark, which
// only a lost data directory can explain.
func (g glance) sight(epoch int64) sight {
	started := g.mark.Started && g.mark.Epoch == epoch
	switch {
	case g.up() && g.mark.Epoch != 0 && g.mark.Epoch < epoch:
		return sightOld
	case g.up() && g.mark.Epoch == epoch && !g.mark.Started && epoch != 0:
		return sightUnsaid
	case g.up() && g.state == hypervisor.Paused && g.fed:
		return sightStarved
	case g.up() && g.state == hypervisor.Paused:
		return sightPaused
	case g.up():
		return sightRunning
	case g.failed:
		return sightFailed
	case started && (!g.defined || g.state == hypervisor.Crashed):
		return sightCrashed // somebody else's undefine is as good as a crash
	case started:
		return sightEnded
	case g.defined:
		return sightOff
	case g.files:
		return sightAbsent
	}
	return sightGone
}
