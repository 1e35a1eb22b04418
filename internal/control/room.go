package control

import (
	"io"
	"syscall"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// Uploads share the disk with the database, and a full one would stop the whole
// server, so they leave some of it free.
const (
	maxReserve   = int64(1) << 30
	reserveShare = 20        // a twentieth of a small disk
	lookEvery    = 256 << 20 // bytes between two looks at what is left
)

func noSpace() error {
	return fault.Coded(fault.Conflict, fault.NoSpace, "the server's disk is full; nothing was stored; delete images (outcrop image delete) or make room in the server's data folder")
}

// roomFor refuses what would take the last of the disk that holds dir. A disk
// that cannot be asked is not full.
func roomFor(dir string, size int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return nil
	}
	block := int64(st.Bsize)
	if int64(st.Bavail)*block-size < min(maxReserve, int64(st.Blocks)*block/reserveShare) {
		return noSpace()
	}
	return nil
}

// roomy writes as long as the disk has room.
type roomy struct {
	w      io.Writer
	dir    string
	unseen int64 // bytes since the last look
}

func (r *roomy) Write(p []byte) (int, error) {
	if r.unseen += int64(len(p)); r.unseen >= lookEvery {
		r.unseen = 0
		if err := roomFor(r.dir, 0); err != nil {
			return 0, err
		}
	}
	return r.w.Write(p)
}
