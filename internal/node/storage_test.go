package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const (
	volA = "vol-aaaaaaaaaa"
	volB = "vol-bbbbbbbbbb"
)

// with gives an instance data volumes of its own.
func (e *env) with(id string, volumes ...api.DesiredVolume) {
	e.edit(func() {
		e.extra[id] = func(d *api.DesiredInstance) { d.Volumes = append(d.Volumes, volumes...) }
	})
}

func (e *env) keep(list ...api.KeptVolume) { e.edit(func() { e.kept = list }) }

func (e *env) volumeFile(id string) string {
	return filepath.Join(e.vms.dir, "volumes", id, fileVolume)
}

// contract: U-11
func TestDataVolumes(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		image := e.addImage(bytes.Repeat([]byte{0xfa, 0x33, 0xc0, 0x8f}, 1024))
		e.keep(api.KeptVolume{ID: volA}, api.KeptVolume{ID: volB})
		e.with(idA, api.DesiredVolume{ID: volA, SizeBytes: 1 << 20}, api.DesiredVolume{ID: volB, SizeBytes: 1 << 30, Image: &image})
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		w := e.agent.workers[idA]
		vols, err := readVolumes(w.order().desired)
		if err != nil {
			t.Fatal(err)
		}
		spec := w.spec(w.order().desired, vols, e.agent.dir.socket(idA))
		var serials []string
		for _, d := range spec.Disks {
			serials = append(serials, d.Serial)
		}
		if want := []string{e.instance(idA).RootVolumeID, volA, volB, "cidata"}; !slices.Equal(serials, want) {
			t.Errorf("disks %v, want %v", serials, want)
		}
		if d := spec.Disks[1]; d.Backing == nil || len(d.Backing) != 0 || d.Path != e.volumeFile(volA) {
			t.Errorf("an empty volume is %+v", d)
		}
		if d := spec.Disks[2]; len(d.Backing) != 1 || d.Backing[0].Format != "raw" || !exists(d.Backing[0].Path) {
			t.Errorf("a volume of an image is %+v", d)
		}

		// They outlive their instance, until they are given up.
		e.terminate(idA)
		e.reaches(t, idA, compute.StateTerminated, 10*time.Second)
		<-time.After(time.Minute)
		if !exists(e.volumeFile(volA)) || !exists(e.volumeFile(volB)) {
			t.Error("volumes went with their instance")
		}
		e.keep(api.KeptVolume{ID: volA}, api.KeptVolume{ID: volB, Gone: true})
		e.until(t, "word of the volume's end", 20*time.Second, func() bool { return slices.Equal(e.lastSync().GoneVolumes, []string{volB}) })
		if !exists(e.volumeFile(volA)) || exists(e.agent.dir.volume(volB)) {
			t.Error("the wrong volume went")
		}
		e.keep(api.KeptVolume{ID: volA})
		<-time.After(time.Minute)
		if gone := e.lastSync().GoneVolumes; len(gone) != 0 {
			t.Errorf("still reported: %v", gone)
		}

		// One that the server does not know is kept and told of. lesson 3
		e.keep()
		e.until(t, "a finding", time.Minute, func() bool {
			return slices.ContainsFunc(e.lastSync().Findings, func(f api.Finding) bool { return f.Code == findingVolumes && strings.Contains(f.Message, volA) })
		})
		if !exists(e.volumeFile(volA)) {
			t.Error("a volume that is not known went")
		}
	})
}

// A volume whose file is missing is not made anew, and one that was given up is not
// made again by an order from before.
func TestLostVolume(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.keep(api.KeptVolume{ID: volA})
		e.with(idA, api.DesiredVolume{ID: volA, SizeBytes: 1 << 20})
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		e.stop(idA, 0, true)
		e.reaches(t, idA, compute.StateStopped, 10*time.Second)
		if err := os.Remove(e.volumeFile(volA)); err != nil {
			t.Fatal(err)
		}
		e.start(idA)
		e.reaches(t, idA, compute.StateError, 10*time.Second)
		if m := e.instance(idA).Message; !strings.Contains(m, volA) || !strings.Contains(m, "put it back") {
			t.Errorf("message %q", m)
		}
	})
	s := &storage{dir: layout{t.TempDir()}}
	err := s.make(api.DesiredVolume{ID: volB}, func(string) error { s.set([]api.KeptVolume{{ID: volB, Gone: true}}); return nil })
	if err == nil || !strings.Contains(err.Error(), "given up") || len(s.list()) != 0 {
		t.Errorf("%v, %v", err, s.list())
	}
}

// A volume that a VM ran with is not made anew where its whole folder is gone.
func TestLostFolderOfVolume(t *testing.T) {
	s := newStorage(layout{t.TempDir()})
	err := s.make(api.DesiredVolume{ID: volA, Made: true}, func(string) error { t.Error("it is made anew"); return nil })
	if !hopeless(err) || !strings.Contains(err.Error(), "put it back") {
		t.Errorf("%v", err)
	}
}

// What an agent left half made is made anew.
func TestHalfMadeVolume(t *testing.T) {
	dir := layout{t.TempDir()}
	s := newStorage(dir)
	broken := errors.New("broken")
	fill := func(err error) func(string) error {
		return func(d string) error {
			return errors.Join(os.WriteFile(filepath.Join(d, fileVolume), []byte("x"), 0o600), err)
		}
	}
	if err := s.make(api.DesiredVolume{ID: volA}, fill(broken)); !errors.Is(err, broken) || exists(dir.volume(volA)) {
		t.Errorf("%v", err)
	}
	if s = newStorage(dir); len(s.list()) != 0 {
		t.Errorf("left: %v", s.list())
	}
	if err := s.make(api.DesiredVolume{ID: volA}, fill(nil)); err != nil || !slices.Equal(s.list(), []string{volA}) {
		t.Errorf("%v, %v", err, s.list())
	}
}

