package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mib   = 1 << 20
	limit = 1 << 40
)

func inspect(b []byte) (Info, error) {
	return Inspect(bytes.NewReader(b), int64(len(b)), limit)
}

// wantRefused checks the reason, and that the message helps.
func wantRefused(t *testing.T, err error, want Reason) {
	t.Helper()
	var refused *Error
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want it refused as %s", err, want)
	}
	if refused.Reason != want {
		t.Errorf("refused as %s (%s), want %s", refused.Reason, refused.Message, want)
	}
	if len(refused.Message) < 20 {
		t.Errorf("message %q", refused.Message)
	}
}

// change makes one image of another, in place.
type change func(b []byte) []byte

func put32(offset int, v uint32) change {
	return func(b []byte) []byte { binary.BigEndian.PutUint32(b[offset:], v); return b }
}

func put64(offset int, v uint64) change {
	return func(b []byte) []byte { binary.BigEndian.PutUint64(b[offset:], v); return b }
}

func put(offset int, s string) change {
	return func(b []byte) []byte { copy(b[offset:], s); return b }
}

func cut(n int) change { return func(b []byte) []byte { return b[:n] } }

func both(list ...change) change {
	return func(b []byte) []byte {
		for _, c := range list {
			b = c(b)
		}
		return b
	}
}

// Where good has its parts. One cluster is 512 bytes, so that a table of the second
// level has 64 entries and maps 32 KiB.
const (
	cluster      = 512
	atRefcounts  = 1 * cluster
	atBlock      = 2 * cluster
	atL1         = 3 * cluster
	atL2         = 4 * cluster
	atData       = 5 * cluster
	goodSize     = 7 * cluster
	goodVirtual  = 64 * 1024
	atExtensions = 112
)

// good is a small image by the book: version 3, its first cluster and a compressed one
// have data.
func good() []byte {
	b := make([]byte, goodSize)
	copy(b, qcow2Magic)
	return both(
		put32(4, 3), put32(20, 9), put64(24, goodVirtual),
		put32(36, 2), put64(40, atL1), put64(48, atRefcounts), put32(56, 1),
		put32(96, 4), put32(100, 112),
		put64(atRefcounts, atBlock),
		put64(atL1, atL2|entryCopied),
		put64(atL2, atData|entryCopied),
		put64(atL2+8, entryCompressed|(atData+cluster+7)),
	)(b)
}

// version2 has a shorter header, and its extensions begin where version 3 has features.
func version2() []byte {
	return both(put32(4, 2), put32(96, 0), put32(100, 0))(good())
}

