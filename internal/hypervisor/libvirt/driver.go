// Package libvirt runs VMs with QEMU through libvirtd, over its unix socket.
//
// Every call has a connection of its own for as long as it lasts and a
// deadline, so a domain that hangs costs only the calls to itself. A libvirtd
// that restarts is met again by the next call; VMs live through it.
package libvirt

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// defaultSocket is where libvirtd and virtqemud's proxy listen.
const defaultSocket = "/run/libvirt/libvirt-sock"

// Driver is a hypervisor.Hypervisor on top of libvirtd.
type Driver struct {
	pool   pool
	dir    string
	forced hypervisor.Acceleration
	kept   string // file of the probe's answer; empty: not kept
	log    *slog.Logger

	events chan string
	ctx    context.Context // ends with Close
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	inquiry *inquiry // nil before the first and after a failed one

	consoles consoles
}

var _ hypervisor.Hypervisor = (*Driver)(nil)

// Option changes how a Driver works.
type Option func(*Driver)

// WithDir names a directory that the user who runs QEMU can traverse; a probe
// keeps its boot sector there for some seconds. The default is os.TempDir().
func WithDir(dir string) Option { return func(d *Driver) { d.dir = dir } }

// WithAcceleration sets how guests run instead of probing for it.
func WithAcceleration(a hypervisor.Acceleration) Option { return func(d *Driver) { d.forced = a } }

// WithKeptProbe names a file that keeps the probe's answer over restarts. It is
// asked anew when the machine has booted, libvirt, QEMU, the CPU or /dev/kvm is
// another one, or after a day; to have it asked at once, remove the file.
func WithKeptProbe(file string) Option { return func(d *Driver) { d.kept = file } }

// WithLogger sets where reconnects are noted. The default is slog.Default().
func WithLogger(l *slog.Logger) Option { return func(d *Driver) { d.log = l } }

// Open makes a Driver for "qemu:///system" or "qemu:///system?socket=/path". It
// does not wait for libvirtd: until that answers, calls return ErrUnavailable.
func Open(uri string, options ...Option) (*Driver, error) {
	path, err := socketPath(uri)
	if err != nil {
		return nil, err
	}
	d := &Driver{
		pool:   pool{path: path},
		dir:    os.TempDir(),
		log:    slog.Default(),
		events: make(chan string, 256),
	}
	for _, o := range options {
		o(d)
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.work.Go(func() { d.watch(d.ctx) })
	return d, nil
}

func socketPath(uri string) (string, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "qemu" || u.Host != "" || u.Path != "/system" {
		return "", fmt.Errorf("libvirt: URI %q: want qemu:///system or qemu:///system?socket=/path", uri)
	}
	if path := u.Query().Get("socket"); path != "" {
		return path, nil
	}
	return defaultSocket, nil
}

// Close ends the event watch and all idle connections. VMs go on.
func (d *Driver) Close() error {
	d.stop()
	d.work.Wait()
	d.pool.close()
	return nil
}

// Info says what the host can do; see hypervisor.Hypervisor. The first call
// probes for up to ten seconds, and so does the first after a failed one; less
// where an answer was kept.
func (d *Driver) Info(ctx context.Context) (hypervisor.Info, error) {
	h, err := d.hostFacts(ctx)
	if err != nil {
		return hypervisor.Info{}, fmt.Errorf("libvirt: look at the host: %w", err)
	}
	return h.info, nil
}
