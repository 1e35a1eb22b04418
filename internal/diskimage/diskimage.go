// Package diskimage says what a disk image is before anything trusts it.
//
// A disk image comes from outside and is opened by QEMU on a node: a header that names
// another file would hand that file to the guest, and a format that is guessed later can
// be chosen by the guest itself. So the format is told here once, from the bytes alone,
// and only images that are one whole disk in themselves pass.
//
// The package is pure: it reads what it is given and nothing else.
package diskimage

import (
	"fmt"
	"io"
)

// Format is a disk image format that a node can start from.
type Format string

// The accepted formats, by the names that QEMU and libvirt use.
const (
	QCOW2 Format = "qcow2"
	Raw   Format = "raw"
)

// Info is what a good image says of itself.
type Info struct {
	Format Format
	// VirtualSize is the size of the disk that the guest sees, in bytes.
	VirtualSize int64
}

// Inspect tells the format of the image of size bytes in r and checks that it is safe to
// open: complete, referring to no other file, and no larger for the guest than
// maxVirtualSize bytes. It reads the header and the tables that lead to the data (never
// more than the file), not the data; the digest is for that.
//
// A refused image gives an [*Error], whose text is for the person who brought the image;
// any other error is r's own.
func Inspect(r io.ReaderAt, size, maxVirtualSize int64) (Info, error) {
	if size <= 0 {
		return Info{}, refuse(Empty, "the image is empty: was the file read before it was written?")
	}
	v, err := newView(r, size)
	if err != nil {
		return Info{}, err
	}
	if v.isQCOW2() {
		return inspectQCOW2(r, size, maxVirtualSize)
	}
	if err := v.disguise(); err != nil {
		return Info{}, err
	}
	return inspectRaw(size, maxVirtualSize)
}

// inspectRaw checks what can be checked of a format without a header.
func inspectRaw(size, maxVirtualSize int64) (Info, error) {
	if size%sectorSize != 0 {
		return Info{}, refuse(Truncated, "the image has no known header, so it counts as raw, but its %d bytes are not whole sectors of %d: the file is cut off or is no disk image; get it anew, or convert it with: qemu-img convert -O qcow2 FILE disk.qcow2", size, sectorSize)
	}
	if err := checkVirtualSize(uint64(size), maxVirtualSize); err != nil {
		return Info{}, err
	}
	return Info{Format: Raw, VirtualSize: size}, nil
}

const sectorSize = 512

// checkVirtualSize holds for every format.
func checkVirtualSize(virtual uint64, most int64) error {
	switch {
	case virtual == 0:
		return refuse(BadSize, "the image is of a disk with no bytes")
	case virtual > uint64(max(most, 0)):
		return refuse(TooLarge, "the image is of a disk of %d bytes, and the limit is %d: make the disk smaller (its file systems first, then qemu-img resize --shrink), or ask the operator for a higher limit", virtual, most)
	case virtual%sectorSize != 0:
		return refuse(BadSize, "the image is of a disk of %d bytes, which are not whole sectors of %d: make it larger with qemu-img resize", virtual, sectorSize)
	}
	return nil
}

// Reason is why an image is refused; a stable word for programs.
type Reason string

// The reasons.
const (
	Empty           Reason = "empty"
	WrongFormat     Reason = "wrong_format"     // another format, or no disk image at all
	Compressed      Reason = "compressed"       // packed as a whole, or an archive
	Truncated       Reason = "truncated"        // parts that the header speaks of are missing
	Corrupt         Reason = "corrupt"          // the header contradicts itself or says so
	BackingFile     Reason = "backing_file"     // the rest is in another image
	ExternalData    Reason = "external_data"    // the data is in another file
	Encrypted       Reason = "encrypted"        // nobody here has the key
	Snapshots       Reason = "snapshots"        // more than one state of the disk
	UnknownFeatures Reason = "unknown_features" // needs a newer reader
	TooLarge        Reason = "too_large"        // beyond the caller's limit
	BadSize         Reason = "bad_size"         // no bytes, or not whole sectors
)

// Error is a refused image. Message says what is wrong and what to do; it is for the
// person who brought the image and holds nothing of the image's content.
type Error struct {
	Reason  Reason
	Message string
}

func (e *Error) Error() string { return e.Message }

func refuse(reason Reason, format string, args ...any) error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
