package compute

import "time"

// Fence applies that the instance's node was declared off: nothing of it runs, or will
// run, until the node is told otherwise. The new epoch sees to that, as a VM that does
// run there after all is of an older one (contract U-21, lesson 3). It says whether
// anything changed.
//
// What was to be terminated is; anything else that may have run is stopped, and stays
// where its volumes are. Nothing is started elsewhere (lesson 4).
func (i *Instance) Fence(why string, now time.Time) (changed bool) {
	switch i.State {
	case StateTerminating:
		i.Epoch++
		i.becomeTerminated(now)
	case StateStopped, StateError, StateTerminated:
		return false
	default:
		i.to(StateStopped, GoalStopped, time.Time{})
		i.Message = why
	}
	return true
}
