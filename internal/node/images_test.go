package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// disk makes an image of n sectors that differs with b.
func disk(b byte, n int) ([]byte, api.DesiredImage) {
	data := slices.Repeat([]byte{0xfa, b, 0, 0xff}, n*128)
	return data, api.DesiredImage{SHA256: digest(data), Format: "raw", SizeBytes: int64(len(data)), VirtualSize: int64(len(data))}
}

// testCache is a cache whose server sends what answers holds, one after another,
// and the last for ever.
func testCache(t *testing.T, answers ...[]byte) (*imageCache, string, *atomic.Int32) {
	root := t.TempDir()
	dir := filepath.Join(root, "images")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var fetches atomic.Int32
	c := newImageCache(dir, func(_ context.Context, _ string, to io.Writer) error {
		n := int(fetches.Add(1))
		_, err := to.Write(answers[min(n, len(answers))-1])
		return err
	}, func() (int64, int64, error) { return 1 << 40, 0, nil }, slog.New(slog.DiscardHandler))
	return c, root, &fetches
}

func cached(t *testing.T, c *imageCache) []string {
	var names []string
	for _, e := range c.entries() {
		names = append(names, e.Name())
	}
	return names
}

// lesson 31
func TestImageIsFetchedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data, img := disk(1, 8)
		c, root, fetches := testCache(t)
		gate := make(chan struct{})
		c.fetch = func(_ context.Context, _ string, to io.Writer) error {
			fetches.Add(1)
			<-gate
			_, err := to.Write(data)
			return err
		}
		var all sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} {
			all.Go(func() {
				if err := c.link(t.Context(), img, filepath.Join(root, name)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(gate)
		all.Wait()
		if err := c.link(t.Context(), img, filepath.Join(root, "d")); err != nil {
			t.Error(err)
		}
		if n := fetches.Load(); n != 1 {
			t.Errorf("%d fetches", n)
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			if got, err := os.ReadFile(filepath.Join(root, name)); string(got) != string(data) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
		}
	})
}

// The download goes on while one of those that wait is left, and no longer.
func TestFetchEndsWithItsLastWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data, img := disk(1, 8)
		c, root, _ := testCache(t)
		var ended atomic.Bool
		gate := make(chan struct{})
		c.fetch = func(ctx context.Context, _ string, to io.Writer) error {
			select {
			case <-ctx.Done():
				ended.Store(true)
				return ctx.Err()
			case <-gate:
				_, err := to.Write(data)
				return err
			}
		}
		wait := func() (cancel func(), result chan error) {
			ctx, stop := context.WithCancel(t.Context())
			result = make(chan error, 1)
			go func() { result <- c.link(ctx, img, filepath.Join(root, "x")) }()
			synctest.Wait()
			return stop, result
		}
		stop1, r1 := wait()
		stop2, r2 := wait()
		stop1()
		if err := <-r1; !errors.Is(err, context.Canceled) || ended.Load() {
			t.Fatalf("%v, ended %v", err, ended.Load())
		}
		stop2()
		<-r2
		synctest.Wait()
		if !ended.Load() {
			t.Error("a download that nobody waits for goes on")
		}
		_, r3 := wait()
		close(gate)
		if err := <-r3; err != nil {
			t.Errorf("a later launch: %v", err)
		}
		if names := cached(t, c); len(names) != 1 {
			t.Errorf("cache %v", names)
		}
	})
}

// lesson 31
func TestDamagedImages(t *testing.T) {
	data, img := disk(1, 8)
	other, _ := disk(2, 8)
	text := []byte(strings.Repeat("<html>", 512))
	textImg := api.DesiredImage{SHA256: digest(text), Format: "raw", SizeBytes: int64(len(text))}
	asQcow2 := img
	asQcow2.Format = "qcow2"
	tests := []struct {
		name     string
		img      api.DesiredImage
		answers  [][]byte
		fetches  int32
		hopeless bool
	}{
		{"good", img, [][]byte{data}, 1, false},
		{"damaged once", img, [][]byte{other, data}, 2, false},
		{"cut off once", img, [][]byte{data[:100], data}, 2, false},
		{"too long once", img, [][]byte{append(slices.Clone(data), 1), data}, 2, false},
		{"damaged twice", img, [][]byte{other}, 2, true},
		{"another format", asQcow2, [][]byte{data}, 1, true},
		{"no disk", textImg, [][]byte{text}, 1, true},
		{"a digest that is none", api.DesiredImage{SHA256: "../../etc/passwd", SizeBytes: 1}, [][]byte{data}, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, root, fetches := testCache(t, tt.answers...)
			err := c.link(t.Context(), tt.img, filepath.Join(root, "x"))
			if (err != nil) != tt.hopeless || tt.hopeless && !hopeless(err) {
				t.Errorf("error %v", err)
			}
			if n := fetches.Load(); n != tt.fetches {
				t.Errorf("%d fetches, want %d", n, tt.fetches)
			}
			for _, name := range cached(t, c) {
				if got, _ := os.ReadFile(filepath.Join(c.dir, name)); digest(got) != name {
					t.Errorf("%s is in the cache", name)
				}
			}
		})
	}
}

