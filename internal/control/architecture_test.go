package control_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
)

// An instance goes only to nodes of its image's architecture, also where the image
// was made of another instance.
func TestArchitectureOfImages(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		op := s.Operator
		s.Node("n1") // the first by name, and as empty as the other
		arm := s.NodeToken("n2")
		machine := apptest.Machine("n2")
		machine.Architecture = "arm64"
		arm.Beat(machine)

		imported := func(query string) *apptest.Answer {
			return op.Do("POST", api.ImagePath("default", "")+"?name=disk"+query, apptest.DiskImage())
		}
		var m api.Image
		imported("&architecture=arm64").Want(http.StatusCreated).Decode(&m)
		if m.Architecture != "arm64" {
			t.Errorf("the image is for %q", m.Architecture)
		}
		if got := imported("&architecture=s390x").Refused(http.StatusBadRequest, "INVALID_INPUT").Paths(); !slices.Equal(got, []string{"architecture"}) {
			t.Errorf("refused at %v", got)
		}

		i := arm.Stopped("default", api.CreateInstance{ImageID: m.ID})
		if i.NodeID != "n2" {
			t.Errorf("placed on %q", i.NodeID)
		}
		var made api.Image
		op.Do("POST", api.InstancePath("default", i.ID, "create-image"), api.CreateImage{Name: "made"}).Want(http.StatusAccepted).Decode(&made)
		if made.Architecture != "arm64" {
			t.Errorf("the image of the instance is for %q", made.Architecture)
		}

		machine.Architecture = "amd64"
		arm.Beat(machine)
		ask := api.CreateInstance{Name: "x", ImageID: m.ID, InstanceType: "m1.tiny"}
		e := explain(s, op, ask)
		if e.Fits || len(e.Reasons) != 1 || e.Reasons[0].Code != "ARCHITECTURE" || !strings.Contains(e.Message, "arm64") {
			t.Errorf("without such a node: %+v", e)
		}
		// An image of which nobody said it goes to any.
		imported("").Want(http.StatusCreated).Decode(&m)
		ask.ImageID = m.ID
		if e := explain(s, op, ask); !e.Fits {
			t.Errorf("of an image for any architecture: %+v", e)
		}
	})
}
