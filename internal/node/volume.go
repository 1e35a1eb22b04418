package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// volume is a root volume to be made: an overlay on an image.
type volume struct {
	path      string
	base      string // in the same directory
	format    string // of base
	sizeBytes int64
}

// rootVolume reads the root volume of a desired instance; it is never smaller
// than the image's disk.
func rootVolume(d api.DesiredInstance) (volume, error) {
	if len(d.Volumes) != 1 || !d.Volumes[0].Root {
		return volume{}, hopelessf("the instance has %d volumes, and this agent knows only a root volume: update the agent", len(d.Volumes))
	}
	if d.Image.Format != "qcow2" && d.Image.Format != "raw" {
		return volume{}, hopelessf("the image has format %q, and this agent knows qcow2 and raw: update the agent", d.Image.Format)
	}
	return volume{format: d.Image.Format, sizeBytes: max(d.Volumes[0].SizeBytes, d.Image.VirtualSize)}, nil
}

// volumeTimeout bounds a qemu-img that writes a header and no data.
const volumeTimeout = time.Minute

// createVolume makes the overlay under another name first. The backing format is
// written down, so that QEMU never guesses it from bytes that a guest may write;
// -u lets qemu-img not open the image, whose header was checked when it came.
func createVolume(ctx context.Context, v volume) error {
	ctx, cancel := context.WithTimeout(ctx, volumeTimeout)
	defer cancel()
	tmp := v.path + ".tmp"
	cmd := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-u", "-f", "qcow2",
		"-F", v.format, "-b", filepath.Base(v.base), tmp, strconv.FormatInt(v.sizeBytes, 10))
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		os.Remove(tmp)
		return fmt.Errorf("root volume: qemu-img (package qemu-utils): %w: %s", err, strings.TrimSpace(string(out)))
	}
	if err := secure(tmp); err != nil {
		return fmt.Errorf("root volume: %w", err)
	}
	return publish(tmp, v.path)
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
