package main

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// disk is a virtio block device as the kernel describes it under /sys/block.
type disk struct {
	name     string // vda
	bytes    int64
	serial   string // the id that the hypervisor gave, "" when it gave none
	readOnly bool
}

func (d disk) device() string { return "/dev/" + d.name }

// read returns n bytes at offset of the disk, nil when they cannot be had.
func (d disk) read(offset int64, n int) []byte {
	f, err := os.Open(d.device())
	if err != nil {
		return nil
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, offset); err != nil {
		return nil
	}
	return b
}

// disks lists the virtio disks, shorter names first (vdb before vdaa).
func disks(sys fs.FS) []disk {
	entries, _ := fs.ReadDir(sys, "block") // no block devices: an empty list
	var list []disk
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "vd") {
			continue
		}
		dir := path.Join("block", e.Name())
		sectors, _ := strconv.ParseInt(sysText(sys, path.Join(dir, "size")), 10, 64)
		list = append(list, disk{
			name:     e.Name(),
			bytes:    sectors * 512, // /sys counts in 512-byte units whatever the sector size
			serial:   sysText(sys, path.Join(dir, "serial")),
			readOnly: sysText(sys, path.Join(dir, "ro")) == "1",
		})
	}
	slices.SortFunc(list, func(a, b disk) int {
		if len(a.name) != len(b.name) {
			return len(a.name) - len(b.name)
		}
		return strings.Compare(a.name, b.name)
	})
	return list
}

// isRoot tells the disk that this image was booted from: images/micro/build.sh labels it.
func isRoot(d disk) bool { return fatLabel(d.read(0, 512)) == "MICRO" }

// fatLabel is the volume label of a FAT16 boot sector (offset 43, 11 bytes, after the 0x29 signature), "" when b is none.
func fatLabel(b []byte) string {
	if len(b) < 512 || b[38] != 0x29 || b[510] != 0x55 || b[511] != 0xAA {
		return ""
	}
	return strings.TrimRight(string(b[43:54]), " ")
}

// vcpus counts the processors that are online, 0 when the kernel does not say.
func vcpus(sys fs.FS) int {
	n := 0
	for part := range strings.SplitSeq(sysText(sys, "devices/system/cpu/online"), ",") {
		first, last, ranged := strings.Cut(part, "-")
		lo, err := strconv.Atoi(first)
		if err != nil {
			continue
		}
		hi := lo
		if ranged {
			hi, _ = strconv.Atoi(last)
		}
		n += hi - lo + 1
	}
	return n
}

// memTotal is MemTotal of /proc/meminfo in bytes: what the kernel manages, a little less than the hypervisor gave.
func memTotal(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// sysText is the trimmed content of a one-line kernel file, "" when there is none.
func sysText(sys fs.FS, name string) string {
	b, _ := fs.ReadFile(sys, name)
	return strings.TrimSpace(string(b))
}