func TestInspectAccepts(t *testing.T) {
	mbr := make([]byte, mib)
	copy(mbr[510:], "\x55\xaa")
	hybrid := both(put(446+4, "\x83"), put(volumeOffset+1, "CD001"))(bytes.Clone(mbr))
	for _, tt := range []struct {
		name  string
		image []byte
		want  Info
	}{
		{"raw, empty disk", make([]byte, mib), Info{Raw, mib}},
		{"raw, one sector", make([]byte, 512), Info{Raw, 512}},
		{"raw with an MBR", mbr, Info{Raw, mib}},
		{"raw, hybrid of disk and ISO", hybrid, Info{Raw, mib}},
		{"qcow2", good(), Info{QCOW2, goodVirtual}},
		{"qcow2 version 2", version2(), Info{QCOW2, goodVirtual}},
		{"qcow2 without data", both(put64(atL1, 0), cut(4*cluster))(good()), Info{QCOW2, goodVirtual}},
		{"qcow2 with zstd", both(put64(72, featureCompression), put(104, "\x01"))(good()), Info{QCOW2, goodVirtual}},
		{"qcow2 with the short header", put32(100, 104)(good()), Info{QCOW2, goodVirtual}},
		{"qcow2 with unknown compatible features", put64(80, 1<<40)(good()), Info{QCOW2, goodVirtual}},
		{"qcow2 with an unknown extension", both(put32(atExtensions, 0x12345678), put32(atExtensions+4, 5))(good()), Info{QCOW2, goodVirtual}},
		{"qcow2 with extensions to the last byte", both(put32(atExtensions, 1), put32(atExtensions+4, cluster-atExtensions-8))(good()), Info{QCOW2, goodVirtual}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := inspect(tt.image)
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

// lesson 31
func TestInspectRefusesQCOW2(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change change
		want   Reason
	}{
		{"backing file", both(put64(8, 400), put32(16, 11), put(400, "/etc/passwd")), BackingFile},
		{"backing file without a name", put64(8, 400), BackingFile},
		{"backing file without a place", put32(16, 11), BackingFile},
		{"format of a backing file", both(put32(atExtensions, extensionBackingFormat), put32(atExtensions+4, 3), put(atExtensions+8, "raw")), BackingFile},
		{"external data, by its bit", put64(72, featureExternalData), ExternalData},
		{"external data, by its name", both(put32(atExtensions, extensionExternalData), put32(atExtensions+4, 11), put(atExtensions+8, "/etc/shadow")), ExternalData},
		{"external data behind another extension", both(put32(atExtensions, 1), put32(atExtensions+4, 1), put32(atExtensions+16, extensionExternalData)), ExternalData},
		{"AES", put32(32, 1), Encrypted},
		{"LUKS", put32(32, 2), Encrypted},
		{"LUKS, by its extension", put32(atExtensions, extensionEncryption), Encrypted},
		{"corrupt", put64(72, featureCorrupt), Corrupt},
		{"dirty", put64(72, featureDirty), Corrupt},
		{"unknown feature", put64(72, 1<<5), UnknownFeatures},
		{"unknown feature, last bit", put64(72, 1<<63), UnknownFeatures},
		{"version 4", put32(4, 4), UnknownFeatures},
		{"version 0", put32(4, 0), UnknownFeatures},
		{"snapshots", put32(60, 1), Snapshots},
		{"compression without its bit", put(104, "\x01"), Corrupt},
		{"compression bit alone", put64(72, featureCompression), Corrupt},
		{"compression bit without its field", both(put64(72, featureCompression), put32(100, 104)), Corrupt},
		{"unknown compression", both(put64(72, featureCompression), put(104, "\x02")), UnknownFeatures},
		{"clusters too small", put32(20, 8), Corrupt},
		{"clusters too large", put32(20, 22), Corrupt},
		{"clusters absurd", put32(20, 0xffffffff), Corrupt},
		{"extended entries in small clusters", put64(72, featureExtendedL2), Corrupt},
		{"refcounts too wide", put32(96, 7), Corrupt},
		{"header too short", put32(100, 96), Corrupt},
		{"header not in eights", put32(100, 109), Corrupt},
		{"header longer than a cluster", put32(100, cluster+8), Corrupt},
		{"header without end", put32(100, 0xfffffff8), Corrupt},
		{"extension too long", both(put32(atExtensions, 1), put32(atExtensions+4, cluster)), Corrupt},
		{"extension without end", both(put32(atExtensions, 1), put32(atExtensions+4, 0xffffffff)), Corrupt},
		{"no disk", put64(24, 0), BadSize},
		{"disk not in sectors", put64(24, goodVirtual-1), BadSize},
		{"disk beyond the limit", put64(24, limit+512), TooLarge},
		{"disk beyond everything", put64(24, 1<<63+512), TooLarge},
		{"refcount table missing", put64(48, 0), Corrupt},
		{"refcount table askew", put64(48, atRefcounts+8), Corrupt},
		{"refcount table outside", put64(48, goodSize), Truncated},
		{"refcount table far outside", put64(48, 1<<63), Truncated},
		{"refcount table empty", put32(56, 0), Corrupt},
		{"refcount table too large", put32(56, 0xffffffff), Corrupt},
		{"refcount table longer than the file", put32(56, 16), Truncated},
		{"refcount block outside", put64(atRefcounts, goodSize), Truncated},
		{"refcount block askew", put64(atRefcounts, atBlock+1), Corrupt},
		{"mapping missing", put64(40, 0), Corrupt},
		{"mapping askew", put64(40, atL1+1), Corrupt},
		{"mapping outside", put64(40, goodSize), Truncated},
		{"mapping far outside", put64(40, 1<<63), Truncated},
		{"mapping too short for the disk", put32(36, 1), Corrupt},
		{"mapping absurdly long", put32(36, 0xffffffff), Corrupt},
		{"mapping longer than the file", put32(36, 4096), Truncated},
		{"entry with unknown bits", put64(atL1, atL2|1<<60), Corrupt},
		{"second table outside", put64(atL1, goodSize), Truncated},
		{"data outside", put64(atL2, goodSize|entryCopied), Truncated},
		{"data askew", both(put32(20, 10), put64(atL2, atData)), Corrupt},
		{"data far outside", put64(atL2, entryOffset), Truncated},
		{"compressed data outside", put64(atL2, entryCompressed|goodSize), Truncated},
		{"cut in the data", cut(goodSize - cluster), Truncated},
		{"cut in the tables", cut(atL2), Truncated},
		{"cut in the header", cut(headerLengthV3 - 1), Truncated},
		{"cut in the first header", cut(headerLengthV2 - 1), Truncated},
		{"magic alone", cut(4), Truncated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := inspect(tt.change(good()))
			wantRefused(t, err, tt.want)
		})
	}
}

// Version 2 has no features but the same extensions, right behind its shorter header.
func TestInspectRefusesVersion2(t *testing.T) {
	for name, c := range map[string]change{
		"backing format": both(put32(72, extensionBackingFormat), put32(76, 0)),
		"backing file":   put64(8, 72),
	} {
		_, err := inspect(c(version2()))
		t.Run(name, func(t *testing.T) { wantRefused(t, err, BackingFile) })
	}
}

// Tables that point at one another many times over must not multiply the reading.
func TestInspectReadsNoMoreThanTheFile(t *testing.T) {
	const entries = 4096
	b := append(good(), make([]byte, entries*8)...)
	c := both(put32(36, entries), put64(40, goodSize), put64(24, 64*512*entries))
	for i := range entries {
		c = both(c, put64(goodSize+i*8, atL2))
	}
	counter := &countingReader{r: bytes.NewReader(c(b))}
	_, err := Inspect(counter, int64(len(b)), limit)
	wantRefused(t, err, Corrupt)
	if counter.n > 2*len(b) {
		t.Errorf("read %d bytes of a file of %d", counter.n, len(b))
	}
}

type countingReader struct {
	r io.ReaderAt
	n int
}

func (c *countingReader) ReadAt(b []byte, offset int64) (int, error) {
	n, err := c.r.ReadAt(b, offset)
	c.n += n
	return n, err
}

// lesson 31
func TestInspectRefusesOtherFormats(t *testing.T) {
	const size = mib
	foot := size - 512
	for _, tt := range []struct {
		name   string
		change change
		want   Reason
		says   string
	}{
		{"VMDK", put(0, "KDMV"), WrongFormat, "qemu-img convert -f vmdk -O qcow2"},
		{"VMDK of old ESX", put(0, "COWD"), WrongFormat, "-f vmdk"},
		{"VMDK description", put(0, "# Disk DescriptorFile\nversion=1\n"), WrongFormat, "-f vmdk"},
		{"VDI", both(put(0, "<<< Oracle VM VirtualBox Disk Image >>>\n"), put(64, "\x7f\x10\xda\xbe")), WrongFormat, "-f vdi"},
		{"VHD, dynamic", put(0, "conectix"), WrongFormat, "-f vpc"},
		{"VHD, fixed", put(foot, "conectix"), WrongFormat, "-f vpc"},
		{"VHD, old", put(foot+1, "conectix"), WrongFormat, "-f vpc"},
		{"VHDX", put(0, "vhdxfile"), WrongFormat, "-f vhdx"},
		{"QED", put(0, "QED\x00"), WrongFormat, "-f qed"},
		{"qcow", put(0, "QFI\xfb\x00\x00\x00\x01"), WrongFormat, "-f qcow "},
		{"Parallels", put(0, "WithoutFreeSpace"), WrongFormat, "-f parallels"},
		{"Parallels, large", put(0, "WithouFreSpacExt"), WrongFormat, "-f parallels"},
		{"DMG", put(foot, "koly"), WrongFormat, "-f dmg"},
		{"LUKS", put(0, "LUKS\xba\xbe\x00\x02"), Encrypted, "LUKS"},
		{"ISO", put(volumeOffset, "\x01CD001\x01"), WrongFormat, "CD or DVD"},
		{"UDF", put(volumeOffset, "\x00BEA01\x01"), WrongFormat, "CD or DVD"},
		{"ISO that boots only as a CD", both(put(volumeOffset, "\x01CD001\x01"), put(510, "\x55\xaa")), WrongFormat, "CD or DVD"},
		{"gzip", put(0, "\x1f\x8b\x08"), Compressed, "gunzip"},
		{"xz", put(0, "\xfd7zXZ\x00"), Compressed, "unxz"},
		{"zstd", put(0, "\x28\xb5\x2f\xfd"), Compressed, "unzstd"},
		{"bzip2", put(0, "BZh91AY&SY"), Compressed, "bunzip2"},
		{"lz4", put(0, "\x04\x22\x4d\x18"), Compressed, "unlz4"},
		{"zip", put(0, "PK\x03\x04"), Compressed, "unzip"},
		{"OVA", put(257, "ustar\x00"), Compressed, "tar -xf"},
		{"error page", put(0, "<!DOCTYPE html><html>"+strings.Repeat(" ", 600)), WrongFormat, "error page"},
		{"text with a character on the edge", put(0, strings.Repeat("a", 511)+"ß"), WrongFormat, "text"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := inspect(tt.change(make([]byte, size)))
			wantRefused(t, err, tt.want)
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("the message does not say %q: %v", tt.says, err)
			}
		})
	}
}

