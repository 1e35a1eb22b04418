package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// A server that was restored from a backup which is older than a migration neither lets
// the instance be made anew on the node that it left, nor removes it from the node that
// it came back to.
// contract: U-21 N-20 // lesson 3 // lesson 4
func TestLeftBeforeRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.up(t)
		defer func() { e.downAgent(); e.vms.Close() }()
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 30*time.Second)
		first := e.instance(idA).Epoch
		departs := func(epoch int64) {
			e.edit(func() {
				e.extra[idA] = func(d *api.DesiredInstance) {
					d.Goal, d.Departed, d.Epoch = string(compute.GoalGone), true, epoch
					d.Volumes, d.Interfaces = []api.DesiredVolume{}, []api.DesiredInterface{}
				}
			})
		}
		stays := func() { e.edit(func() { delete(e.extra, idA) }) }

		departs(first + 5)
		e.until(t, "gone", time.Minute, func() bool { return e.last(idA).Phase == string(compute.PhaseGone) })
		e.downAgent()
		stays()
		e.up(t)
		e.until(t, "a refusal", time.Minute, func() bool {
			i := e.instance(idA)
			return i.State == compute.StateError && strings.Contains(i.Message, "moved away")
		})
		if s := e.vm(idA); s != "none" || exists(e.agent.dir.instance(idA)) {
			t.Errorf("it was made anew: %q", s)
		}

		e.edit(func() {
			i := e.instances[idA]
			i.Epoch = first + 5
			i.Start(time.Now())
			e.extra[idA] = func(d *api.DesiredInstance) { d.Volumes[0].Made = false } // carried here
		})
		e.reaches(t, idA, compute.StateRunning, time.Minute)
		departs(first + 5)
		<-time.After(2 * time.Minute)
		if o := e.last(idA); e.vm(idA) != hypervisor.Running || o.Phase != string(compute.PhaseRunning) || o.Epoch != first+6 {
			t.Errorf("what came back is %q and reported as %+v", e.vm(idA), o)
		}
	})
}
