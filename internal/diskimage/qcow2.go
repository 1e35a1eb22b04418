package diskimage

import (
	"encoding/binary"
	"io"
	"slices"
)

// All of this follows docs/interop/qcow2.rst of QEMU, read strictly: what that allows
// but an image to be imported has no use for is refused.

const qcow2Magic = "QFI\xfb"

// Bits of the incompatible features: a reader that does not know one must not open the
// image.
const (
	featureDirty = 1 << iota
	featureCorrupt
	featureExternalData
	featureCompression
	featureExtendedL2

	featuresKnown = 1<<iota - 1
)

// Header extensions that matter.
const (
	extensionEnd           = 0
	extensionBackingFormat = 0xe2792aca
	extensionEncryption    = 0x0537be77
	extensionExternalData  = 0x44415441
)

// Bounds that QEMU itself has for the two tables at the top, in bytes.
const (
	maxL1Table       = 32 << 20
	maxRefcountTable = 8 << 20
)

const (
	headerLengthV2 = 72
	headerLengthV3 = 104
)

// flatten is the cure for most of what is refused.
const flatten = "make one complete file of it with: qemu-img convert -O qcow2 FILE disk.qcow2"

// qcow2 is an image under inspection.
type qcow2 struct {
	r    io.ReaderAt
	size uint64 // of the file

	version          uint32
	backingOffset    uint64
	backingSize      uint32
	clusterBits      uint32
	virtualSize      uint64
	encryption       uint32
	l1Entries        uint32
	l1Offset         uint64
	refcountOffset   uint64
	refcountClusters uint32
	snapshots        uint32
	features         uint64
	refcountOrder    uint32
	headerLength     uint32
	compression      byte
	hasCompression   bool
}

func inspectQCOW2(r io.ReaderAt, size, maxVirtualSize int64) (Info, error) {
	q := qcow2{r: r, size: uint64(size)}
	for _, check := range []func() error{
		q.readHeader,
		q.checkFeatures,
		q.checkHeader,
		q.checkExtensions,
		func() error { return checkVirtualSize(q.virtualSize, maxVirtualSize) },
		q.checkRefcounts,
		q.checkMapping,
	} {
		if err := check(); err != nil {
			return Info{}, err
		}
	}
	return Info{Format: QCOW2, VirtualSize: int64(q.virtualSize)}, nil
}

func truncated(what string) error {
	return refuse(Truncated, "%s of this qcow2 image is beyond the end of the file: the file is cut off, get it anew", what)
}

func corrupt(what string) error {
	return refuse(Corrupt, "this qcow2 image is damaged (%s): get it anew, or see what qemu-img check says", what)
}

// readHeader takes the fields apart; version 3 only adds to version 2.
func (q *qcow2) readHeader() error {
	b, err := readAt(q.r, 0, int64(min(q.size, headerLengthV3+8)))
	if err != nil {
		return err
	}
	if len(b) < headerLengthV2 {
		return truncated("the header")
	}
	u32, u64 := binary.BigEndian.Uint32, binary.BigEndian.Uint64
	q.version = u32(b[4:])
	q.backingOffset, q.backingSize = u64(b[8:]), u32(b[16:])
	q.clusterBits, q.virtualSize, q.encryption = u32(b[20:]), u64(b[24:]), u32(b[32:])
	q.l1Entries, q.l1Offset = u32(b[36:]), u64(b[40:])
	q.refcountOffset, q.refcountClusters = u64(b[48:]), u32(b[56:])
	q.snapshots = u32(b[60:])
	switch {
	case q.version == 2:
		q.headerLength, q.refcountOrder = headerLengthV2, 4
		return nil
	case q.version != 3:
		return refuse(UnknownFeatures, "this is version %d of qcow2, and only 2 and 3 are known: %s", q.version, flatten)
	case len(b) < headerLengthV3:
		return truncated("the header")
	}
	q.features, q.refcountOrder, q.headerLength = u64(b[72:]), u32(b[96:]), u32(b[100:])
	if q.headerLength > headerLengthV3 && len(b) > headerLengthV3 {
		q.compression, q.hasCompression = b[headerLengthV3], true
	}
	return nil
}

