package e2e

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

func demoPath(t *testing.T, l *lab) { walkDemo(newCloud(t, l)) }

func demoPostgres(t *testing.T, l *lab) {
	walkDemo(newCloud(t, l, "--database", storetest.Postgres(t)))
}

// walkDemo is the main job as a person does it: a node reports, an instance boots
// with user-data, is stopped, gets other user-data by the contract's own call,
// boots with that, and is gone without a trace.
// contract: E-09 N-01 N-03 N-05 N-07 U-01 U-02 U-03 U-05 U-06 U-11 U-19
func walkDemo(c *cloud) {
	t := c.t
	c.startNode()
	await(t, soon, "node", func() (string, bool) {
		out := c.cli("node", "list", "-q")
		return out, out == nodeID
	})
	if n := c.getNode(); n.State != "ready" || n.Liveness.Status != "ok" {
		t.Errorf("node is %s, %s", n.State, n.Liveness.Status)
	}

	release := c.lab.boot(t)
	first, second := c.script("first"), c.script("second")
	id := c.cli("instance", "create", "-q", "--wait", "--name", "web", "--image", "micro", "--vcpus", "1", "--memory", "128MiB", "--user-data", c.path("first"))
	c.ids = append(c.ids, id)
	c.tells("the first proof of web")
	c.says(id, 1, digest("user-data", first))
	release()
	if i := c.get(id); i.NodeID != nodeID || i.VCPUs != 1 || i.MemoryBytes != guestMemory || i.InstanceType != "" || i.LaunchedAt == nil {
		t.Errorf("instance %+v", i)
	}
	if n := c.getNode(); n.CommittedVCPUs != 1 || n.CommittedMemoryBytes != guestMemory {
		t.Errorf("the node is charged %d vCPUs, %d bytes", n.CommittedVCPUs, n.CommittedMemoryBytes)
	}

	path := api.InstancePath("default", id, "user-data")
	if status, body := c.raw(http.MethodPut, path, strings.NewReader("x")); status != http.StatusConflict || !strings.Contains(body, `"INVALID_STATE"`) {
		t.Errorf("user-data of a running instance: %d %s", status, body)
	}
	c.cli("instance", "stop", "--wait", "web")
	c.says(id, 1, saysPowerOff) // it was asked, not unplugged
	status, body := c.raw(http.MethodPut, path, strings.NewReader(string(second)))
	if status != http.StatusOK || strings.Contains(body, "agentStatus") || strings.Contains(body, "healthReason") {
		t.Errorf("user-data of a stopped instance: %d %s", status, body)
	}

	release = c.lab.boot(t)
	c.cli("instance", "start", "--wait", "web")
	c.tells("the second proof of web")
	c.says(id, 2, digest("user-data", second))
	release()
	if events := c.cli("instance", "events", "-q", "web"); !strings.HasPrefix(events, "create\nplaced\n") || !strings.Contains(events, "user-data\nstart\n") {
		t.Errorf("events:\n%s", events)
	}
	c.cli("instance", "terminate", "--wait", "web")
	c.end()
}

// script makes a file with user-data that proves it ran.
func (c *cloud) script(name string) []byte {
	c.t.Helper()
	b := []byte("#!/bin/sh\necho the " + name + " proof of $(hostname)\n")
	if err := os.WriteFile(c.path(name), b, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return b
}

// tells waits until the console of the instance "web", asked through the server,
// holds the text.
func (c *cloud) tells(text string) {
	c.t.Helper()
	await(c.t, patience, text, func() (string, bool) {
		out := c.cli("instance", "console", "web")
		return out, strings.Contains(out, text)
	})
}
