package diskimage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// view holds the places of a file where formats leave their marks.
type view struct {
	head   []byte // the first bytes
	volume []byte // where ISO 9660 and UDF have their first descriptor
	foot   []byte // the last sector
}

const volumeOffset = 16 * 2048

func newView(r io.ReaderAt, size int64) (v view, err error) {
	for _, part := range []struct {
		into           *[]byte
		offset, length int64
	}{
		{&v.head, 0, sectorSize},
		{&v.volume, volumeOffset, 6},
		{&v.foot, max(0, size-sectorSize), sectorSize},
	} {
		if *part.into, err = readAt(r, part.offset, min(part.length, size-part.offset)); err != nil {
			return view{}, err
		}
	}
	return v, nil
}

// readAt reads exactly n bytes; none when n is not positive.
func readAt(r io.ReaderAt, offset, n int64) ([]byte, error) {
	if n <= 0 {
		return nil, nil
	}
	b := make([]byte, n)
	return b, fill(r, b, offset)
}

// fill reads until b is full; a file shorter than its announced size is an error.
func fill(r io.ReaderAt, b []byte, offset int64) error {
	n, err := r.ReadAt(b, offset)
	switch {
	case n == len(b):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("reading the image at byte %d: %w", offset, err)
}

// mark is how a format that is not accepted shows itself at the beginning of a file.
type mark struct {
	offset int
	magic  string
	name   string
	driver string // what qemu-img calls it, where it can convert it
	unpack string // what undoes it, where it is packed
}

var marks = []mark{
	{0, "KDMV", "a VMDK image", "vmdk", ""},
	{0, "COWD", "a VMDK image", "vmdk", ""},
	{0, "\xbe\xba\xfe\xca\x00\x00\x00\x00", "a VMDK image", "vmdk", ""}, // sparse of ESX
	{0, "# Disk DescriptorFile", "the description of a VMDK image, whose data is in another file", "vmdk", ""},
	{64, "\x7f\x10\xda\xbe", "a VDI image", "vdi", ""},
	{0, "conectix", "a VHD image", "vpc", ""},
	{0, "vhdxfile", "a VHDX image", "vhdx", ""},
	{0, "QED\x00", "a QED image", "qed", ""},
	{0, "QFI\xfb\x00\x00\x00\x01", "a qcow image of version 1", "qcow", ""},
	{0, "WithoutFreeSpace", "a Parallels image", "parallels", ""},
	{0, "WithouFreSpacExt", "a Parallels image", "parallels", ""},
	{0, "Bochs Virtual HD Image", "a Bochs image", "bochs", ""},
	{0, "\x1f\x8b\x08", "packed with gzip", "", "gunzip FILE"},
	{0, "\xfd7zXZ\x00", "packed with xz", "", "unxz FILE"},
	{0, "\x28\xb5\x2f\xfd", "packed with zstd", "", "unzstd FILE"},
	{0, "\x04\x22\x4d\x18", "packed with lz4", "", "unlz4 FILE"},
	{4, "1AY&SY", "packed with bzip2", "", "bunzip2 FILE"},
	{0, "PK\x03\x04", "a zip archive", "", "unzip FILE"},
	{0, "7z\xbc\xaf\x27\x1c", "a 7z archive", "", "7z x FILE"},
	{257, "ustar", "a tar archive (an OVA is one)", "", "tar -xf FILE"},
}

func at(b []byte, offset int, magic string) bool {
	return len(b) >= offset && bytes.HasPrefix(b[offset:], []byte(magic))
}

// isQCOW2 leaves version 1, another format under the same magic, to the marks.
func (v view) isQCOW2() bool {
	return at(v.head, 0, qcow2Magic) && !at(v.head, 0, qcow2Magic+"\x00\x00\x00\x01")
}

// disguise refuses what would be taken for a raw disk only for want of a better guess.
func (v view) disguise() error {
	for _, m := range marks {
		if at(v.head, m.offset, m.magic) {
			return m.refuse()
		}
	}
	switch {
	case at(v.head, 0, "LUKS\xba\xbe"):
		return refuse(Encrypted, "this is a LUKS volume, whose key is not here: bring the disk decrypted; a guest can encrypt it on the inside")
	case at(v.foot, 0, "conectix"), at(v.foot, 1, "conectix"): // Virtual PC 2004 wrote 511 bytes
		return mark{name: "a VHD image", driver: "vpc"}.refuse()
	case at(v.foot, 0, "koly"):
		return mark{name: "a DMG image", driver: "dmg"}.refuse()
	case v.isOptical() && !v.hasPartitions():
		return refuse(WrongFormat, "this is the image of a CD or DVD, not of a disk: bring a disk image (the cloud or generic image of the distribution, or a disk that was installed from this one)")
	case v.isText():
		return refuse(WrongFormat, "this is text, not a disk image: a download may have saved an error page; look into the file and get the image anew")
	}
	return nil
}

func (m mark) refuse() error {
	if m.unpack != "" {
		return refuse(Compressed, "the image is %s: unpack it first (%s) and bring the disk image that is inside", m.name, m.unpack)
	}
	return refuse(WrongFormat, "this is %s, and only qcow2 and raw are accepted: convert it with: qemu-img convert -f %s -O qcow2 FILE disk.qcow2", m.name, m.driver)
}

func (v view) isOptical() bool {
	return at(v.volume, 1, "CD001") || at(v.volume, 1, "BEA01")
}

// hasPartitions tells a hybrid, an ISO image that also is a disk with an MBR, from one
// that is nothing else.
func (v view) hasPartitions() bool {
	if !at(v.head, 510, "\x55\xaa") {
		return false
	}
	for entry := 446; entry < 510; entry += 16 {
		if v.head[entry+4] != 0 { // its type
			return true
		}
	}
	return false
}

// isText holds when the whole first sector is text. A disk's first sector is code and
// numbers, or empty.
func (v view) isText() bool {
	text := v.head
	for len(text) > 0 && len(v.head)-len(text) < utf8.UTFMax && !utf8.Valid(text) {
		text = text[:len(text)-1] // a character cut in two by the end of the sector
	}
	return utf8.Valid(text) && !bytes.ContainsFunc(text, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\f' && r != '\r' || r == 0x7f
	})
}
