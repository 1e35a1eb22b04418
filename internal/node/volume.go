package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// volume is a volume to be made: an overlay on an image, or empty.
type volume struct {
	path      string
	base      string // in the same directory; empty: no image
	format    string // of base
	sizeBytes int64
}

// volumes are those of an instance: its root, and its data volumes in the order
// of the guest's devices from /dev/vdb on (contract U-11).
type volumes struct {
	root api.DesiredVolume
	data []api.DesiredVolume
}

// volumeForm keeps a volume's id from naming anything but a directory of volumes.
var volumeForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,62}$`)

func readVolumes(d api.DesiredInstance) (v volumes, err error) {
	roots := 0
	for _, vol := range d.Volumes {
		switch {
		case !volumeForm.MatchString(vol.ID):
			return v, hopelessf("the server names a volume with an id that cannot be (%q)", vol.ID)
		case vol.Root:
			v.root = vol
			roots++
		default:
			v.data = append(v.data, vol)
		}
	}
	if roots != 1 {
		return v, hopelessf("the instance has %d root volumes instead of one", roots)
	}
	image := d.Image // the root's
	v.root.Image = &image
	return v, nil
}

// newVolume is what has to be made for a volume; it is never smaller than its image.
func newVolume(v api.DesiredVolume) (volume, error) {
	if v.Image == nil {
		return volume{sizeBytes: v.SizeBytes}, nil
	}
	if v.Image.Format != "qcow2" && v.Image.Format != "raw" {
		return volume{}, hopelessf("the image has format %q, and this agent knows qcow2 and raw: update the agent", v.Image.Format)
	}
	return volume{format: v.Image.Format, sizeBytes: max(v.SizeBytes, v.Image.VirtualSize)}, nil
}

// diskOf is how the hypervisor gets a volume that lies in dir.
func diskOf(v api.DesiredVolume, dir, file string) hypervisor.Disk {
	d := hypervisor.Disk{Path: filepath.Join(dir, file), Format: "qcow2", Serial: v.ID, Backing: []hypervisor.Image{}}
	if v.Image != nil {
		d.Backing = []hypervisor.Image{{Path: filepath.Join(dir, fileBase), Format: v.Image.Format}}
	}
	return d
}

// volumeTimeout bounds a qemu-img that writes a header and no data.
const volumeTimeout = time.Minute

// createVolume makes the volume under another name first. The backing format is
// written down, so that QEMU never guesses it from bytes that a guest may write;
// -u lets qemu-img not open the image, whose header was checked when it came.
func createVolume(ctx context.Context, v volume) error {
	ctx, cancel := context.WithTimeout(ctx, volumeTimeout)
	defer cancel()
	tmp := v.path + ".tmp"
	args := []string{"create", "-q", "-f", "qcow2"}
	if v.base != "" {
		args = append(args, "-u", "-F", v.format, "-b", filepath.Base(v.base))
	}
	if err := qemuImg(ctx, append(args, tmp, strconv.FormatInt(v.sizeBytes, 10))...); err != nil {
		os.Remove(tmp)
		return fmt.Errorf("volume: %w", err)
	}
	if err := secure(tmp); err != nil {
		return fmt.Errorf("volume: %w", err)
	}
	return publish(tmp, v.path)
}

func qemuImg(ctx context.Context, args ...string) error { return qemuImgWithin(ctx, 0, args...) }

// qemuImgWithin is qemuImg that writes no file longer than most bytes: errNoRoom where
// it would. 0 is no limit.
func qemuImgWithin(ctx context.Context, most int64, args ...string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "qemu-img", args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Start()
	if err == nil {
		if most > 0 {
			err = unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(most), Max: uint64(most)}, nil)
		}
		if err != nil {
			_ = cmd.Process.Kill()
		}
		err = cmp.Or(err, cmd.Wait())
	}
	switch text := strings.TrimSpace(out.String()); {
	case err == nil:
		return nil
	case most > 0 && tooLong(cmd.ProcessState, text):
		return fmt.Errorf("%w: it would take more than the %s that are free", errNoRoom, size(most))
	default:
		return fmt.Errorf("qemu-img (package qemu-utils): %w: %s", err, text)
	}
}

// tooLong reports whether a process ended at its limit of a file's length, setrlimit(2).
func tooLong(ended *os.ProcessState, text string) bool {
	status, ok := ended.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGXFSZ || strings.Contains(text, "File too large")
}

// secure closes a file to others and makes its bytes durable.
func secure(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Chmod(0o600); err != nil {
		return err
	}
	return f.Sync()
}
