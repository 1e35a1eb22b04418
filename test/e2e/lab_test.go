package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

// bootsAtOnce is how many guests may boot side by side: two cores emulate three
// in little more time than one after another, and none misses a deadline.
const bootsAtOnce = 3

// lab is what all scenarios share.
type lab struct {
	binary string
	micro  string // image file
	daemon *libvirtdtest.Daemon
	boots  chan struct{}
	debian func() (string, error) // image file, built at the first call
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if testing.Short() {
		t.Skip("boots real guests")
	}
	if os.Getuid() != 0 {
		libvirtdtest.Missing(t, "root, for libvirtd and for network namespaces")
	}
	l := &lab{binary: filepath.Join(t.TempDir(), "outcrop"), boots: make(chan struct{}, bootsAtOnce)}
	if out, err := exec.Command("go", "build", "-o", l.binary, filepath.Join(root(), "cmd", "outcrop")).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var err error
	if l.micro, err = buildImage("micro"); err != nil {
		libvirtdtest.Missing(t, "the micro image: "+err.Error())
	}
	l.debian = sync.OnceValues(func() (string, error) { return buildImage("debian") })
	l.daemon = libvirtdtest.Start(t)
	return l
}

// root is the repository's.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// imageError carries what the build said.
type imageError struct {
	error
	said string
}

func (e imageError) Error() string { return e.error.Error() + ": " + e.said }

func buildImage(args ...string) (string, error) {
	var said strings.Builder
	cmd := exec.Command(filepath.Join(root(), "images", "build.sh"), args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", imageError{err, said.String()}
	}
	return strings.TrimSpace(string(out)), nil
}

// boot takes a place among the guests that boot; release gives it back, at the
// latest when the test ends.
func (l *lab) boot(t *testing.T) (release func()) {
	t.Helper()
	ctx, cancel := bounded(t, forever)
	defer cancel()
	select {
	case l.boots <- struct{}{}:
	case <-ctx.Done():
		t.Fatal("no guest may boot any more; the test's time is over")
	}
	release = sync.OnceFunc(func() { <-l.boots })
	t.Cleanup(release)
	return release
}

// driver looks at the VMs of a libvirtd beside the agents.
func driver(t *testing.T, d *libvirtdtest.Daemon) *libvirt.Driver {
	t.Helper()
	hv, err := libvirt.Open(d.URI, libvirt.WithAcceleration(hypervisor.TCG), libvirt.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hv.Close() })
	return hv
}

// Deadlines. They are far beyond what is usual, so that a busy machine fails
// nothing; each is a bound on something that must come to an end.
const (
	soon     = time.Minute     // what processes do between themselves
	patience = 4 * time.Minute // what takes a guest
)

// forever is bounded by the whole run only.
const forever = 24 * time.Hour

const pollEvery = 50 * time.Millisecond

// forCleaning is what the end of a failed run needs of the test binary's own time,
// which ends without any cleaning.
const forCleaning = 90 * time.Second

// bounded ends with the test, after within, or when cleaning has to begin.
func bounded(t *testing.T, within time.Duration) (context.Context, context.CancelFunc) {
	end := time.Now().Add(within)
	if last, ok := t.Deadline(); ok && last.Add(-forCleaning).Before(end) {
		end = last.Add(-forCleaning)
	}
	return context.WithDeadline(t.Context(), end)
}

// await looks until it is done. It fails the test when the time is over, saying
// what was seen last.
func await(t *testing.T, within time.Duration, what string, look func() (seen string, done bool)) {
	t.Helper()
	ctx, cancel := bounded(t, within)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		seen, done := look()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("no %s within %v, or in the time of the whole run; last seen: %s", what, within, seen)
		}
	}
}

// awaitFile waits until a file holds the text.
func awaitFile(t *testing.T, file, text string) {
	t.Helper()
	await(t, patience, fmt.Sprintf("%q in %s", text, file), func() (string, bool) {
		b, err := os.ReadFile(file)
		return fmt.Sprintf("%d bytes, %v", len(b), err), strings.Contains(string(b), text)
	})
}
