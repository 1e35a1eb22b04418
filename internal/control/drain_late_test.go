package control_test

import (
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// A guest that goes down after the deadline of the drain that stopped it is started
// again like the others when its node takes part again.
// contract: N-20 // lesson 22
func TestDrainStopsLate(t *testing.T) {
	for _, verb := range []string{"uncordon", "drain again"} {
		t.Run(verb, func(t *testing.T) {
			s := apptest.Start(t, apptest.Options{})
			n := s.Node("n1")
			i := n.Launch("default", api.CreateInstance{MaintenanceStrategy: "stop"})
			drain(s, "n1", api.DrainNode{DeadlineSeconds: 30})
			run(t, s.Control.Drain)
			if got := s.Operator.Instance("default", i.ID); got.State != "stopping" {
				t.Fatalf("%s", got.State)
			}
			s.Clock.Advance(40 * time.Second)
			run(t, s.Control.Drain)
			if d := drained(s, "n1"); d.Outcome != "deadline" || d.SafeToPowerOff {
				t.Errorf("%+v", d)
			}
			n.Drive("default", i.ID, compute.StateStopped)
			run(t, s.Control.Drain)
			do(s, "start", i.ID, nil).Refused(409, "INVALID_STATE") // held
			if verb == "drain again" {
				drain(s, "n1", api.DrainNode{})
				run(t, s.Control.Drain)
				if d := drained(s, "n1"); !d.SafeToPowerOff {
					t.Errorf("%+v", d)
				}
			}
			s.Operator.Do("POST", api.NodePath("n1", "uncordon"), nil).Want(200)
			n.Drive("default", i.ID, compute.StateRunning)
		})
	}
}
