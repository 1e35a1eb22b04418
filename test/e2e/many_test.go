package e2e

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

// Ten instances are asked for at once, and libvirtd is restarted and killed while
// they come up. Each boots once, with its own user-data, a few at a time.
// contract: U-03 U-19 lesson 9 lesson 10 lesson 12
func tenAtOnce(t *testing.T, l *lab) {
	const many = 10
	for range bootsAtOnce {
		defer l.boot(t)()
	}
	daemon := libvirtdtest.Start(t)
	c := newCloudOn(t, l, daemon)
	c.startNode()
	ids := make([]string, many)
	var asked sync.WaitGroup
	for n := range ids {
		asked.Go(func() {
			var i api.Instance
			in := api.CreateInstance{Name: fmt.Sprintf("many-%d", n), ImageID: c.image, VCPUs: 1, MemoryBytes: guestMemory, UserData: encode(own(n))}
			if err := c.op.Do(t.Context(), "POST", api.InstancePath(project, ""), in, &i); err != nil {
				t.Error(err)
			}
			ids[n] = i.ID
		})
	}
	asked.Wait()
	if t.Failed() {
		t.FailNow()
	}
	c.ids = ids

	c.running(2)
	daemon.Restart(t)
	c.running(5)
	if err := syscall.Kill(daemon.PID(t, "libvirtd"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	daemon.Restart(t)
	for n, id := range ids {
		c.reaches(id, compute.StateRunning)
		c.says(id, 1, digest("user-data", own(n)))
		c.says(id, 1, saysReady)
	}
	for _, id := range ids {
		c.booted(id, 1)
	}
	if n := c.getNode(); n.CommittedVCPUs != many || n.CommittedMemoryBytes != many*guestMemory {
		t.Errorf("the node is charged %d vCPUs, %d bytes", n.CommittedVCPUs, n.CommittedMemoryBytes)
	}
	c.checkPace()

	// All go down at once, while nobody can ask them.
	if err := syscall.Kill(daemon.PID(t, "libvirtd"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		c.stop(id, within(120))
	}
	daemon.Restart(t)
	for _, id := range ids {
		c.reaches(id, compute.StateStopped)
		c.says(id, 1, saysPowerOff)
	}
	c.end()
}

func own(n int) []byte { return fmt.Appendf(nil, "user-data of number %d", n) }

// running waits until so many instances run.
func (c *cloud) running(want int) {
	c.t.Helper()
	await(c.t, patience, fmt.Sprintf("%d running instances", want), func() (string, bool) {
		n := 0
		for _, id := range c.ids {
			if c.get(id).State == string(compute.StateRunning) {
				n++
			}
		}
		return fmt.Sprint(n), n >= want
	})
}

var bootLine = regexp.MustCompile(`(?m)^time=(\S+) .*msg="step done".* step=boot `)

// checkPace holds that no more guests than two a core were booted within the
// time that an emulated one is left to come up. A boot whose answer died with
// libvirtd is not in the log.
func (c *cloud) checkPace() {
	c.t.Helper()
	log, err := os.ReadFile(c.path("node.log"))
	if err != nil {
		c.t.Fatal(err)
	}
	var times []time.Time
	for _, m := range bootLine.FindAllSubmatch(log, -1) {
		at, err := time.Parse(time.RFC3339Nano, string(m[1]))
		if err != nil {
			c.t.Fatal(err)
		}
		times = append(times, at)
	}
	slices.SortFunc(times, time.Time.Compare)
	atOnce := max(2, 2*runtime.NumCPU())
	for n := range max(0, len(times)-atOnce) {
		if d := times[n+atOnce].Sub(times[n]); d < 4*time.Second {
			c.t.Errorf("%d guests were booted within %v", atOnce+1, d)
		}
	}
}
