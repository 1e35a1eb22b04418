package runner

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// On a disk that is full to the last byte the runner's log still has its say, from
// the reserve.
//
// lesson 40
func TestLogOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	r := &reserve{path: filepath.Join(dir, fileReserve)}
	if err := r.keep(); err != nil {
		t.Fatal(err)
	}
	if d, err := diskOf(dir); err != nil || d.free > 16<<20-reserveBytes {
		t.Errorf("with the reserve %+v, %v", d, err)
	}
	f, err := os.Create(filepath.Join(dir, "workspace"))
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	l := &logFile{path: filepath.Join(dir, fileLog), reserve: r}
	defer l.Close()
	slog.New(slog.NewTextHandler(l, nil)).Warn("the disk is full", "pad", strings.Repeat("x", 8192))
	if text := readFile(t, l.path); !strings.Contains(text, "the disk is full") {
		t.Errorf("log: %d bytes", len(text))
	}
	if err := r.keep(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the reserve was taken again on a full disk: %v", err)
	}
	_ = f.Close()
	if err := errors.Join(os.Remove(f.Name()), r.keep()); err != nil {
		t.Error(err)
	}
}

func TestLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	l := &logFile{path: filepath.Join(dir, fileLog), reserve: &reserve{path: filepath.Join(dir, fileReserve)}}
	line := []byte(strings.Repeat("x", 99) + "\n")
	for range 5 * logBytes / len(line) {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil || info.Size() > logBytes || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %d bytes, %v, %v", f.Name(), info.Size(), info.Mode(), err)
		}
	}
}

func TestWorkspaceUsage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w, err := makeWorkspace(t.TempDir(), &Job{ID: "a", Epoch: 1}, firstUID)
	if err != nil {
		t.Fatal(err)
	}
	before, err := w.usage()
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(filepath.Join(w.home(), "big"), make([]byte, 1<<20), 0o600), os.Symlink("/usr", filepath.Join(w.tmp(), "usr")))
	after, err2 := w.usage()
	if err != nil || err2 != nil || after-before < 1<<20 || after-before > 1<<20+64<<10 {
		t.Errorf("a MiB and a link out took %d bytes; %v, %v", after-before, err, err2)
	}
}

// Where the machine has a KVM that works, a guest of one instruction shows it.
func TestKVM(t *testing.T) {
	err := tryKVM(context.Background())
	_, there := os.Stat("/dev/kvm")
	if there != nil && (err == nil || !strings.Contains(err.Error(), "there is no /dev/kvm")) {
		t.Errorf("without /dev/kvm: %v", err)
	}
	t.Logf("KVM here: %v", err)
}

func TestHostProbes(t *testing.T) {
	if n, err := totalMemory(); err != nil || n < 64<<20 {
		t.Errorf("memory %d, %v", n, err)
	}
	if d, err := diskOf(t.TempDir()); err != nil || d.free <= 0 {
		t.Errorf("disk %+v, %v", d, err)
	}
}
