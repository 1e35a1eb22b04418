package control_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// A start or a stop against the standing wish is carried out, with a warning that the
// wish undoes it.
// contract: U-16
func TestVerbAgainstTheWish(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		i := n.Launch("default", api.CreateInstance{})
		for _, tt := range []struct {
			wish any
			verb string
			want string // the beginning of the warning; empty for none
		}{{"running", "stop", "desiredState is running"}, {"stopped", "start", "desiredState is stopped"}, {nil, "stop", ""}, {nil, "start", ""}} {
			s.Operator.Do("PATCH", api.InstancePath("default", i.ID), map[string]any{"desiredState": tt.wish}).Want(http.StatusOK)
			var out api.Instance
			s.Operator.Do("POST", api.InstancePath("default", i.ID, tt.verb), nil).Want(http.StatusAccepted).Decode(&out)
			if got := strings.Join(out.Warnings, " "); !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("%s with the wish %v: %q", tt.verb, tt.wish, got)
			}
			goal := map[string]compute.InstanceState{"start": compute.StateRunning, "stop": compute.StateStopped}[tt.verb]
			s.Operator.Do("PATCH", api.InstancePath("default", i.ID), map[string]any{"desiredState": goal}).Want(http.StatusOK)
			n.Drive("default", i.ID, goal)
		}
	})
}
