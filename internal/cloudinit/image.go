package cloudinit

import (
	"encoding/binary"
	"strings"
	"unicode/utf16"
)

// Label is the volume label by which cloud-init finds a seed disk. It is lower case on
// purpose: cloud-init before 19 compares it with case, and ISO 9660 keeps it as it is.
const Label = "cidata"

const sectorSize = 2048

// Where things are in the image, in sectors. The system area before them is 16 sectors
// long by ECMA-119 6.2.1; each of our tables fits one sector, since there is only the
// root directory and it has only a handful of files.
const (
	sectorPrimary = 16 + iota
	sectorJoliet
	sectorTerminator
	sectorPathL // path tables, little- and big-endian
	sectorPathM
	sectorJolietPathL
	sectorJolietPathM
	sectorRoot
	sectorJolietRoot
	sectorData
)

// Image returns the seed as an ISO 9660 image with Rock Ridge and Joliet, labelled
// [Label], to be attached as a read-only disk. Errors are those of [Seed.Files].
//
// It is written here rather than by a library because an image has to be a function of
// its seed: a rebuild after a crash must give the same bytes, so nothing in it depends
// on the clock or on a scratch directory.
func Image(s Seed) ([]byte, error) {
	files, err := s.Files()
	if err != nil {
		return nil, err
	}
	return isoImage(files), nil
}

// isoImage lays the files out: both directory trees point at the same data.
func isoImage(files []File) []byte {
	extents := make([]int, len(files))
	end := sectorData
	for i, f := range files {
		extents[i] = end
		end += (len(f.Data) + sectorSize - 1) / sectorSize
	}
	image := make([]byte, end*sectorSize)
	sector := func(n int) []byte { return image[n*sectorSize:] }

	primary := tree{root: sectorRoot, pathL: sectorPathL, pathM: sectorPathM, text: ascii, name: shortName, rockRidge: true}
	joliet := tree{root: sectorJolietRoot, pathL: sectorJolietPathL, pathM: sectorJolietPathM, text: ucs2, name: ucs2}
	for _, t := range []tree{primary, joliet} {
		t.writePathTables(sector(t.pathL), sector(t.pathM))
		t.writeDirectory(sector(t.root), files, extents)
	}
	primary.writeDescriptor(sector(sectorPrimary), 1, end)
	joliet.writeDescriptor(sector(sectorJoliet), 2, end)
	copy(sector(sectorJoliet)[88:], "%/E") // Joliet level 3
	copy(sector(sectorTerminator), "\xffCD001\x01")
	for i, f := range files {
		copy(sector(extents[i]), f.Data)
	}
	return image
}

// tree is one of the image's two views on the same files.
type tree struct {
	root, pathL, pathM int                 // sectors
	text               func(string) string // how a text field is encoded
	name               func(string) string // what a file is called in this view
	rockRidge          bool
}

// writeDescriptor fills a volume descriptor (ECMA-119 8.4, 8.5; Joliet 2).
func (t tree) writeDescriptor(b []byte, kind byte, sectors int) {
	b[0] = kind
	copy(b[1:], "CD001\x01")
	t.writeText(b[8:40], "") // system
	t.writeText(b[40:72], Label)
	both32(b[80:], sectors)
	both16(b[120:], 1) // volumes in the set
	both16(b[124:], 1) // number of this one
	both16(b[128:], sectorSize)
	both32(b[132:], pathTableSize)
	binary.LittleEndian.PutUint32(b[140:], uint32(t.pathL))
	binary.BigEndian.PutUint32(b[148:], uint32(t.pathM))
	copy(b[156:190], record(t.root, sectorSize, flagDirectory, self, ""))
	t.writeText(b[190:318], "")        // volume set
	t.writeText(b[318:446], "")        // publisher
	t.writeText(b[446:574], "")        // who prepared the data
	t.writeText(b[574:702], "OUTCROP") // application
	t.writeText(b[702:739], "")        // copyright, abstract and bibliography files
	t.writeText(b[739:776], "")
	t.writeText(b[776:813], "")
	copy(b[813:], volumeTime) // created
	copy(b[830:], volumeTime) // changed
	copy(b[847:], noTime)     // expires
	copy(b[864:], noTime)     // effective from
	b[881] = 1                // file structure version
}

// writeText fills a fixed field; what the text leaves free is blank in its encoding.
func (t tree) writeText(field []byte, s string) {
	copy(field, t.text(s + strings.Repeat(" ", len(field)))[:len(field)])
}

