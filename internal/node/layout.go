package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// layout is the data directory:
//
//	DIR/lock                      held by the one agent
//	DIR/images/SHA256             images, each whole and checked; 0700
//	DIR/known.json                what the server last said of networks and guests
//	DIR/power.json                the last power action that was carried out
//	DIR/reservation.json          what memory was kept for the host
//	DIR/metadata.key, identity.pem
//	DIR/left/ID                   when an instance moved away; 0700
//	DIR/uploads/                  images on their way to the server; 0700
//	DIR/volumes/ID/base           data volumes: as root.qcow2 below, base only where
//	               volume.qcow2   the volume stands on an image
//	DIR/instances/ID/state.json   what must outlive the agent
//	                 base         hard link to the image under root.qcow2
//	                 root.qcow2   root volume, an overlay on base
//	                 cidata.iso   seed of the present start
//	                 user-data    the bytes in it, for the metadata service
//	                 console.log, console.sock
//	                 starved      there while the VM stands still for want of space
//
// An image is in use exactly as long as an instance links it, so no crash can
// lose count. QEMU runs as another user: it must get through to the files of its
// instance, which the hypervisor hands to it, but nobody can list a directory. So
// directories above those files are 0711 and the files 0600 as they are made.
type layout struct{ root string }

const (
	fileState   = "state.json"
	fileBase    = "base"
	fileRoot    = "root.qcow2"
	fileSeed    = "cidata.iso"
	fileConsole = "console.log"
	fileSocket  = "console.sock"
	fileStarved = "starved"

	fileUserData    = "user-data"
	fileVolume      = "volume.qcow2"
	fileKnown       = "known.json"
	filePower       = "power.json"
	fileReservation = "reservation.json"
	fileTokenKey    = "metadata.key"
	fileIdentityKey = "identity.pem"
)

// socketRoot takes the console sockets of a data directory whose own path is too
// long for one.
const socketRoot = "/run/outcrop"

// maxSocketPath is what fits into sockaddr_un beside its NUL, unix(7).
const maxSocketPath = 107

func (l layout) images() string            { return filepath.Join(l.root, "images") }
func (l layout) uploads() string           { return filepath.Join(l.root, "uploads") }
func (l layout) left(id string) string     { return filepath.Join(l.root, "left", id) }
func (l layout) volumes() string           { return filepath.Join(l.root, "volumes") }
func (l layout) volume(id string) string   { return filepath.Join(l.volumes(), id) }
func (l layout) instance(id string) string { return filepath.Join(l.root, "instances", id) }
func (l layout) file(name string) string   { return filepath.Join(l.root, name) }

// open makes the directories and takes the lock, which ends with the process
// however that ends.
func (l layout) open() (io.Closer, error) {
	err := os.MkdirAll(l.root, 0o711) // one that is there keeps the mode its owner gave it
	if err == nil {
		err = makeDir(filepath.Join(l.root, "instances"), 0o711)
	}
	if err == nil {
		err = makeDir(l.images(), 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(l.root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another node agent works in %s; stop it, or give this one a --data of its own", l.root)
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// makeDir makes a directory with exactly this mode, whatever the umask is.
func makeDir(path string, mode fs.FileMode) error {
	if err := os.MkdirAll(path, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// instances lists the VMs that have a directory here.
func (l layout) instances() []string {
	entries, _ := os.ReadDir(filepath.Join(l.root, "instances")) // open has just made it
	var ids []string
	for _, e := range entries {
		if e.IsDir() && compute.ValidInstanceID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// socket is where the two-way console of an instance is.
func (l layout) socket(id string) string {
	p := filepath.Join(l.instance(id), fileSocket)
	if len(p) <= maxSocketPath {
		return p
	}
	sum := sha256.Sum256([]byte(l.root))
	return filepath.Join(socketRoot, hex.EncodeToString(sum[:4])+"-"+id)
}

// warnUnreachable tells of a folder on the way to the data directory, or itself,
// that QEMU's own user cannot get through.
func (l layout) warnUnreachable(log *slog.Logger) {
	for p := l.root; ; p = filepath.Dir(p) {
		if info, err := os.Stat(p); err == nil && info.Mode()&0o001 == 0 {
			log.Warn("QEMU's user cannot get through this folder to the VMs' disks; chmod o+x it, or choose another --data", "folder", p)
		}
		if p == filepath.Dir(p) {
			return
		}
	}
}

// space is what is free on the file system and what of it must stay free, bytes.
func (l layout) space() (free, reserve int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(l.root, &s); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", l.root, err)
	}
	total := int64(s.Blocks) * s.Bsize
	return int64(s.Bavail) * s.Bsize, min(maxReserve, total/20), nil
}

// maxReserve bounds what is kept free for running VMs to grow and for the
// agent's own files; on a small disk it is a twentieth.
const maxReserve = 1 << 30

// writeFile replaces a file whole or not at all, also when the power fails.
func writeFile(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = publish(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
	}
	return err
}

// publish gives a finished file its name and makes the name durable.
func publish(tmp, path string) error {
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// exists reports whether path is there; an error other than "no" counts as yes,
// so that nothing is made over what cannot be read.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
