package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// An instance that was never started on the node can leave it, too: what it would stand
// on is sent. A volume that is lost cannot, and the server hears of it.
// contract: N-20 // lesson 9
func TestUploadOfWhatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.tweak = func(a *agent) {
			a.flatten = func(_ context.Context, v flattened, to string) error {
				if !exists(v.path) {
					return keepsItsData(v.path)
				}
				base := "nothing"
				if v.base != "" && exists(v.base) {
					base = v.format
				}
				return os.WriteFile(to, []byte(filepath.Base(v.path)+" on "+base), 0o600)
			}
		}
		e.up(t)
		defer func() { e.downAgent(); e.vms.Close() }()
		e.keep(api.KeptVolume{ID: volA})
		e.with(idA, api.DesiredVolume{ID: volA, SizeBytes: 1 << 20})
		e.create(idA, "x")
		e.stop(idA, 0, true)
		e.reaches(t, idA, compute.StateStopped, 10*time.Second)
		wish := func(id string) {
			e.edit(func() {
				i := e.instances[idA]
				e.toMake = []api.ImageUpload{{ID: id, InstanceID: idA, Epoch: i.Epoch, VolumeIDs: []string{i.RootVolumeID, volA}}}
			})
		}
		sent := func(key string) string {
			e.mu.Lock()
			defer e.mu.Unlock()
			return string(e.uploaded[key])
		}
		wish("mv-1")
		e.until(t, "both volumes", 2*time.Minute, func() bool { return sent("mv-1/1") != "" })
		if sent("mv-1/0") != fileVolume+" on raw" || sent("mv-1/1") != fileVolume+" on nothing" {
			t.Errorf("sent %q, %q", sent("mv-1/0"), sent("mv-1/1"))
		}
		if entries, err := os.ReadDir(e.agent.dir.uploads()); err != nil || len(entries) != 0 {
			t.Errorf("left %v, %v", entries, err)
		}
		if exists(filepath.Join(e.agent.dir.instance(idA), fileRoot)) {
			t.Error("the instance's own volume was made")
		}

		e.start(idA)
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.stop(idA, 0, true)
		e.reaches(t, idA, compute.StateStopped, 10*time.Second)
		if err := os.Remove(filepath.Join(e.agent.dir.instance(idA), fileRoot)); err != nil {
			t.Fatal(err)
		}
		wish("mv-2")
		e.until(t, "a failure", time.Minute, func() bool {
			f := e.lastSync().FailedUploads
			return len(f) == 1 && f[0].ID == "mv-2" && strings.Contains(f[0].Message, "missing")
		})
		// Where there is no room, one that its instance waits for fails, and another waits.
		full := func(impatient bool) {
			e.free.Store(reserve - 1)
			wish("mv-3")
			e.edit(func() { e.toMake[0].Impatient, e.toMake[0].VolumeIDs = impatient, []string{volA} })
		}
		full(false)
		<-time.After(time.Minute)
		if f := e.lastSync().FailedUploads; len(f) != 0 {
			t.Errorf("one that can wait failed: %v", f)
		}
		full(true)
		e.until(t, "a failure for want of room", 2*time.Minute, func() bool {
			f := e.lastSync().FailedUploads
			return len(f) == 1 && f[0].ID == "mv-3" && strings.Contains(f[0].Message, "no room")
		})
		// Told until nobody asks.
		e.edit(func() { e.toMake = nil })
		e.until(t, "silence", time.Minute, func() bool { return len(e.lastSync().FailedUploads) == 0 })
	})
}