// A cached file that was cut off is fetched again.
func TestTruncatedCacheHeals(t *testing.T) {
	data, img := disk(1, 8)
	c, root, fetches := testCache(t, data)
	if err := os.WriteFile(filepath.Join(c.dir, img.SHA256), data[:512], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.link(t.Context(), img, filepath.Join(root, "x")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(filepath.Join(root, "x")); string(got) != string(data) || fetches.Load() != 1 {
		t.Errorf("%d bytes after %d fetches", len(got), fetches.Load())
	}
}

// contract: U-11 (what a root volume stands on is never evicted), lesson 31
func TestEviction(t *testing.T) {
	c, root, _ := testCache(t)
	content := map[string][]byte{}
	c.fetch = func(_ context.Context, digest string, to io.Writer) error {
		_, err := to.Write(content[digest])
		return err
	}
	const capacity = 4 * 8 * 512
	c.space = func() (int64, int64, error) { // the disk holds four images
		used := int64(0)
		for _, e := range c.entries() {
			if info, err := e.Info(); err == nil {
				used += info.Size()
			}
		}
		return capacity - used, 0, nil
	}
	var imgs []api.DesiredImage
	load := func(b byte) error {
		data, img := disk(b, 8)
		content[img.SHA256] = data
		imgs = append(imgs, img)
		return c.link(t.Context(), img, filepath.Join(root, string('a'+rune(b))))
	}
	has := func(i int) bool { return exists(filepath.Join(c.dir, imgs[i].SHA256)) }
	for b := range byte(4) {
		if err := load(b); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(b), 0) // last used in this order
		if err := os.Chtimes(filepath.Join(c.dir, imgs[b].SHA256), at, at); err != nil {
			t.Fatal(err)
		}
	}
	for _, unused := range []string{"b", "c", "d"} { // 0 stays in use
		if err := os.Remove(filepath.Join(root, unused)); err != nil {
			t.Fatal(err)
		}
	}
	if err := load(4); err != nil {
		t.Fatal(err)
	}
	if !has(0) || has(1) || !has(2) || !has(3) {
		t.Errorf("left: %v %v %v %v, want only the longest unused to go", has(0), has(1), has(2), has(3))
	}
	// Everything in use: the next waits, and the finding says so.
	for b := byte(5); b < 7; b++ {
		if err := load(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := load(7); !errors.Is(err, errNoRoom) || hopeless(err) || !c.needsRoom() {
		t.Errorf("error %v, needs room %v", err, c.needsRoom())
	}
	if err := os.Remove(filepath.Join(root, "f")); err != nil {
		t.Fatal(err)
	}
	if err := c.link(t.Context(), imgs[7], filepath.Join(root, "h")); err != nil || c.needsRoom() {
		t.Errorf("error %v, needs room %v", err, c.needsRoom())
	}
}

// A launch on a full disk waits, says so, and goes on when there is room.
func TestFullDisk(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.free.Store(100)
		e.create(idA, "x")
		e.until(t, "said so", 10*time.Second, func() bool {
			return strings.Contains(e.last(idA).Message, errNoRoom.Error()) &&
				slices.ContainsFunc(e.lastSync().Findings, func(f api.Finding) bool { return f.Code == findingLowDisk })
		})
		<-time.After(5 * time.Minute)
		if e.state(idA) != compute.StateCreating {
			t.Fatalf("state %s", e.state(idA))
		}
		e.free.Store(plenty)
		e.reaches(t, idA, compute.StateRunning, time.Minute)
	})
}

// A VM that a full disk made stand still goes on when there is room, one that
// somebody paused does not. Idle images are what goes first.
func TestStarvedVMGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for _, id := range []string{idA, idB} {
			e.create(id, "x")
			e.reaches(t, id, compute.StateRunning, 10*time.Second)
		}
		idle := filepath.Join(e.vms.dir, "images", digest([]byte("idle")))
		if err := os.WriteFile(idle, []byte("idle"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := e.vms.Pause(idB, "paused by an operator"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if e.vm(idB) != hypervisor.Paused || !exists(idle) {
			t.Fatalf("VM %s, idle image there: %v", e.vm(idB), exists(idle))
		}
		e.free.Store(0)
		if err := e.vms.Start(t.Context(), idB); err != nil { // so that only A wants space
			t.Fatal(err)
		}
		if err := e.vms.Pause(idA, "no space left for disk vda"); err != nil {
			t.Fatal(err)
		}
		e.until(t, "paused", 30*time.Second, func() bool { return e.last(idA).Phase == "paused" })
		<-time.After(time.Minute)
		if e.vm(idA) != hypervisor.Paused || exists(idle) {
			t.Errorf("VM %s, idle image there: %v", e.vm(idA), exists(idle))
		}
		e.free.Store(plenty)
		e.until(t, "running", 30*time.Second, func() bool { return e.last(idA).Phase == "running" })
		if e.vms.boots(idA) != 1 {
			t.Error("it was started anew")
		}
	})
}

func TestPartialFilesOfAKilledAgentGo(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, partial+"123"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if names := cached(t, newImageCache(dir, nil, nil, slog.New(slog.DiscardHandler))); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
}

// slow sends a byte now and then, and then none.
type slow struct{ caller }

func (slow) Do(ctx context.Context, _, _ string, _, out any, _ ...api.Option) error {
	for range 3 {
		_, _ = out.(io.Writer).Write([]byte("x"))
		<-time.After(stallTimeout - time.Second)
	}
	<-ctx.Done()
	return ctx.Err()
}

// A download whose bytes stop coming ends.
func TestStalledDownload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{cfg: Config{ID: "n1"}}
		a.up = &uplink{tokenFile: os.DevNull, server: slow{}}
		began := time.Now()
		err := a.fetchImage(t.Context(), "", io.Discard)
		if err == nil || !strings.Contains(err.Error(), "no byte came") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took < 2*stallTimeout || took > 4*stallTimeout {
			t.Errorf("took %v", took)
		}
	})
}