func TestInspectRefusesRaw(t *testing.T) {
	for _, tt := range []struct {
		name  string
		size  int64
		limit int64
		want  Reason
	}{
		{"empty", 0, limit, Empty},
		{"negative", -1, limit, Empty},
		{"one byte", 1, limit, Truncated},
		{"half a sector", 768, limit, Truncated},
		{"beyond the limit", 1024, 1023, TooLarge},
		{"no limit given", 1024, 0, TooLarge},
		{"limit below zero", 1024, -1, TooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Inspect(bytes.NewReader(make([]byte, max(0, tt.size))), tt.size, tt.limit)
			wantRefused(t, err, tt.want)
		})
	}
	if _, err := Inspect(bytes.NewReader([]byte("404 page not found\n")), 19, limit); err == nil || !strings.Contains(err.Error(), "text") {
		t.Errorf("a short error page: %v", err)
	}
}

// A reader that fails is not a bad image.
func TestInspectPassesReadErrors(t *testing.T) {
	broken := errors.New("disk on fire")
	for name, r := range map[string]io.ReaderAt{"broken": failing{broken}, "short": bytes.NewReader(good()[:100])} {
		_, err := Inspect(r, goodSize, limit)
		var refused *Error
		if err == nil || errors.As(err, &refused) {
			t.Errorf("%s reader: %v", name, err)
		}
		if name == "broken" && !errors.Is(err, broken) {
			t.Errorf("the cause is lost: %v", err)
		}
	}
}

