package control

import (
	"os"
	"path/filepath"
	"testing"
)

// A transaction that is run again finds the file that its first run put in place.
func TestReceivedKeptTwice(t *testing.T) {
	dir := t.TempDir()
	r := &received{path: filepath.Join(dir, uploadPrefix+"1")}
	if err := os.WriteFile(r.path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "sha")
	for range 2 {
		if err := r.keep(to); err != nil {
			t.Fatal(err)
		}
	}
	r.discard()
	if _, err := os.Stat(to); err != nil {
		t.Error(err)
	}
	if err := os.Remove(to); err != nil {
		t.Fatal(err)
	}
	if r.keep(to) == nil {
		t.Error("a file that was swept meanwhile counts as kept")
	}
}