// checkFeatures refuses images that are not whole in themselves, or need a reader that
// knows more.
func (q *qcow2) checkFeatures() error {
	switch {
	case q.backingOffset != 0 || q.backingSize != 0:
		return refuse(BackingFile, "the image holds only the changes to another image, its backing file: where both are, %s", flatten)
	case q.features&featureExternalData != 0:
		return refuse(ExternalData, "the image keeps its data in another file: where both are, %s", flatten)
	case q.encryption != 0:
		return refuse(Encrypted, "the image is encrypted and the key is not here: bring it decrypted; a guest can encrypt its disk on the inside")
	case q.features&featureCorrupt != 0:
		return refuse(Corrupt, "the image is marked as corrupt: repair a copy with qemu-img check -r all FILE and look at what is left, or get it anew")
	case q.features&featureDirty != 0:
		return refuse(Corrupt, "the image was not closed after its last use: close the program that has it open, or repair it with: qemu-img check -r all FILE")
	case q.features&^featuresKnown != 0:
		return refuse(UnknownFeatures, "the image needs features that are not known here (bits %#x): %s", q.features&^featuresKnown, flatten)
	case q.snapshots != 0:
		return refuse(Snapshots, "the image holds %d snapshots, and an image is one state of a disk: %s (it leaves the snapshots out)", q.snapshots, flatten)
	}
	return q.checkCompression()
}

// checkCompression holds the field and its feature bit to each other: 0 is zlib and has
// no bit, 1 is zstd and needs it.
func (q *qcow2) checkCompression() error {
	marked := q.features&featureCompression != 0
	switch {
	case q.compression > 1:
		return refuse(UnknownFeatures, "the image is compressed in a way that is not known here (type %d): %s", q.compression, flatten)
	case marked && !q.hasCompression, marked != (q.compression != 0):
		return corrupt("its header contradicts itself about compression")
	}
	return nil
}

func (q *qcow2) checkHeader() error {
	switch {
	case q.clusterBits < 9 || q.clusterBits > 21:
		return corrupt("its clusters have an impossible size")
	case q.features&featureExtendedL2 != 0 && q.clusterBits < 14:
		return corrupt("its clusters are too small for its extended entries")
	case q.refcountOrder > 6:
		return corrupt("its reference counts have an impossible width")
	case q.version == 3 && (q.headerLength < headerLengthV3 || q.headerLength%8 != 0), uint64(q.headerLength) > q.cluster():
		return corrupt("its header has an impossible length")
	case uint64(q.headerLength) > q.size:
		return truncated("the header")
	}
	return nil
}

func (q *qcow2) cluster() uint64 { return 1 << q.clusterBits }

// checkExtensions walks over what follows the header in the first cluster. Unknown
// extensions may be ignored by the format's own rule.
func (q *qcow2) checkExtensions() error {
	b, err := readAt(q.r, int64(q.headerLength), int64(min(q.cluster(), q.size))-int64(q.headerLength))
	if err != nil {
		return err
	}
	for len(b) >= 8 {
		kind, length := binary.BigEndian.Uint32(b), uint64(binary.BigEndian.Uint32(b[4:]))
		switch kind {
		case extensionEnd:
			return nil
		case extensionBackingFormat:
			return refuse(BackingFile, "the header names the format of a backing file, so that the image is not complete: where both are, %s", flatten)
		case extensionExternalData:
			return refuse(ExternalData, "the header names another file for the data: where both are, %s", flatten)
		case extensionEncryption:
			return refuse(Encrypted, "the header speaks of encryption and the key is not here: bring the image decrypted")
		}
		padded := 8 + (length+7)&^7
		if padded > uint64(len(b)) {
			return corrupt("an extension of its header is too long")
		}
		b = b[padded:]
	}
	return nil
}

// checkRefcounts checks that the table of reference counts and all blocks it names are
// in the file.
func (q *qcow2) checkRefcounts() error {
	length := uint64(q.refcountClusters) << q.clusterBits
	if length == 0 || length > maxRefcountTable {
		return corrupt("its table of reference counts has an impossible size")
	}
	blocks, err := q.table(q.refcountOffset, length/8, "the table of reference counts")
	if err != nil {
		return err
	}
	for _, offset := range blocks {
		if offset == 0 {
			continue
		}
		if err := q.within(offset, q.cluster(), "a block of reference counts"); err != nil {
			return err
		}
	}
	return nil
}

