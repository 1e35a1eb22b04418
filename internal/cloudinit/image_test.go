package cloudinit

import (
	"bytes"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

var seedNames = []string{"meta-data", "network-config", "user-data", "vendor-data"}

// memory is a disk for go-diskfs, the reader that these tests trust because it is not ours.
type memory struct{ *bytes.Reader }

func (m memory) Stat() (fs.FileInfo, error)            { return info(m.Size()), nil }
func (memory) Close() error                            { return nil }
func (memory) Sys() (*os.File, error)                  { return nil, backend.ErrNotSuitable }
func (memory) Writable() (backend.WritableFile, error) { return nil, backend.ErrIncorrectOpenMode }
func (memory) Path() string                            { return "" }

type info int64

func (info) Name() string       { return "seed" }
func (i info) Size() int64      { return int64(i) }
func (info) Mode() fs.FileMode  { return 0o400 }
func (info) ModTime() time.Time { return time.Time{} }
func (info) IsDir() bool        { return false }
func (info) Sys() any           { return nil }

// readImage returns the files of an image as go-diskfs sees them.
func readImage(t testing.TB, image []byte) map[string][]byte {
	t.Helper()
	disk, err := iso9660.Read(memory{bytes.NewReader(image)}, int64(len(image)), 0, sectorSize)
	if err != nil {
		t.Fatal(err)
	}
	if got := bytes.TrimRight([]byte(disk.Label()), " "); string(got) != "cidata" {
		t.Errorf("label %q, want cidata", got)
	}
	entries, err := disk.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, e := range entries {
		f, err := disk.OpenFile(e.Name(), os.O_RDONLY)
		if err != nil {
			t.Fatal(err)
		}
		if out[e.Name()], err = io.ReadAll(f); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// userDataOf makes bytes that look like nothing in particular, the same every time.
func userDataOf(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// sizes are those at the edges of a sector and of the limit.
var sizes = []int{0, 1, 2047, 2048, 2049, 65_535, 65_536}

// contract: U-01 U-03
// lesson 23
// lesson 24
func TestImageCarriesEveryByte(t *testing.T) {
	for _, size := range sizes {
		s := Seed{InstanceID: "i-1", UserData: userDataOf(size), Interfaces: []Interface{{MAC: "52:54:00:00:00:01", Name: "ens3"}}}
		image, err := Image(s)
		if err != nil {
			t.Fatal(err)
		}
		if len(image)%sectorSize != 0 {
			t.Errorf("%d bytes of user-data: image of %d bytes is not whole sectors", size, len(image))
		}
		got := readImage(t, image)
		if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, seedNames) {
			t.Errorf("%d bytes of user-data: files %q", size, names)
		}
		for name, want := range files(t, s) {
			if !bytes.Equal(got[name], want) {
				t.Errorf("%d bytes of user-data: %s arrives changed", size, name)
			}
		}
	}
}

func TestImageIsReproducible(t *testing.T) {
	s := Seed{InstanceID: "i-1", Hostname: "web", PublicKeys: []string{"ssh-rsa A"}, UserData: userDataOf(5000)}
	a, err := Image(s)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := Image(s)
	if !bytes.Equal(a, b) {
		t.Error("two images of one seed differ")
	}
	s.UserData = userDataOf(5001)
	if c, _ := Image(s); bytes.Equal(a, c) {
		t.Error("images of different seeds are the same")
	}
}

// tool runs a reader that is not ours, or skips the test where it is not installed.
func tool(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed", name)
	}
	var complaint bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, complaint.Bytes())
	}
	return out
}

// writeImage makes a file of the image of a seed with that much user-data.
func writeImage(t testing.TB, size int) (path string, want map[string][]byte) {
	t.Helper()
	s := Seed{InstanceID: "i-1", UserData: userDataOf(size)}
	image, err := Image(s)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, files(t, s)
}

// Other programs read both trees: the names are the same, in lower case, in each.
func TestImageInOtherReaders(t *testing.T) {
	readers := map[string]func(t *testing.T, path, name string) []byte{
		"isoinfo Rock Ridge": func(t *testing.T, path, name string) []byte {
			return tool(t, "isoinfo", "-R", "-i", path, "-x", "/"+name)
		},
		"isoinfo Joliet": func(t *testing.T, path, name string) []byte {
			return tool(t, "isoinfo", "-J", "-i", path, "-x", "/"+name)
		},
		"bsdtar Rock Ridge": func(t *testing.T, path, name string) []byte {
			return tool(t, "bsdtar", "-xOf", path, "--options", "iso9660:!joliet", name)
		},
		"bsdtar Joliet": func(t *testing.T, path, name string) []byte {
			return tool(t, "bsdtar", "-xOf", path, "--options", "iso9660:!rockridge", name)
		},
		"xorriso": func(t *testing.T, path, name string) []byte {
			out := filepath.Join(t.TempDir(), name)
			tool(t, "xorriso", "-abort_on", "WARNING", "-osirrox", "on", "-indev", path, "-extract", "/"+name, out)
			b, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
	}
	for reader, read := range readers {
		t.Run(reader, func(t *testing.T) {
			for _, size := range sizes {
				path, want := writeImage(t, size)
				for _, name := range seedNames {
					if got := read(t, path, name); !bytes.Equal(got, want[name]) {
						t.Errorf("%d bytes of user-data: %s has %d bytes, want %d, the same", size, name, len(got), len(want[name]))
					}
				}
			}
		})
	}
}

// What udev, and so cloud-init, goes by is the label and the type that blkid finds.
func TestImageLabel(t *testing.T) {
	path, _ := writeImage(t, 10)
	for tag, want := range map[string]string{"LABEL": "cidata", "TYPE": "iso9660"} {
		if got := tool(t, "blkid", "-p", "-o", "value", "-s", tag, path); string(bytes.TrimSpace(got)) != want {
			t.Errorf("blkid finds %s %q, want %q", tag, got, want)
		}
	}
}

func BenchmarkImage(b *testing.B) {
	s := Seed{InstanceID: "i-1", Hostname: "web", PublicKeys: []string{"ssh-ed25519 AAAA a@b"}, UserData: userDataOf(MaxUserData)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Image(s); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkImageBesideGenisoimage makes the same seed disk both ways in one run, into
// memory each. The ratio says how many of ours fit into one of genisoimage's.
func BenchmarkImageBesideGenisoimage(b *testing.B) {
	if _, err := exec.LookPath("genisoimage"); err != nil {
		b.Skip("genisoimage is not installed")
	}
	s := Seed{InstanceID: "i-1", UserData: userDataOf(MaxUserData)}
	args := []string{"-quiet", "-V", Label, "-J", "-R"}
	dir := b.TempDir()
	for name, data := range files(b, s) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			b.Fatal(err)
		}
		args = append(args, path)
	}
	var ours, theirs time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := Image(s); err != nil {
			b.Fatal(err)
		}
		ours += time.Since(start)
		start = time.Now()
		if image, err := exec.Command("genisoimage", args...).Output(); err != nil || len(image) < MaxUserData {
			b.Fatalf("genisoimage made %d bytes: %v", len(image), err)
		}
		theirs += time.Since(start)
	}
	b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "µs/ours")
	b.ReportMetric(float64(theirs.Microseconds())/float64(b.N), "µs/genisoimage")
	b.ReportMetric(float64(theirs)/float64(ours), "ratio")
}
