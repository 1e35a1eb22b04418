package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// workspace is the folder of one attempt: its owner's note, and what the command
// sees as its home and as /tmp. It goes when the attempt ends; one without a
// running owner goes at the next sweep (lesson 40).
type workspace struct{ path string }

// workspaceOwner is the note in each workspace.
type workspaceOwner struct {
	Job       string    `json:"job"`
	Epoch     int64     `json:"leaseEpoch"`
	UID       int       `json:"uid"`
	CreatedAt time.Time `json:"createdAt"`
}

func (w workspace) home() string { return filepath.Join(w.path, "home") }
func (w workspace) tmp() string  { return filepath.Join(w.path, "tmp") }
func (w workspace) root() string { return filepath.Join(w.path, "root") } // where its file system is put together

// makeWorkspace makes the folder for a job of the user uid.
func makeWorkspace(dir string, j *Job, uid int) (workspace, error) {
	w := workspace{filepath.Join(dir, j.Key())}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return w, err
	}
	if err := os.Mkdir(w.path, 0o700); err != nil {
		return w, fmt.Errorf("the job's workspace: %w", err)
	}
	note := mustJSON(workspaceOwner{Job: j.ID, Epoch: j.Epoch, UID: uid, CreatedAt: time.Now().UTC()})
	err := errors.Join(os.WriteFile(filepath.Join(w.path, "owner.json"), append(note, '\n'), 0o600),
		os.Mkdir(w.home(), 0o700), os.Mkdir(w.tmp(), 0o700), os.Mkdir(w.root(), 0o700))
	if err == nil {
		err = errors.Join(os.Chown(w.home(), uid, uid), os.Chown(w.tmp(), uid, uid))
	}
	if err != nil {
		return w, errors.Join(err, w.remove())
	}
	return w, nil
}

// remove follows no link out of the folder.
func (w workspace) remove() error { return os.RemoveAll(w.path) }

// usage is how many bytes the job's files take on the disk. The job may change
// them meanwhile, so nothing is followed and what vanishes is nothing.
func (w workspace) usage() (int64, error) {
	root, err := os.OpenRoot(w.path)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	var sum int64
	err = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return skipGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return skipGone(err)
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			sum += s.Blocks * 512 // stat(2): the unit is 512 bytes everywhere
		}
		return nil
	})
	return sum, err
}

func skipGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}

// workspaces reads which there are, by Job.Key.
func workspaces(dir string) (map[string]workspaceOwner, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	all := map[string]workspaceOwner{}
	for _, e := range entries {
		var o workspaceOwner
		if b, err := os.ReadFile(filepath.Join(dir, e.Name(), "owner.json")); err == nil {
			_ = json.Unmarshal(b, &o) // a torn note is a workspace without an owner
		}
		all[e.Name()] = o
	}
	return all, err
}
