package control

import (
	"io"
	"math"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// An upload leaves the database some room, and is refused before its bytes come
// where it says how many there are.
func TestRoomFor(t *testing.T) {
	dir := t.TempDir()
	if err := roomFor(dir, 0); err != nil {
		t.Skipf("this disk is full: %v", err)
	}
	if err := roomFor(dir, math.MaxInt64/2); !fault.HasCode(err, "NO_SPACE") {
		t.Errorf("4 EiB: %v", err)
	}
	if err := roomFor(dir+"/none", math.MaxInt64/2); err != nil {
		t.Errorf("a disk that cannot be asked: %v", err)
	}
	var nothing countWriter
	w := &roomy{w: &nothing, dir: dir}
	if _, err := io.CopyN(w, zeros{}, lookEvery+1); err != nil || nothing != lookEvery+1 {
		t.Errorf("%d bytes, %v", nothing, err)
	}
}

type countWriter int64

func (c *countWriter) Write(p []byte) (int, error) { *c += countWriter(len(p)); return len(p), nil }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
