package node

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// uploads are the images that the server wants made of stopped instances. They
// are made one after another, and again until the server has them or no longer asks.
type uploads struct {
	poke chan struct{} // capacity 1: the list has changed

	mu      sync.Mutex
	list    []api.ImageUpload
	done    map[string]bool   // by upload id: the server has all of it
	failed  map[string]string // by upload id: why it cannot be made, whatever is tried
	trouble string            // why the one at work does not come about
}

func newUploads() *uploads {
	return &uploads{poke: make(chan struct{}, 1), done: map[string]bool{}, failed: map[string]string{}}
}

// set is the server's newest word.
func (u *uploads) set(list []api.ImageUpload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	done, failed := map[string]bool{}, map[string]string{}
	for _, up := range list {
		done[up.ID] = u.done[up.ID]
		if why, ok := u.failed[up.ID]; ok {
			failed[up.ID] = why
		}
	}
	u.list, u.done, u.failed = list, done, failed
	nudge(u.poke)
}

// next is the first that the server does not have, after those that cannot be made now.
func (u *uploads) next(skip map[string]bool) (api.ImageUpload, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, up := range u.list {
		if !u.done[up.ID] && !skip[up.ID] && u.failed[up.ID] == "" {
			return up, true
		}
	}
	return api.ImageUpload{}, false
}

func (u *uploads) finish(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done[id] = true
}

func (u *uploads) fail(id, why string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.failed[id] = why
}

// failures are told to the server until it no longer asks.
func (u *uploads) failures() (list []api.FailedUpload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(u.failed)) {
		list = append(list, api.FailedUpload{ID: id, Message: u.failed[id]})
	}
	return list
}

func (u *uploads) wanted(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, up := range u.list {
		if up.ID == id {
			return true
		}
	}
	return false
}

// note keeps what is in the way, for the node's findings.
func (u *uploads) note(text string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.trouble = text
}

func (u *uploads) why() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.trouble
}

// uploadImages works the list off.
func (a *agent) uploadImages(ctx context.Context) {
	a.clearUploads()
	delay := backoff{first: 2 * time.Second, most: time.Minute}
	for {
		next := listInterval // a VM of the list may have come to rest
		if err := a.uploadRound(ctx); err == nil {
			delay.reset()
			a.uploads.note("")
		} else if ctx.Err() == nil {
			a.log.Warn("volumes of an instance could not be sent; it is tried again", "error", err)
			a.uploads.note(err.Error())
			next = delay.next()
		}
		if wait(ctx, next, a.uploads.poke) == cut {
			return
		}
	}
}

// clearUploads removes what a killed agent left half made.
func (a *agent) clearUploads() {
	entries, _ := os.ReadDir(a.dir.uploads())
	for _, e := range entries {
		os.RemoveAll(filepath.Join(a.dir.uploads(), e.Name()))
	}
}

// uploadRound tries each upload once.
func (a *agent) uploadRound(ctx context.Context) error {
	var errs []error
	tried := map[string]bool{}
	for ctx.Err() == nil {
		up, ok := a.uploads.next(tried)
		if !ok {
			break
		}
		tried[up.ID] = true
		err := a.upload(ctx, up)
		switch {
		case err == nil:
			a.uploads.finish(up.ID)
			a.log.Info("volumes of an instance were sent", "instance", up.InstanceID, "upload", up.ID)
		case hopeless(err), up.Impatient && full(err):
			a.uploads.fail(up.ID, err.Error())
			a.log.Error("an instance's volumes cannot be read", "instance", up.InstanceID, "upload", up.ID, "error", err)
			a.changed()
		case !errors.Is(err, errNotAtRest):
			errs = append(errs, fmt.Errorf("image of %s: %w", up.InstanceID, err))
		}
	}
	return errors.Join(errs...)
}

// full says that there is no room, here or at the server: somebody has to make some.
func full(err error) bool {
	return errors.Is(err, errNoRoom) || fault.HasCode(err, fault.NoSpace)
}

