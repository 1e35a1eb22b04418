package control_test

import (
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
)

// Asking again while a drain goes on keeps what is not named: whoever only wants to
// wait for it makes it neither longer nor another one.
// contract: N-20 // lesson 22
func TestDrainAgain(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a := newMachine(t, s, "n1")
		i := s.Create("default", api.CreateInstance{})
		place(t, s)
		settle(a)
		first := drain(s, "n1", api.DrainNode{DeadlineSeconds: 120, Reason: "new memory", Strategy: "migrate", Overrides: map[string]string{i.ID: "migrate"}})
		run(t, s.Control.Drain)

		s.Clock.Advance(30e9)
		again := drain(s, "n1", api.DrainNode{})
		if again.Reason != "new memory" || !again.Since.Equal(*first.Since) || !again.Deadline.Equal(*first.Deadline) || item(t, again, i.ID).Strategy != "migrate" {
			t.Errorf("%+v became %+v", first, again)
		}

		longer := drain(s, "n1", api.DrainNode{DeadlineSeconds: 600, Reason: "new disks too", Overrides: map[string]string{i.ID: "stop"}})
		if longer.Reason != "new disks too" || !longer.Since.Equal(*first.Since) || !longer.Deadline.After(*first.Deadline) || item(t, longer, i.ID).Strategy != "stop" {
			t.Errorf("%+v became %+v", first, longer)
		}
		var n api.Node
		s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&n)
		if n.Maintenance.Reason != "new disks too" || !n.Maintenance.Since.Equal(*first.Since) {
			t.Errorf("%+v", n.Maintenance)
		}

		// One that has ended is no longer kept to.
		s.Operator.Do("POST", api.NodePath("n1", "drain", "cancel"), nil).Want(200)
		s.Clock.Advance(30e9)
		if anew := drain(s, "n1", api.DrainNode{}); anew.Reason != "" || anew.Since.Equal(*first.Since) || item(t, anew, i.ID).Strategy != "migrate" {
			t.Errorf("%+v", anew)
		}
	})
}
