package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
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

// A disk whose file names one place for many of its own takes no more room when it is
// flat than there is.
// contract: N-24
func TestFlattenWithinRoom(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("needs qemu-img")
	}
	dir := t.TempDir()
	v := flattened{path: filepath.Join(dir, fileRoot), most: 4 << 20}
	to := filepath.Join(dir, "out")
	if err := qemuImg(t.Context(), "create", "-q", "-f", "qcow2", v.path, "64M"); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64<<10)
	rand.Read(data)
	raw := filepath.Join(dir, "raw")
	if err := os.WriteFile(raw, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := qemuImg(t.Context(), "convert", "-q", "-n", "-O", "qcow2", raw, v.path); err != nil {
		t.Fatal(err)
	}
	if err := flatten(t.Context(), v, to); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(v.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	word := func(at int64) int64 {
		var b [8]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		return int64(binary.BigEndian.Uint64(b[:]) & 0x00fffffffffffe00)
	}
	second := word(word(40)) // docs/interop/qcow2.txt: l1_table_offset
	entry := binary.BigEndian.AppendUint64(nil, uint64(word(second)))
	for n := range int64(1024) {
		if _, err := f.WriteAt(entry, second+8*n); err != nil {
			t.Fatal(err)
		}
	}
	if err := flatten(t.Context(), v, to); !errors.Is(err, errNoRoom) || exists(to) {
		t.Errorf("%v", err)
	}
}
