package server_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
)

// A node that gives up a held sync, as it does for news of its own, is no bad
// request, and the log of a quiet fleet is not full of it.
func TestCallerGone(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	rev := n.Sync(0).Revision
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := n.Try("POST", api.NodePath("n1", "sync"), api.SyncRequest{Revision: rev, Instances: []api.ObservedInstance{}, WaitSeconds: 60},
		func(r *http.Request) { *r = *r.WithContext(ctx) })
	if err == nil {
		t.Fatal("the sync was not held")
	}
	a := s.Operator.Do("GET", "/metrics", nil)
	for !strings.Contains(string(a.Body), `status="499"`) && t.Context().Err() == nil {
		a = s.Operator.Do("GET", "/metrics", nil)
	}
	if s.Logged("level=INFO msg=request method=POST path=/v1/compute/nodes/n1/sync") || !s.Logged("status=499") {
		t.Error("not logged as what it is")
	}
	if strings.Contains(string(a.Body), `status="400"`) {
		t.Error("counted as a bad request")
	}
}
