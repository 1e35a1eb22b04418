package control_test

import (
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// One that is terminated, or on its way there, takes no change any more; who asks is
// told so, and that there is no way back. Terminate itself is a success again and again.
// contract: U-16 U-18 U-19
func TestTerminatedTakesNoChange(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		i := n.Stopped(project, api.CreateInstance{Tags: map[string]string{"a": "1"}})
		path := api.InstancePath(project, i.ID)
		asked := []struct{ method, path, body string }{
			{"PATCH", path, `{"name":"new"}`}, {"PATCH", path, `{"desiredState":"running"}`}, {"PATCH", path, `{"startOnNodeBoot":true}`},
			{"PATCH", path, `{"tags":{}}`}, {"PATCH", path, `{"maintenanceStrategy":"stop"}`}, {"PATCH", path, `{}`},
			{"POST", path + "/start", `{}`}, {"POST", path + "/stop", `{}`}, {"POST", path + "/reboot", `{}`}, {"POST", path + "/migrate", `{}`},
			{"POST", path + "/enable-agent", `{}`}, {"POST", path + "/disable-agent", ``},
			{"POST", path + "/modify-metadata-options", `{"httpEndpoint":"disabled"}`},
			{"POST", path + "/attach-volume", `{"sizeBytes":1048576}`}, {"POST", path + "/create-image", `{"name":"x"}`}, {"PUT", path + "/user-data", "new"},
		}
		for _, a := range asked[:6] {
			s.Operator.Do(a.method, a.path, a.body).Want(200)
		}
		s.Operator.Do("PATCH", path, `{"desiredState":null,"tags":{"a":"1"}}`).Want(200)
		terminate(s, i.ID)
		for _, state := range []string{"terminating", "terminated"} {
			before := s.Operator.Instance(project, i.ID)
			if before.State != state {
				t.Fatalf("%s, want %s", before.State, state)
			}
			for _, a := range asked {
				r := s.Operator.Do(a.method, a.path, a.body).Refused(409, "INVALID_STATE")
				if !strings.Contains(r.Message, state) || !strings.Contains(r.Message, "; ") {
					t.Errorf("%s %s while %s: %q; want the state and what to do", a.method, a.path, state, r.Message)
				}
			}
			if after := s.Operator.Instance(project, i.ID); after.Name != before.Name || after.DesiredState != "" || after.Tags["a"] != "1" || after.State != state {
				t.Errorf("a refused change changed something: %+v", after)
			}
			terminate(s, i.ID)
			n.Drive(project, i.ID, compute.StateTerminated)
		}
	})
}
