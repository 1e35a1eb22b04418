package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// An instance that left this node for another one must not be made anew here by a server
// that has forgotten that, as it was restored from an older backup: it would be empty,
// and run a second time. So the node remembers at which epoch it left; when it comes
// back, it comes with a later one.

// noteLeft remembers it, before the server hears that nothing of it is here.
func (w *worker) noteLeft(epoch int64) error {
	before, err := w.leftAt()
	if err != nil || before >= epoch {
		return err
	}
	b, err := json.Marshal(mark{Epoch: epoch})
	if err != nil {
		return err
	}
	if err := makeDir(filepath.Dir(w.a.dir.left(w.id)), 0o700); err != nil {
		return err
	}
	return writeFile(w.a.dir.left(w.id), b)
}

// leftAt is the epoch at which it left; 0 where it never did.
func (w *worker) leftAt() (int64, error) {
	b, err := os.ReadFile(w.a.dir.left(w.id))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	var m mark
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	return m.Epoch, err
}

// stillHere refuses to make what has left since the server's word.
func (w *worker) stillHere(o order) error {
	left, err := w.leftAt()
	if err == nil && left >= o.desired.Epoch {
		err = hopelessf("the instance moved away from this node later than the server knows of, which may come of a restored backup; it is not made anew here: find the node that has its disk with: outcrop audit")
	}
	return err
}
