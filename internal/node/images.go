package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/diskimage"
)

// imageCache keeps images by their sha256, each fetched once however many
// instances ask (lesson 31). A file under its digest is whole and checked.
// Those that no instance links are evicted when space is short, the longest
// unused first.
type imageCache struct {
	dir   string
	fetch func(ctx context.Context, digest string, to io.Writer) error
	space func() (free, reserve int64, err error)
	log   *slog.Logger

	flying  sync.WaitGroup
	mu      sync.Mutex
	flights map[string]*flight
	short   map[string]bool // digests that found no room
}

// flight is one download; it ends when nobody waits for it any more.
type flight struct {
	digest  string
	done    chan struct{}
	err     error // read after done
	waiting int
	cancel  context.CancelFunc
}

func newImageCache(dir string, fetch func(context.Context, string, io.Writer) error, space func() (int64, int64, error), log *slog.Logger) *imageCache {
	c := &imageCache{dir: dir, fetch: fetch, space: space, log: log, flights: map[string]*flight{}, short: map[string]bool{}}
	for _, e := range c.entries() {
		if strings.HasPrefix(e.Name(), partial) { // of an agent that was killed
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return c
}

const partial = ".partial-"

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// link makes path a hard link to the image, fetching it where it is not here.
// The link is what keeps it from being evicted.
func (c *imageCache) link(ctx context.Context, img api.DesiredImage, path string) error {
	if !digestForm.MatchString(img.SHA256) || img.SizeBytes <= 0 {
		return hopelessf("the server names an image that cannot be (sha256 %q, %d bytes)", img.SHA256, img.SizeBytes)
	}
	for {
		f, err := c.take(img, path)
		if f == nil {
			return err
		}
		select {
		case <-f.done:
			if f.err != nil {
				return f.err
			}
		case <-ctx.Done():
			c.leave(f)
			return ctx.Err()
		}
	}
}

// take links an image that is here, or returns the flight that brings it.
func (c *imageCache) take(img api.DesiredImage, path string) (*flight, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	file := filepath.Join(c.dir, img.SHA256)
	if info, err := os.Stat(file); err == nil && info.Size() == img.SizeBytes {
		return nil, c.use(file, path)
	} else if err == nil {
		c.log.Warn("a cached image has another size than it should; it is fetched again", "sha256", img.SHA256, "bytes", info.Size(), "want", img.SizeBytes)
		if err := os.Remove(file); err != nil {
			return nil, err
		}
	}
	f := c.flights[img.SHA256]
	if f == nil {
		ctx, cancel := context.WithCancel(context.Background())
		f = &flight{digest: img.SHA256, done: make(chan struct{}), cancel: cancel}
		c.flights[img.SHA256] = f
		c.flying.Go(func() { c.fly(ctx, img, f) })
	}
	f.waiting++
	return f, nil
}

func (c *imageCache) use(file, path string) error {
	now := time.Now()
	_ = os.Chtimes(file, now, now) // last use; a failure costs only the order of eviction
	if err := os.Link(file, path); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("images and instances must be on one file system: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

func (c *imageCache) leave(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		f.cancel()
		c.land(f)
	}
}

// land takes a flight off the list; c.mu is held.
func (c *imageCache) land(f *flight) {
	if c.flights[f.digest] == f {
		delete(c.flights, f.digest)
	}
}

func (c *imageCache) fly(ctx context.Context, img api.DesiredImage, f *flight) {
	defer f.cancel()
	began := time.Now()
	err := c.bring(ctx, img)
	if err == nil {
		c.log.Info("image fetched", "sha256", img.SHA256, "bytes", img.SizeBytes, "took", time.Since(began).Round(time.Millisecond))
	}
	c.mu.Lock()
	c.land(f)
	delete(c.short, img.SHA256)
	if errors.Is(err, errNoRoom) {
		c.short[img.SHA256] = true
	}
	c.mu.Unlock()
	f.err = err
	close(f.done)
}

var (
	errDigest = errors.New("the bytes are not those of the image's sha256")
	errNoRoom = errors.New("no room on the disk")
)

// bring fetches an image; damaged bytes are fetched once more.
func (c *imageCache) bring(ctx context.Context, img api.DesiredImage) error {
	err := c.download(ctx, img)
	if errors.Is(err, errDigest) {
		c.log.Warn("an image arrived damaged; it is fetched again", "sha256", img.SHA256)
		err = c.download(ctx, img)
	}
	if errors.Is(err, errDigest) {
		return hopelessf("image %s arrived damaged twice: import it again at the server", img.SHA256)
	}
	return err
}

// download streams an image into a partial file, checks it, and gives it its
// name last.
func (c *imageCache) download(ctx context.Context, img api.DesiredImage) error {
	f, err := c.reserve(img)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	sum := sha256.New()
	err = c.fetch(ctx, img.SHA256, &bounded{to: io.MultiWriter(f, sum), left: img.SizeBytes})
	if errors.Is(err, errTooMuch) {
		return errDigest
	}
	if err != nil {
		return fmt.Errorf("image %s could not be fetched: %w", img.SHA256, err)
	}
	if err := check(f, sum, img); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return publish(f.Name(), filepath.Join(c.dir, img.SHA256))
}

// check compares what came with what was promised, the header included: its
// format decides how QEMU reads it.
func check(f *os.File, sum hash.Hash, img api.DesiredImage) error {
	if hex.EncodeToString(sum.Sum(nil)) != img.SHA256 {
		return errDigest
	}
	info, err := diskimage.Inspect(f, img.SizeBytes, compute.MaxImageVirtualSize)
	if refused, ok := errors.AsType[*diskimage.Error](err); ok {
		return hopelessf("image %s is refused: %v", img.SHA256, refused)
	}
	if err != nil {
		return err
	}
	if string(info.Format) != img.Format {
		return hopelessf("image %s is %s and not %s", img.SHA256, info.Format, img.Format)
	}
	return nil
}

// reserve makes room for an image and takes it at once, so that downloads side
// by side do not count on the same free space.
func (c *imageCache) reserve(img api.DesiredImage) (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.makeRoom(img.SizeBytes); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(c.dir, partial)
	if err != nil {
		return nil, err
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, img.SizeBytes)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		f.Close()
		os.Remove(f.Name())
		return nil, fmt.Errorf("%w for an image of %s (%w)", errNoRoom, size(img.SizeBytes), err)
	}
	return f, nil
}

// makeRoom evicts until need and the reserve are free. Running VMs' growth and
// everybody else's files count by themselves: what counts is what is free.
func (c *imageCache) makeRoom(need int64) error {
	for {
		free, reserve, err := c.space()
		if err != nil || free-need >= reserve {
			return err
		}
		file := c.unused()
		if file == "" {
			return fmt.Errorf("%w: %s free, an image of %s is to come and %s should stay free; every cached image is in use, so make room on the disk",
				errNoRoom, size(free), size(need), size(reserve))
		}
		c.log.Info("a cached image makes room", "sha256", filepath.Base(file))
		if err := os.Remove(file); err != nil {
			return err
		}
	}
}

// trim evicts until the reserve is free, as far as that goes.
func (c *imageCache) trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.makeRoom(0); err != nil && !errors.Is(err, errNoRoom) {
		c.log.Error("the image cache could not make room", "error", err)
	}
}

// unused is the image that no instance links and that was used longest ago;
// empty when there is none.
func (c *imageCache) unused() string {
	var idle []os.FileInfo
	for _, e := range c.entries() {
		info, err := e.Info()
		if err != nil || !digestForm.MatchString(e.Name()) {
			continue
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Nlink == 1 {
			idle = append(idle, info)
		}
	}
	if len(idle) == 0 {
		return ""
	}
	oldest := slices.MinFunc(idle, func(a, b os.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	return filepath.Join(c.dir, oldest.Name())
}

func (c *imageCache) entries() []os.DirEntry {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		c.log.Error("the image cache cannot be read", "error", err)
	}
	return entries
}

// needsRoom reports whether an image waits for room on the disk.
func (c *imageCache) needsRoom() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.short) > 0
}

// stallTimeout ends a download whose bytes no longer come.
const stallTimeout = time.Minute

// fetchImage streams an image from the server.
func (a *agent) fetchImage(ctx context.Context, digest string, to io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(stallTimeout, func() { cancel(fmt.Errorf("no byte came for %v", stallTimeout)) })
	defer stalled.Stop()
	err := a.up.Do(ctx, http.MethodGet, a.path("images", digest), nil, writerFunc(func(p []byte) (int, error) {
		stalled.Reset(stallTimeout)
		return to.Write(p)
	}))
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// bounded refuses more bytes than were promised.
type bounded struct {
	to   io.Writer
	left int64
}

var errTooMuch = errors.New("more bytes came than were promised")

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errTooMuch
	}
	return b.to.Write(p)
}

// size writes bytes for a person.
func size(n int64) string {
	const unit = 1024
	value, prefixes := float64(n), []string{"B", "KiB", "MiB", "GiB"}
	i := 0
	for ; value >= unit && i < len(prefixes)-1; i++ {
		value /= unit
	}
	return fmt.Sprintf("%.4g %s", value, prefixes[i])
}
