package libvirt

import (
	"fmt"
	"os"

	"libvirt.org/go/libvirtxml"
)

// grant lets QEMU read the files that it must not own: read-only disks and what
// lies under overlays. They become root's, readable for QEMU's group and for
// nobody else. Disks that it writes are given to it and taken back by libvirt.
func grant(x *libvirtxml.Domain, o owner) error {
	if os.Geteuid() != 0 || o.uid == 0 {
		return nil // we may not, or need not
	}
	for _, path := range readOnlyFiles(x) {
		if err := os.Chown(path, 0, o.gid); err != nil {
			return fmt.Errorf("let QEMU read a disk: %w", err)
		}
		if err := os.Chmod(path, 0o440); err != nil {
			return fmt.Errorf("let QEMU read a disk: %w", err)
		}
	}
	return nil
}

func readOnlyFiles(x *libvirtxml.Domain) (paths []string) {
	for _, d := range x.Devices.Disks {
		if d.ReadOnly != nil && d.Source != nil && d.Source.File != nil {
			paths = append(paths, d.Source.File.File)
		}
		for b := d.BackingStore; b != nil; b = b.BackingStore {
			if b.Source != nil && b.Source.File != nil {
				paths = append(paths, b.Source.File.File)
			}
		}
	}
	return paths
}
