package control

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// What a crashed server left half uploaded is gone with the next start, and an upload
// that comes while it starts is not taken for such.
func TestUploadsWhileStarting(t *testing.T) {
	dir := t.TempDir()
	images := filepath.Join(dir, "images")
	half := func(name string) string {
		t.Helper()
		file := filepath.Join(images, uploadPrefix+name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	if err := os.MkdirAll(images, 0o700); err != nil {
		t.Fatal(err)
	}
	left := half("left")
	c, err := New(Options{DB: storetest.Open(t, storetest.Options(t, "sqlite")), Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	comes := half("comes")
	if err := c.sweepImages(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what was left: %v", err)
	}
	if _, err := os.Stat(comes); err != nil {
		t.Errorf("what comes: %v", err)
	}
}