// table reads a table of 64-bit numbers that begins at a cluster.
func (q *qcow2) table(offset, entries uint64, what string) ([]uint64, error) {
	if offset == 0 {
		return nil, corrupt(what + " is missing")
	}
	if err := q.within(offset, entries*8, what); err != nil {
		return nil, err
	}
	b, err := readAt(q.r, int64(offset), int64(entries*8))
	if err != nil {
		return nil, err
	}
	out := make([]uint64, entries)
	for i := range out {
		out[i] = binary.BigEndian.Uint64(b[i*8:])
	}
	return out, nil
}

// within checks that a part begins at a cluster and ends in the file.
func (q *qcow2) within(offset, length uint64, what string) error {
	switch {
	case offset%q.cluster() != 0:
		return corrupt(what + " does not begin at a cluster")
	case offset > q.size || length > q.size-offset:
		return truncated(what)
	}
	return nil
}

// Parts of the entries of both mapping tables.
const (
	entryOffset     = 0x00fffffffffffe00
	entryCopied     = 1 << 63
	entryCompressed = 1 << 62
)

// checkMapping follows the two levels of tables from the guest's clusters to the file's
// and checks that each is there: so a download that was cut off shows. The tables of the
// second level must fit into the file side by side, which bounds the reading.
func (q *qcow2) checkMapping() error {
	entrySize := uint64(8)
	if q.features&featureExtendedL2 != 0 {
		entrySize = 16
	}
	perTable := q.cluster() / entrySize
	covered := perTable << q.clusterBits // bytes of the disk that one table maps
	if length := uint64(q.l1Entries) * 8; length > maxL1Table || uint64(q.l1Entries) < (q.virtualSize-1)/covered+1 {
		return corrupt("its mapping table has the wrong size for its disk")
	}
	l1, err := q.table(q.l1Offset, uint64(q.l1Entries), "the mapping table")
	if err != nil {
		return err
	}
	if uint64(len(l1)-count(l1, 0)) > q.size/q.cluster() {
		return corrupt("it has more mapping tables than fit into the file")
	}
	b := make([]byte, q.cluster())
	for i, entry := range l1 {
		if entry == 0 {
			continue
		}
		if entry&^(entryOffset|entryCopied) != 0 {
			return corrupt("an entry of its mapping table has unknown bits")
		}
		offset := entry & entryOffset
		if err := q.within(offset, q.cluster(), "a mapping table"); err != nil {
			return err
		}
		if err := fill(q.r, b, int64(offset)); err != nil {
			return err
		}
		if err := q.checkL2(b, entrySize, uint64(i)*covered); err != nil {
			return err
		}
	}
	return nil
}

func count(list []uint64, value uint64) (n int) {
	for _, v := range list {
		if v == value {
			n++
		}
	}
	return n
}

// checkL2 checks a table of the second level, which maps the disk from guest on.
func (q *qcow2) checkL2(b []byte, entrySize, guest uint64) error {
	for entry := range slices.Chunk(b, int(entrySize)) {
		if err := q.checkCluster(binary.BigEndian.Uint64(entry), guest); err != nil {
			return err
		}
		guest += q.cluster()
	}
	return nil
}

// checkCluster checks where one cluster of the disk is. The last one may be shorter in
// the file; a compressed one is as long as it is, its sectors only bound it.
func (q *qcow2) checkCluster(entry, guest uint64) error {
	if entry&entryCompressed != 0 {
		if offset := entry & (1<<(62-(q.clusterBits-8)) - 1); offset >= q.size {
			return truncated("data")
		}
		return nil
	}
	offset := entry & entryOffset
	if offset == 0 {
		return nil
	}
	length := uint64(1)
	if guest < q.virtualSize && q.features&featureExtendedL2 == 0 {
		length = min(q.cluster(), q.virtualSize-guest)
	}
	return q.within(offset, length, "data")
}
