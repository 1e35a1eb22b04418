package control_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Each run's boot is told of once, also where it came out as the one before.
// contract: U-07
func TestBootOfEachRun(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		i := n.Launch("default", api.CreateInstance{AgentEnabled: ptr(true)})
		report := func(age time.Duration) (at time.Time, events int) {
			t.Helper()
			n.Do("POST", api.NodePath("n1", "agent-reports"), api.AgentReports{Reports: []api.AgentReport{
				{InstanceID: i.ID, AgeMS: age.Milliseconds(), Boot: &api.BootReport{Status: "done"}}}}).Want(http.StatusNoContent)
			var list api.List[api.Event]
			s.Operator.Do("GET", api.InstancePath("default", i.ID, "events"), nil).Want(http.StatusOK).Decode(&list)
			for _, e := range list.Items {
				if e.Event == "booted" {
					events++
				}
			}
			return s.Operator.Instance("default", i.ID).Boot.At, events
		}
		first, events := report(0)
		s.Clock.Advance(time.Minute)
		if at, again := report(0); !at.Equal(first) || events != 1 || again != 1 {
			t.Errorf("one boot, %d and %d events, at %v and %v", events, again, first, at)
		}
		s.Operator.Do("POST", api.InstancePath("default", i.ID, "stop"), nil).Want(http.StatusAccepted)
		n.Drive("default", i.ID, compute.StateStopped)
		s.Operator.Do("POST", api.InstancePath("default", i.ID, "start"), nil).Want(http.StatusAccepted)
		n.Drive("default", i.ID, compute.StateRunning)
		if at, events := report(50 * time.Second); !at.Equal(first) || events != 1 { // it is from before the stop
			t.Errorf("%d events, at %v", events, at)
		}
		s.Clock.Advance(time.Second)
		if at, events := report(0); !at.After(first) || events != 2 {
			t.Errorf("%d events, at %v", events, at)
		}
	})
}
