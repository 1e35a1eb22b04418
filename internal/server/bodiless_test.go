package server_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
)

// A request that takes no fields says so of each that is there, and does nothing.
// contract: E-05 E-02
func TestBodilessRoutes(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	in := newInputs(t, s)
	tried := 0
	for path, item := range s.Server.OpenAPI().Paths {
		if !strings.HasPrefix(path, "/v1/compute/") && !strings.HasPrefix(path, "/v1/projects") && !strings.HasPrefix(path, "/v1/tokens") {
			continue
		}
		route := "POST " + path
		o := item.Post
		if o == nil || o.RequestBody != nil {
			if route, o = "DELETE "+path, item.Delete; o == nil || o.RequestBody != nil {
				continue
			}
		}
		if strings.Contains(path, "/streams/") {
			continue // raw bytes both ways
		}
		tried++
		r := in.send(route, `{"force":true,"reason":"x"}`).Refused(400, "INVALID_INPUT")
		if !slices.Equal(r.Paths(), []string{"force", "reason"}) {
			t.Errorf("%s: %+v", route, r.Fields)
		}
		for _, body := range []string{"[]", "x", `{"force":true`, `"x"`} {
			if r := in.send(route, body).Refused(400, "INVALID_INPUT"); !slices.Equal(r.Paths(), []string{""}) {
				t.Errorf("%s %s: %+v", route, body, r.Fields)
			}
		}
		in.send(route, `{"x":"`+strings.Repeat("x", 65<<10)+`"}`).Refused(413, "TOO_LARGE")
	}
	if tried < 8 {
		t.Errorf("only %d routes take no body", tried)
	}
	if i := s.Operator.Instance("default", in.instance); i.State != "stopped" {
		t.Errorf("a refused request left the instance %s", i.State)
	}
	for _, body := range []string{"", " \n", "{}"} {
		s.Operator.Do("POST", api.InstancePath("default", in.instance, "disable-agent"), body).Want(202)
	}
}
