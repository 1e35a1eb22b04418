package e2e

import (
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// The server is killed right after each verb answered and while the node is at
// work or holds a sync: what was answered is done, and nothing is done twice.
// contract: E-10 U-02 U-03 U-04 U-19 lesson 19 lesson 21
func serverCrashes(t *testing.T, l *lab) {
	c := newCloud(t, l)
	c.startNode()
	c.crashInCreates()

	release := l.boot(t)
	id := c.create("web", []byte("one"))
	c.crashServer() // an answered create outlives it
	c.reaches(id, compute.StateRunning)
	c.says(id, 1, digest("user-data", []byte("one")))
	vm := c.vm(id)
	c.crashServer() // with the node's sync held
	c.stop(id, within(60))
	c.crashServer()
	c.reaches(id, compute.StateStopped)
	c.says(id, 1, saysPowerOff)
	if _, err := c.putUserData(id, []byte("two")); err != nil {
		t.Fatal(err)
	}
	c.crashServer()
	c.start(id)
	c.nodeLogs("step=cidata epoch=3") // the node is at it
	c.crashServer()
	c.reaches(id, compute.StateRunning)
	c.says(id, 2, digest("user-data", []byte("two")))
	c.crashServer()
	c.reboot(id, false)
	c.nodeLogs("epoch=4 message") // it has heard
	c.crashServer()
	c.says(id, 3, digest("user-data", []byte("two")))
	c.reaches(id, compute.StateRunning)
	if after := c.vm(id); after.BootID == vm.BootID {
		t.Error("the VM was never started anew")
	}

	// Both die in a launch, and come back in the wrong order.
	other := c.create("both", []byte("three"))
	c.nodeLogs(other)
	c.server.kill()
	c.node.kill()
	c.startNode()
	c.startServer()
	c.reaches(other, compute.StateRunning)
	c.says(other, 1, digest("user-data", []byte("three")))
	release()

	c.terminate(id)
	c.crashServer()
	c.reaches(id, compute.StateTerminated)
	c.booted(other, 1)
	c.end()
	c.checkBlobs()
}

// crashInCreates kills the server at some moment of each create and sends it
// again with the same key until it is answered: there is one instance then. No
// node can take these, so that they boot nothing.
func (c *cloud) crashInCreates() {
	for n := range 8 {
		in := api.CreateInstance{Name: fmt.Sprintf("once-%d", n), ImageID: c.image, VCPUs: 500, MemoryBytes: guestMemory,
			UserData: encode(fmt.Appendf(nil, "user-data %d", n))}
		key := api.IdempotencyKey(rand.Text())
		var sent sync.WaitGroup
		sent.Go(func() {
			_ = c.op.Do(c.t.Context(), http.MethodPost, api.InstancePath(project, ""), in, nil, key)
		})
		<-time.After(time.Duration(n) * time.Millisecond) // another moment each time
		c.server.kill()
		sent.Wait()
		c.startServer()
		var i api.Instance
		c.call(http.MethodPost, api.InstancePath(project, ""), in, &i, key)
		count := 0
		err := api.Pages(c.t.Context(), c.op, api.InstancePath(project, ""), func(other api.Instance) error {
			if other.Name == in.Name {
				count++
			}
			return nil
		})
		if err != nil || count != 1 {
			c.t.Errorf("%s: %d instances, %v", in.Name, count, err)
		}
		c.reaches(i.ID, compute.StateError) // 500 vCPUs fit nowhere
		c.terminate(i.ID)
		c.reaches(i.ID, compute.StateTerminated)
	}
}

// nodeLogs waits until the node's log holds the text.
func (c *cloud) nodeLogs(text string) {
	c.t.Helper()
	awaitFile(c.t, c.path("node.log"), text)
}

// checkBlobs holds that no user-data is kept for nobody, in the books of a server
// that has ended.
func (c *cloud) checkBlobs() {
	c.t.Helper()
	db, err := sql.Open("sqlite", c.path("server/outcrop.db"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRowContext(c.t.Context(), "SELECT count(*) FROM blobs").Scan(&n); err != nil || n != 0 {
		c.t.Errorf("%d blobs are left, %v", n, err)
	}
}
