package control_test

import (
	"encoding/json"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// Agents learn of which commit the server is, also from an answer without news.
// contract: N-16
func TestServerSaysItsCommit(t *testing.T) {
	for _, commit := range []string{"abc123", ""} {
		c, err := control.New(control.Options{DB: storetest.Open(t, store.Options{Dir: t.TempDir()}), Dir: t.TempDir(), Commit: commit})
		if err != nil {
			t.Fatal(err)
		}
		agent := iam.Caller{Role: iam.Node, NodeID: "n1"}
		body, err := json.Marshal(apptest.Machine("n1"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Heartbeat(t.Context(), agent, "n1", body); err != nil {
			t.Fatal(err)
		}
		in := api.SyncRequest{Instances: []api.ObservedInstance{}}
		for range 2 {
			out, err := c.Sync(t.Context(), agent, "n1", &in, nil)
			if err != nil || out.ServerCommit != commit {
				t.Errorf("commit %q, %v; want %q", out.ServerCommit, err, commit)
			}
			in.Revision = out.Revision
		}
	}
}