type failing struct{ err error }

func (f failing) ReadAt([]byte, int64) (int, error) { return 0, f.err }

// qemuImg runs it in dir, or skips the test where it is not installed.
func qemuImg(t *testing.T, dir string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img is not installed")
	}
	cmd := exec.Command("qemu-img", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("qemu-img %q: %v: %s", args, err, out)
	}
}

// What qemu-img writes, in all the ways a person may ask for it.
func TestInspectQemuImg(t *testing.T) {
	dir := t.TempDir()
	disk := make([]byte, 3*mib+512) // the last cluster is short
	for i := range disk {
		if i%(256<<10) < 40_000 {
			disk[i] = byte(i*7 + i>>9)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "disk.raw"), disk, 0o600); err != nil {
		t.Fatal(err)
	}
	convert := func(args ...string) []string {
		return append(append([]string{"convert", "-f", "raw"}, args...), "disk.raw", "out")
	}
	for _, tt := range []struct {
		name string
		args []string
		want Reason // "" for accepted as qcow2
	}{
		{"version 3", convert("-O", "qcow2"), ""},
		{"version 2", convert("-O", "qcow2", "-o", "compat=0.10"), ""},
		{"compressed", convert("-O", "qcow2", "-c"), ""},
		{"compressed with zstd", convert("-O", "qcow2", "-c", "-o", "compression_type=zstd"), ""},
		{"small clusters", convert("-O", "qcow2", "-o", "cluster_size=512"), ""},
		{"small clusters, compressed", convert("-O", "qcow2", "-c", "-o", "cluster_size=512"), ""},
		{"large clusters", convert("-O", "qcow2", "-o", "cluster_size=2M"), ""},
		{"extended entries", convert("-O", "qcow2", "-o", "extended_l2=on"), ""},
		{"extended entries, compressed", convert("-O", "qcow2", "-c", "-o", "extended_l2=on"), ""},
		{"lazy refcounts", convert("-O", "qcow2", "-o", "lazy_refcounts=on"), ""},
		{"one-bit refcounts", convert("-O", "qcow2", "-o", "refcount_bits=1"), ""},
		{"no data", []string{"create", "-f", "qcow2", "out", "1G"}, ""},
		{"tables allocated", []string{"create", "-f", "qcow2", "-o", "preallocation=metadata", "out", "100M"}, ""},
		{"all allocated", []string{"create", "-f", "qcow2", "-o", "preallocation=falloc", "out", "8M"}, ""},
		{"backing file", []string{"create", "-f", "qcow2", "-b", "disk.raw", "-F", "raw", "out"}, BackingFile},
		{"external data", convert("-O", "qcow2", "-o", "data_file=data.raw"), ExternalData},
		{"encrypted", []string{"create", "-f", "qcow2", "--object", "secret,id=s,data=abc", "-o", "encrypt.format=aes,encrypt.key-secret=s", "out", "1M"}, Encrypted},
		{"VMDK", convert("-O", "vmdk"), WrongFormat},
		{"VMDK for streams", convert("-O", "vmdk", "-o", "subformat=streamOptimized"), WrongFormat},
		{"VDI", convert("-O", "vdi"), WrongFormat},
		{"VHD", convert("-O", "vpc"), WrongFormat},
		{"VHD, fixed", convert("-O", "vpc", "-o", "subformat=fixed"), WrongFormat},
		{"VHDX", convert("-O", "vhdx"), WrongFormat},
		{"QED", convert("-O", "qed"), WrongFormat},
		{"qcow", convert("-O", "qcow"), WrongFormat},
		{"Parallels", convert("-O", "parallels"), WrongFormat},
	} {
		t.Run(tt.name, func(t *testing.T) {
			qemuImg(t, dir, tt.args...)
			image, err := os.ReadFile(filepath.Join(dir, "out"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := inspect(image)
			if tt.want != "" {
				wantRefused(t, err, tt.want)
				return
			}
			if err != nil || got.Format != QCOW2 || got.VirtualSize == 0 {
				t.Fatalf("got %+v, %v", got, err)
			}
			for _, n := range []int{len(image) / 2, 100_000} {
				if _, err := inspect(image[:min(n, len(image)-512)]); err == nil && tt.args[0] == "convert" {
					t.Errorf("accepted when cut off after %d of %d bytes", n, len(image))
				}
			}
		})
	}
	t.Run("snapshot", func(t *testing.T) {
		qemuImg(t, dir, convert("-O", "qcow2")...)
		qemuImg(t, dir, "snapshot", "-c", "before", "out")
		image, err := os.ReadFile(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = inspect(image)
		wantRefused(t, err, Snapshots)
	})
}

func FuzzInspect(f *testing.F) {
	f.Add(good())
	f.Add(version2())
	f.Add(put64(72, featureExternalData)(good()))
	f.Add(make([]byte, 1024))
	f.Add([]byte("<html>"))
	f.Fuzz(func(t *testing.T, b []byte) {
		counter := &countingReader{r: bytes.NewReader(b)}
		info, err := Inspect(counter, int64(len(b)), limit)
		if counter.n > 4*len(b)+4096 {
			t.Errorf("read %d bytes of %d", counter.n, len(b))
		}
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) {
				t.Errorf("not a refusal: %v", err)
			}
			return
		}
		if info.VirtualSize <= 0 || info.VirtualSize > limit || info.VirtualSize%512 != 0 {
			t.Errorf("accepted %+v", info)
		}
		if info.Format == QCOW2 && (binary.BigEndian.Uint64(b[8:]) != 0 || binary.BigEndian.Uint32(b[32:]) != 0) {
			t.Error("accepted a backing file or encryption")
		}
		if info.Format == Raw && info.VirtualSize != int64(len(b)) {
			t.Errorf("a raw disk of %d bytes in %d", info.VirtualSize, len(b))
		}
	})
}