// pathTableSize is the length of a path table that holds the root alone.
const pathTableSize = 10

// writePathTables writes the root's entry in both byte orders (ECMA-119 9.4).
func (t tree) writePathTables(l, m []byte) {
	l[0], m[0] = 1, 1 // length of the name, which is one zero byte
	binary.LittleEndian.PutUint32(l[2:], uint32(t.root))
	binary.BigEndian.PutUint32(m[2:], uint32(t.root))
	binary.LittleEndian.PutUint16(l[6:], 1) // the parent of the root is the root
	binary.BigEndian.PutUint16(m[6:], 1)
}

// Names of the two entries that every directory begins with (ECMA-119 6.8.2.2), and the
// flag of a directory (9.1.6).
const (
	self          = "\x00"
	parent        = "\x01"
	flagDirectory = 2
)

// Modes of Rock Ridge: user-data may hold secrets, and whoever mounts the disk inside
// the guest should not hand them to all users there.
const (
	modeDirectory = 0o040500
	modeFile      = 0o100400
)

// writeDirectory writes the root directory. The files come sorted, and their names in
// each view keep that order, as ECMA-119 9.3 demands.
func (t tree) writeDirectory(b []byte, files []File, extents []int) {
	var selfUse, parentUse string
	if t.rockRidge {
		selfUse = ruleSharing + posix(modeDirectory, 2) + ruleRockRidge
		parentUse = posix(modeDirectory, 2)
	}
	n := copy(b, record(t.root, sectorSize, flagDirectory, self, selfUse))
	n += copy(b[n:], record(t.root, sectorSize, flagDirectory, parent, parentUse))
	for i, f := range files {
		use := ""
		if t.rockRidge {
			use = posix(modeFile, 1) + posixName(f.Name)
		}
		n += copy(b[n:], record(extents[i], len(f.Data), 0, t.name(f.Name), use))
	}
}

// record is one directory record (ECMA-119 9.1) with its system use area.
func record(extent, size int, flags byte, name, systemUse string) []byte {
	used := 33 + len(name)
	used += used & 1 // the system use area and the next record begin at an even offset
	length := used + len(systemUse)
	b := make([]byte, length+length&1)
	b[0] = byte(len(b))
	both32(b[2:], extent)
	both32(b[10:], size)
	copy(b[18:25], recordTime)
	b[25] = flags
	both16(b[28:], 1) // number of the volume
	b[32] = byte(len(name))
	copy(b[33:], name)
	copy(b[used:], systemUse)
	return b
}

// All times in the image are the same moment, 2000-01-01 00:00:00 UTC, in the two
// notations of ECMA-119 (8.4.26.1, 9.1.5). blkid makes the volume's UUID of it.
const (
	volumeTime = "2000010100000000\x00"
	noTime     = "0000000000000000\x00"
	recordTime = "\x64\x01\x01\x00\x00\x00\x00"
)

// System use entries (IEEE P1281): SP says that such entries follow from the first
// byte on, ER names the rules they follow. The identifier is Rock Ridge 1.09's, the one
// that every reader knows.
const (
	ruleSharing   = "SP\x07\x01\xbe\xef\x00"
	ruleRockRidge = "ER\x12\x01\x0a\x00\x00\x01RRIP_1991A"
)

// posix is Rock Ridge's PX entry; owner and group are root.
func posix(mode, links int) string {
	b := make([]byte, 36)
	copy(b, "PX\x24\x01")
	both32(b[4:], mode)
	both32(b[12:], links)
	return string(b)
}

// posixName is Rock Ridge's NM entry: the name as the guest sees it.
func posixName(name string) string {
	return "NM" + string([]byte{byte(5 + len(name)), 1, 0}) + name
}

// shortName is the name for readers that know neither extension (ECMA-119 level 1).
func shortName(name string) string {
	name = strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	return name[:min(8, len(name))] + ".;1"
}

func ascii(s string) string { return s }

// ucs2 encodes for Joliet: two bytes a character, big-endian.
func ucs2(s string) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.BigEndian.AppendUint16(b, u)
	}
	return string(b)
}

// both16 and both32 write a number in both byte orders, one after the other.
func both16(b []byte, n int) {
	binary.LittleEndian.PutUint16(b, uint16(n))
	binary.BigEndian.PutUint16(b[2:], uint16(n))
}

func both32(b []byte, n int) {
	binary.LittleEndian.PutUint32(b, uint32(n))
	binary.BigEndian.PutUint32(b[4:], uint32(n))
}