// errNotAtRest says that the VM is not stopped at the epoch that is asked for: it
// will be, or the server will no longer ask.
var errNotAtRest = errors.New("the VM is not at rest")

// upload sends each volume as a flat image.
func (a *agent) upload(ctx context.Context, up api.ImageUpload) error {
	if !volumeForm.MatchString(up.ID) || !compute.ValidInstanceID(up.InstanceID) {
		return hopelessf("the server names an upload that cannot be (%q of %q)", up.ID, up.InstanceID)
	}
	for n, id := range up.VolumeIDs {
		if !a.atRest(up) {
			return errNotAtRest
		}
		src, err := a.source(up.InstanceID, id)
		if err != nil {
			return err
		}
		if err := a.uploadVolume(ctx, up, n, src); err != nil {
			return err
		}
	}
	return nil
}

// atRest reports whether the VM has reached the stopped goal of this epoch and has
// no newer one.
func (a *agent) atRest(up api.ImageUpload) bool {
	a.mu.Lock()
	w := a.workers[up.InstanceID]
	a.mu.Unlock()
	if w == nil {
		return false
	}
	o, said := w.order(), w.observed(time.Now())
	return o.goal == compute.GoalStopped && o.desired.Epoch == up.Epoch &&
		compute.Phase(said.Phase) == compute.PhaseStopped && said.Epoch == up.Epoch && said.BootID == ""
}

// source says where the volume of an instance lies.
func (a *agent) source(instance, volumeID string) (v flattened, err error) {
	a.mu.Lock()
	w := a.workers[instance]
	a.mu.Unlock()
	if w == nil {
		return v, errNotAtRest
	}
	vols, err := readVolumes(w.order().desired)
	if err != nil {
		return v, err
	}
	if vols.root.ID == volumeID {
		v = flattened{path: filepath.Join(w.dir, fileRoot), base: filepath.Join(w.dir, fileBase), format: vols.root.Image.Format}
		if exists(v.path) {
			return v, nil
		}
		m, err := readMark(w.dir)
		if err != nil || m != (mark{}) || vols.root.Made {
			return v, err // it is lost: there is nothing to read
		}
		v.unmade = &vols.root
		return v, w.stillHere(w.order())
	}
	for _, d := range vols.data {
		if d.ID != volumeID {
			continue
		}
		dir := a.dir.volume(d.ID)
		v.path = filepath.Join(dir, fileVolume)
		if d.Image != nil {
			v.base, v.format = filepath.Join(dir, fileBase), d.Image.Format
		}
		if !exists(dir) && !d.Made {
			v.unmade = &d
		}
		return v, nil
	}
	return v, fmt.Errorf("the instance has no volume %s", volumeID)
}

// uploadVolume flattens one volume into a file, sends it and removes it. The VM may
// be started meanwhile, which must not wait for this: what was read then is thrown
// away.
func (a *agent) uploadVolume(ctx context.Context, up api.ImageUpload, n int, src flattened) error {
	free, reserve, err := a.images.space()
	if err != nil {
		return err
	}
	if need := src.allocated(); free-need < reserve {
		return fmt.Errorf("%w: %s free, up to %s are needed for a while and %s should stay free; make room in %s", errNoRoom, size(free), size(need), size(reserve), a.dir.root)
	}
	if err := makeDir(a.dir.uploads(), 0o700); err != nil {
		return err
	}
	tmp := filepath.Join(a.dir.uploads(), up.ID+"-"+strconv.Itoa(n))
	defer os.Remove(tmp)
	if src.unmade != nil {
		dir := tmp + ".new"
		defer os.RemoveAll(dir)
		if src, err = a.makeAside(ctx, *src.unmade, dir); err != nil {
			return err
		}
	}
	src.most = free - reserve
	if err := a.flatten(ctx, src, tmp); err != nil {
		return err
	}
	if !a.atRest(up) {
		return errNotAtRest
	}
	f, err := os.Open(tmp)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = a.send(ctx, a.path("uploads", up.ID, strconv.Itoa(n)), f, info.Size())
	if fault.Is(err, fault.NotFound) && !a.uploads.wanted(up.ID) {
		return errNotAtRest // it was given up meanwhile
	}
	return err
}

