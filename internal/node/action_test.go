package node

import (
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

var (
	allGoals  = []compute.Goal{compute.GoalRunning, compute.GoalStopped, compute.GoalGone, goalNone}
	allSights = []sight{sightUnknown, sightGone, sightAbsent, sightOff, sightEnded, sightCrashed, sightFailed, sightRunning, sightPaused, sightStarved, sightOld, sightUnsaid}
)

func TestActionTableIsFull(t *testing.T) {
	if len(actions) != len(allGoals) {
		t.Errorf("%d goals, want %d", len(actions), len(allGoals))
	}
	for _, g := range allGoals {
		if len(actions[g]) != len(allSights) {
			t.Errorf("goal %q: %d cells, want %d", g, len(actions[g]), len(allSights))
		}
		for _, s := range allSights {
			a := actions[g][s]
			if a == "" || phases[s] == "" {
				t.Errorf("goal %q, sight %q: no action or no phase", g, s)
			}
			// lesson 9: not knowing is no reason to act.
			if (s == sightUnknown) != (a == hold) {
				t.Errorf("goal %q, sight %q: %s", g, s, a)
			}
			// lesson 3: nothing is taken down but by order. To confirm is to write a note.
			if g == goalNone && a != rest && a != hold && a != forget && a != confirm {
				t.Errorf("nobody asked, sight %q: %s", s, a)
			}
			if a == remove && g != compute.GoalGone {
				t.Errorf("goal %q, sight %q removes", g, s)
			}
		}
	}
}

func TestSight(t *testing.T) {
	const up, off, crashed, paused = hypervisor.Running, hypervisor.Off, hypervisor.Crashed, hypervisor.Paused
	tests := []struct {
		name string
		g    glance
		want sight // for epoch 5
	}{
		{"nothing", glance{}, sightGone},
		{"files only", glance{files: true}, sightAbsent},
		{"defined", glance{defined: true, state: off, files: true}, sightOff},
		{"claimed", glance{defined: true, state: off, mark: mark{5, false}}, sightOff},
		{"claimed, QEMU failed", glance{defined: true, state: crashed, mark: mark{5, false}}, sightOff},
		{"up, claimed", glance{defined: true, state: up, mark: mark{5, false}}, sightUnsaid},
		{"paused, claimed", glance{defined: true, state: paused, mark: mark{5, false}}, sightUnsaid},
		{"up", glance{defined: true, state: up, mark: mark{5, true}}, sightRunning},
		{"paused", glance{defined: true, state: paused, mark: mark{5, true}}, sightPaused},
		{"paused, fed", glance{defined: true, state: paused, mark: mark{5, true}, fed: true}, sightStarved},
		{"ended", glance{defined: true, state: off, mark: mark{5, true}}, sightEnded},
		{"crashed", glance{defined: true, state: crashed, mark: mark{5, true}}, sightCrashed},
		{"removed", glance{files: true, mark: mark{5, true}}, sightCrashed},
		{"up, earlier epoch", glance{defined: true, state: up, mark: mark{4, true}}, sightOld},
		{"paused, earlier epoch", glance{defined: true, state: paused, mark: mark{4, false}}, sightOld},
		{"ended, earlier epoch", glance{defined: true, state: off, mark: mark{4, true}}, sightOff},
		{"up, later epoch", glance{defined: true, state: up, mark: mark{6, true}}, sightRunning},
		{"ended, later epoch", glance{defined: true, state: off, mark: mark{6, true}}, sightOff},
		{"up, no mark", glance{defined: true, state: up}, sightRunning},
		{"failed", glance{defined: true, state: off, failed: true}, sightFailed},
		{"failed but up", glance{defined: true, state: up, mark: mark{5, true}, failed: true}, sightRunning},
	}
	for _, tt := range tests {
		if got := tt.g.sight(5); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// lesson 20
func TestOrders(t *testing.T) {
	now := time.Now()
	stop := func(epoch, withinMS int64, force bool) order {
		return newOrder(api.DesiredInstance{Epoch: epoch, Goal: "stopped", StopWithinMS: withinMS, Force: force}, now)
	}
	tests := []struct {
		name          string
		before, after order
		deadline      time.Duration
		changed       bool
	}{
		{"the same", stop(1, 9000, false), stop(1, 9000, false), 9 * time.Second, false},
		{"told again later", stop(1, 9000, false), stop(1, 60000, false), 9 * time.Second, false},
		{"nearer", stop(1, 9000, false), stop(1, 3000, false), 3 * time.Second, true},
		{"wobble", stop(1, 9000, false), stop(1, 8990, false), 9 * time.Second, false},
		{"force", stop(1, 9000, false), stop(1, 0, true), 0, true},
		{"force with wobble", stop(1, 500, false), stop(1, 0, true), 0, true},
		{"a new epoch may take longer", stop(1, 1000, false), stop(2, 60000, false), time.Minute, true},
		{"no longer named", stop(1, 1000, false), order{}, 0, true},
	}
	for _, tt := range tests {
		got, changed := tt.before.after(tt.after)
		if changed != tt.changed {
			t.Errorf("%s: changed %v", tt.name, changed)
		}
		if d := got.deadline.Sub(now); tt.after.goal != goalNone && d != tt.deadline {
			t.Errorf("%s: deadline in %v, want %v", tt.name, d, tt.deadline)
		}
	}
}

func TestNewOrderDeadline(t *testing.T) {
	now := time.Now()
	tests := []struct {
		name string
		d    api.DesiredInstance
		want time.Duration
	}{
		{"stop", api.DesiredInstance{Goal: "stopped", StopWithinMS: 5000}, 5 * time.Second},
		{"stop whose time is over", api.DesiredInstance{Goal: "stopped"}, 0},
		{"forced stop", api.DesiredInstance{Goal: "stopped", StopWithinMS: 5000, Force: true}, 0},
		{"reboot", api.DesiredInstance{Goal: "running", Reboot: true}, 90 * time.Second},
		{"reboot with a time", api.DesiredInstance{Goal: "running", Reboot: true, StopWithinMS: 5000}, 5 * time.Second},
		{"forced reboot", api.DesiredInstance{Goal: "running", Reboot: true, Force: true}, 0},
		{"start", api.DesiredInstance{Goal: "running"}, 0},
		{"terminate", api.DesiredInstance{Goal: "gone", StopWithinMS: 5000}, 0},
	}
	for _, tt := range tests {
		if got := newOrder(tt.d, now).deadline.Sub(now); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if o := newOrder(api.DesiredInstance{Goal: "hibernated"}, now); o.goal != goalNone {
		t.Errorf("an unknown goal became %q", o.goal)
	}
}