func TestVolumesThatCannotBe(t *testing.T) {
	root := api.DesiredVolume{ID: "vol-cccccccccc", Root: true}
	for name, list := range map[string][]api.DesiredVolume{
		"none": nil, "no root": {{ID: volA}}, "two roots": {root, root}, "a path": {root, {ID: "../../x"}},
	} {
		if _, err := readVolumes(api.DesiredInstance{Volumes: list}); !hopeless(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// contract: U-11
func TestUploads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		var failures int
		e.tweak = func(a *agent) {
			a.flatten = func(_ context.Context, v flattened, to string) error {
				if failures > 0 {
					failures--
					return errors.New("no such luck")
				}
				return os.WriteFile(to, []byte("flat "+filepath.Base(v.path)), 0o600)
			}
		}
		e.up(t)
		defer func() { e.downAgent(); e.vms.Close() }()
		e.keep(api.KeptVolume{ID: volA})
		e.with(idA, api.DesiredVolume{ID: volA, SizeBytes: 1 << 20})
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		wish := func(id string, epoch int64) {
			e.edit(func() {
				e.toMake = []api.ImageUpload{{ID: id, InstanceID: idA, Epoch: epoch, VolumeIDs: []string{e.instances[idA].RootVolumeID, volA}}}
			})
		}
		sent := func(key string) string {
			e.mu.Lock()
			defer e.mu.Unlock()
			return string(e.uploaded[key])
		}
		wish("img-1", 1)
		<-time.After(time.Minute)
		if sent("img-1/0") != "" {
			t.Error("a running VM's volume was read")
		}
		e.stop(idA, 0, true)
		e.reaches(t, idA, compute.StateStopped, 10*time.Second)
		<-time.After(time.Minute)
		if sent("img-1/0") != "" {
			t.Error("a volume of another epoch was read")
		}
		failures = 2
		wish("img-2", e.instance(idA).Epoch)
		e.until(t, "both volumes", 2*time.Minute, func() bool { return sent("img-2/1") != "" })
		if sent("img-2/0") != "flat "+fileRoot || sent("img-2/1") != "flat "+fileVolume {
			t.Errorf("sent %q, %q", sent("img-2/0"), sent("img-2/1"))
		}
		// Once is enough, and nothing is left.
		e.edit(func() { clear(e.uploaded) })
		<-time.After(5 * time.Minute)
		if entries, err := os.ReadDir(e.agent.dir.uploads()); err != nil || len(entries) != 0 || sent("img-2/0") != "" {
			t.Errorf("left %v, %v, sent again %q", entries, err, sent("img-2/0"))
		}
		// A full disk is said.
		e.free.Store(reserve - 1)
		wish("img-3", e.instance(idA).Epoch)
		e.until(t, "a finding", time.Minute, func() bool {
			return slices.ContainsFunc(e.agent.findings(time.Now()), func(f api.Finding) bool {
				return f.Code == findingUpload && strings.Contains(f.Message, "no room")
			})
		})
		e.free.Store(plenty)
		e.until(t, "the image", 3*time.Minute, func() bool { return sent("img-3/1") != "" })
	})
}

// A flattened volume holds what volume and image hold together; a header that names
// other files has no say.
func TestFlatten(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img (package qemu-utils) is not installed")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	base := make([]byte, 1<<20)
	copy(base, "the image")
	secret := make([]byte, 1<<20)
	copy(secret, "the node's secret")
	for name, b := range map[string][]byte{fileBase: base, "secret": secret} {
		if err := os.WriteFile(at(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v := flattened{path: at(fileRoot), base: at(fileBase), format: "raw"}
	if err := createVolume(t.Context(), volume{path: v.path, base: v.base, format: "raw", sizeBytes: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	read := func(v flattened) string {
		t.Helper()
		out, raw := at("out"), at("raw")
		if err := flatten(t.Context(), v, out); err != nil {
			t.Fatal(err)
		}
		if err := qemuImg(t.Context(), "convert", "-f", "qcow2", "-O", "raw", out, raw); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(raw)
		if err != nil || len(b) < 1<<20 {
			t.Fatal(len(b), err)
		}
		if info, err := exec.Command("qemu-img", "info", out).CombinedOutput(); err != nil || strings.Contains(string(info), "backing file") {
			t.Errorf("%s, %v", info, err)
		}
		return strings.TrimRight(string(b[:32]), "\x00")
	}
	if got := read(v); got != "the image" {
		t.Errorf("holds %q", got)
	}
	if err := qemuImg(t.Context(), "rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", at("secret"), v.path); err != nil {
		t.Fatal(err)
	}
	if got := read(v); got != "the image" {
		t.Errorf("with another backing file in its header it holds %q", got)
	}
	if got := read(flattened{path: v.path}); got != "" {
		t.Errorf("without an image it holds %q", got)
	}
	// Data in another file: the feature bit alone is enough to be refused.
	f, err := os.OpenFile(v.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var bits [8]byte
	binary.BigEndian.PutUint64(bits[:], 1<<2)
	if _, err := f.WriteAt(bits[:], 72); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := flatten(t.Context(), v, at("out2")); !hopeless(err) || exists(at("out2")) {
		t.Errorf("a volume with its data elsewhere: %v", err)
	}
}