// send is a PUT that lasts as long as bytes go out.
func (a *agent) send(ctx context.Context, path string, f *os.File, length int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(stallTimeout, func() { cancel(fmt.Errorf("no byte went out for %v", stallTimeout)) })
	defer stalled.Stop()
	body := readerFunc(func(p []byte) (int, error) {
		stalled.Reset(stallTimeout)
		return f.Read(p)
	})
	err := a.up.Do(ctx, http.MethodPut, path, body, nil, api.ContentLength(length))
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// flattened is a volume to be read together with what it stands on.
type flattened struct {
	path, base, format string
	// unmade, where set: the volume is not here yet, as its instance was never started
	// on this node.
	unmade *api.DesiredVolume
	// most is how many bytes it may take when it is flat; 0 for as many as it does.
	most int64
}

// makeAside makes a volume that is not here yet as a start would, in a directory of
// its own, so that it does not meet a start.
func (a *agent) makeAside(ctx context.Context, d api.DesiredVolume, dir string) (f flattened, err error) {
	v, err := newVolume(d)
	if err != nil {
		return f, err
	}
	if err := makeDir(dir, 0o700); err != nil {
		return f, err
	}
	v.path = filepath.Join(dir, fileVolume)
	if d.Image != nil {
		v.base = filepath.Join(dir, fileBase)
		if err := a.images.link(ctx, *d.Image, v.base); err != nil {
			return f, err
		}
	}
	return flattened{path: v.path, base: v.base, format: v.format}, a.makeVolume(ctx, v)
}

// allocated is how many bytes the volume takes on the disk, image included.
func (v flattened) allocated() (n int64) {
	for _, p := range []string{v.path, v.base} {
		if info, err := os.Stat(p); err == nil {
			n += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
	}
	return n
}

// flattenTimeout bounds the reading of one volume.
const flattenTimeout = 6 * time.Hour

// flatten writes a volume as one compressed image. zstd (QEMU 5.1) takes a fifth of the
// time of zlib and no more bytes: an instance that migrates is down meanwhile. What it stands on is spelled out
// and not taken from its header, which a QEMU that was taken over could have written:
// its owner would else get any file of the node in an image. So is that its bytes are
// in this file. -U reads without a lock, so that a start is not refused. How much comes
// of it is not known before: many places of a disk may be one place of its file, which
// must not fill the node's disk.
func flatten(ctx context.Context, v flattened, to string) error {
	if err := keepsItsData(v.path); err != nil {
		return err
	}
	file := func(path string) map[string]any { return map[string]any{"driver": "file", "filename": path} }
	var backing any
	if v.base != "" {
		backing = map[string]any{"driver": v.format, "file": file(v.base)}
	}
	spec, err := json.Marshal(map[string]any{"driver": "qcow2", "file": file(v.path), "backing": backing})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, flattenTimeout)
	defer cancel()
	err = qemuImgWithin(ctx, v.most, "convert", "-q", "-U", "-O", "qcow2", "-c", "-o", "compression_type=zstd", "json:"+string(spec), to)
	if err == nil {
		err = secure(to)
	}
	if err != nil {
		os.Remove(to)
	}
	return err
}

// keepsItsData refuses a qcow2 file whose data are in another one: incompatible
// feature bit 2, at byte 72 (docs/interop/qcow2.txt of QEMU).
func keepsItsData(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return hopelessf("volume %s is missing: put it back, or terminate the instance", path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var header [80]byte
	if _, err := io.ReadFull(f, header[:]); err != nil {
		return fmt.Errorf("read the header of %s: %w", path, err)
	}
	version, features := binary.BigEndian.Uint32(header[4:]), binary.BigEndian.Uint64(header[72:])
	if string(header[:4]) != "QFI\xfb" || version >= 3 && features&(1<<2) != 0 {
		return hopelessf("volume %s is not what was made: its header was changed", path)
	}
	return nil
}
