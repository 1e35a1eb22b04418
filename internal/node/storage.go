package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// storage keeps the data volumes, which live longer than the instances that they
// are attached to. One that the server does not name is kept: only its word that a
// volume is gone removes it (lesson 3).
type storage struct {
	dir layout

	mu    sync.Mutex
	told  bool            // the server has named its volumes since the agent's start
	named map[string]bool // by the server; true: gone
}

func newStorage(dir layout) *storage {
	s := &storage{dir: dir}
	for _, id := range s.list() {
		if strings.HasPrefix(id, halfMade) {
			os.RemoveAll(dir.volume(id))
		}
	}
	return s
}

// halfMade begins the name of a volume's directory while it is being made.
const halfMade = ".new-"

func (s *storage) list() (ids []string) {
	entries, _ := os.ReadDir(s.dir.volumes()) // not there before the first volume
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

// make makes a data volume where it is not here yet, by fill in a directory of its
// own. A directory without its volume is lost data, and an empty volume in its
// place would hide that.
func (s *storage) make(v api.DesiredVolume, fill func(dir string) error) error {
	id := v.ID
	dir, tmp := s.dir.volume(id), s.dir.volume(halfMade+id)
	if v.Made || exists(dir) {
		if !exists(filepath.Join(dir, fileVolume)) {
			return hopelessf("volume %s is missing from %s: put it back, or detach it", id, dir)
		}
		return nil
	}
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	for _, d := range []string{s.dir.volumes(), tmp} {
		if err := makeDir(d, 0o711); err != nil {
			return err
		}
	}
	if err := fill(tmp); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.named[id] {
		os.RemoveAll(tmp)
		return hopelessf("volume %s was given up", id)
	}
	return publish(tmp, dir)
}

// set is the server's newest word on all volumes of the node.
func (s *storage) set(list []api.KeptVolume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told, s.named = true, map[string]bool{}
	for _, v := range list {
		if volumeForm.MatchString(v.ID) {
			s.named[v.ID] = v.Gone
		}
	}
}

// sweep removes what is to go; what cannot be removed is tried again later.
func (s *storage) sweep() (removed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, gone := range s.named {
		if dir := s.dir.volume(id); gone && exists(dir) {
			if e := os.RemoveAll(dir); e != nil {
				err = e
				continue
			}
			removed = true
		}
	}
	return removed, err
}

// gone lists the volumes that were to go and are not here, until the server no
// longer asks.
func (s *storage) gone() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, gone := range s.named {
		if gone && !exists(s.dir.volume(id)) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// strangers are volumes of which the server knows nothing.
func (s *storage) strangers() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.told {
		return nil
	}
	for _, id := range s.list() {
		if _, known := s.named[id]; !known && !strings.HasPrefix(id, halfMade) {
			ids = append(ids, id)
		}
	}
	return ids
}

// sweepVolumes does what the server wants gone and reports it.
func (a *agent) sweepVolumes() {
	removed, err := a.storage.sweep()
	if err != nil {
		a.log.Error("a volume could not be removed; it is tried again", "error", err)
	}
	if removed {
		a.changed()
	}
}

// makeData makes the data volumes that are new.
func (w *worker) makeData(ctx context.Context, o order) error {
	vols, err := readVolumes(o.desired)
	if err != nil {
		return err
	}
	for _, d := range vols.data {
		v, err := newVolume(d)
		if err != nil {
			return err
		}
		err = w.a.storage.make(d, func(dir string) error {
			v.path = filepath.Join(dir, fileVolume)
			if d.Image != nil {
				v.base = filepath.Join(dir, fileBase)
				if err := w.a.images.link(ctx, *d.Image, v.base); err != nil {
					return err
				}
			}
			return w.a.makeVolume(ctx, v)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
