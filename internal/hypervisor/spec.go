package hypervisor

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
)

// maxSerial is VIRTIO_BLK_ID_BYTES, virtio 1.2 section 5.2.6: a longer serial
// would reach the guest cut off.
const maxSerial = 20

// maxSocketPath is what fits into sockaddr_un beside its closing NUL, unix(7).
const maxSocketPath = 107

var (
	idForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	serialForm = regexp.MustCompile(`^[A-Za-z0-9._+-]*$`)
	uuidForm   = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// Validate says whether a hypervisor can be asked for s at all. The error is an
// ErrRefused that names the field.
func (s Spec) Validate() error {
	switch {
	case !idForm.MatchString(s.ID):
		return refuse("id %q: want 1 to 63 of A-Z a-z 0-9 . _ -, the first alphanumeric", s.ID)
	case !uuidForm.MatchString(s.UUID):
		return refuse("uuid %q: want a lower-case UUID", s.UUID)
	case s.VCPUs < 1:
		return refuse("vcpus %d: want at least 1", s.VCPUs)
	case s.MemoryBytes < 1<<20:
		return refuse("memory %d bytes: want at least 1 MiB", s.MemoryBytes)
	case len(s.Disks) == 0:
		return refuse("no disk: want at least the root disk")
	case !filepath.IsAbs(s.ConsoleLog):
		return refuse("console log %q: want an absolute path", s.ConsoleLog)
	case !filepath.IsAbs(s.ConsoleSocket) || len(s.ConsoleSocket) > maxSocketPath:
		return refuse("console socket %q: want an absolute path of at most %d bytes", s.ConsoleSocket, maxSocketPath)
	}
	for i, d := range s.Disks {
		if err := d.validate(); err != nil {
			return fmt.Errorf("disk %d: %w", i, err)
		}
	}
	for i, n := range s.NICs {
		if err := n.validate(); err != nil {
			return fmt.Errorf("nic %d: %w", i, err)
		}
	}
	return nil
}

func (d Disk) validate() error {
	for _, i := range append([]Image{{d.Path, d.Format}}, d.Backing...) {
		if err := i.validate(); err != nil {
			return err
		}
	}
	if len(d.Serial) > maxSerial || !serialForm.MatchString(d.Serial) {
		return refuse("serial %q: want at most %d of A-Z a-z 0-9 . _ + -", d.Serial, maxSerial)
	}
	return nil
}

func (i Image) validate() error {
	if !filepath.IsAbs(i.Path) {
		return refuse("path %q: want an absolute path", i.Path)
	}
	if i.Format != "qcow2" && i.Format != "raw" {
		return refuse("format %q: want qcow2 or raw", i.Format)
	}
	return nil
}

func (n NIC) validate() error {
	mac, err := net.ParseMAC(n.MAC)
	if err != nil || len(mac) != 6 || mac.String() != n.MAC || mac[0]&1 != 0 {
		return refuse("mac %q: want a lower-case unicast address such as 52:54:00:00:00:01", n.MAC)
	}
	// IFNAMSIZ is 16 bytes with the closing NUL, netdevice(7).
	if len(n.Tap) < 1 || len(n.Tap) > 15 {
		return refuse("tap %q: want a name of 1 to 15 bytes", n.Tap)
	}
	if n.MTU < 576 || n.MTU > 65535 {
		return refuse("mtu %d: want 576 to 65535", n.MTU)
	}
	return nil
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrRefused}, args...)...)
}
