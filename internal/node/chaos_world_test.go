package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/network"
	"github.com/outcrop-cloud/outcrop/internal/node/detect"
	plane "github.com/outcrop-cloud/outcrop/internal/server"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// The world of the chaos test: the real server and real agents in one process, on
// virtual time. What is not real: the hypervisors, the devices of the network, and
// the wires between the machines (chaos_wire_test.go).

// platform is a control plane that can be killed and started again on its data.
type platform struct {
	dir string
	log *slog.Logger

	mu    sync.Mutex
	board *switchboard // nil while it is down

	db   *store.DB
	ctl  *control.Control
	stop func(killed bool) error
}

func (p *platform) listener() *switchboard {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.board
}

func (p *platform) up() bool { return p.listener() != nil }

func (p *platform) start() error {
	db, err := store.Open(context.Background(), store.Options{Dir: p.dir, Now: time.Now, Log: p.log})
	if err != nil {
		return err
	}
	ctl, err := control.New(control.Options{DB: db, Dir: p.dir, Log: p.log, Now: time.Now})
	if err != nil {
		return errors.Join(err, db.Close())
	}
	board, srv := newSwitchboard(), plane.New(ctl, p.log, "chaos")
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var serveErr, runErr error
	running.Go(func() { serveErr = srv.Serve(ctx, board, nil) })
	running.Go(func() { runErr = ctl.Run(ctx) })
	p.db, p.ctl = db, ctl
	p.stop = func(killed bool) error {
		p.mu.Lock()
		p.board = nil
		p.mu.Unlock()
		if killed { // whatever is under way finds no database any more
			_ = board.Close()
			_ = db.Close()
		}
		cancel()
		running.Wait()
		if killed {
			return nil
		}
		return errors.Join(serveErr, runErr, db.Close())
	}
	p.mu.Lock()
	p.board = board
	p.mu.Unlock()
	return nil
}

// box is a machine with its hypervisor and, mostly, an agent.
type box struct {
	w    *world
	id   string
	vms  *guests
	net  *network.Fake
	link *link
	cfg  Config
	full bool // its disk
	boot int
	// declaredOff: somebody said that it is dead, and perhaps it was not.
	declaredOff bool

	agent  *agent
	cancel context.CancelFunc
	ended  chan struct{} // nil: no agent was started

	mu   sync.Mutex
	kill func(step string, before bool) bool // where the agent is to die
}

func (w *world) newBox(id string) (*box, error) {
	dir := filepath.Join(w.dir, id)
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o711); err != nil {
		return nil, err
	}
	hv, err := fake.New(fake.Options{BootTime: 4 * time.Second, ShutdownTime: 2 * time.Second})
	if err != nil {
		return nil, err
	}
	b := &box{w: w, id: id, vms: &guests{Hypervisor: hv, dir: filepath.Join(dir, "data"), seeds: map[string][][]byte{}}, net: &network.Fake{}, link: newLink(w.server.listener)}
	token, err := w.server.ctl.CreateToken(context.Background(), iam.System, api.CreateToken{Role: string(iam.Node), NodeID: id})
	if err != nil {
		return nil, err
	}
	b.cfg = Config{
		ID: id, TokenFile: filepath.Join(dir, "token"), DataDir: b.vms.dir, Hypervisor: b.vms, Log: w.logger.With("node", id),
		Network:  func(func(string, net.Listener)) (network.Network, error) { return b.net, nil },
		StepHook: b.step,
	}
	return b, errors.Join(
		os.WriteFile(b.cfg.TokenFile, []byte(token.Secret), 0o600),
		os.WriteFile(filepath.Join(b.vms.dir, fileIdentityKey), identity(), 0o600), b.cfg.check())
}

// facts are those of a small machine, so that placement has to say no at times.
func (b *box) facts() detect.Facts {
	return detect.Facts{Hostname: b.id, Architecture: "amd64", BootID: fmt.Sprintf("boot-%d of %s", b.boot, b.id), MachineID: "machine " + b.id,
		VCPUs: 4, MemoryBytes: 6 << 30, DiskBytes: 100 << 30}
}

// start starts the agent where none runs.
func (b *box) start() error {
	if b.alive() {
		return nil
	}
	a, err := newAgent(b.cfg, &uplink{tokenFile: b.cfg.TokenFile, dial: func(token string) (caller, error) { return client(token, b.link) }})
	if err != nil {
		return err
	}
	facts := b.facts()
	a.detect = func() detect.Facts { return facts }
	a.makeVolume = func(_ context.Context, v volume) error {
		return writeFile(v.path, fmt.Appendf(nil, "%s on %s, %d bytes", v.format, filepath.Base(v.base), v.sizeBytes))
	}
	a.flatten = func(_ context.Context, v flattened, to string) error {
		text, err := diskText(v.path, v.base)
		if err != nil {
			return err
		}
		disk := append(slices.Clone(emptyDisk), text...)
		return writeFile(to, append(disk, make([]byte, (512-len(disk)%512)%512)...))
	}
	a.images.space = func() (int64, int64, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.full {
			return 0, reserve, nil
		}
		return plenty, reserve, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	b.mu.Lock()
	b.agent, b.cancel, b.ended = a, cancel, ended
	b.mu.Unlock()
	go func() {
		defer close(ended)
		a.run(ctx)
		_ = a.close()
	}()
	return nil
}

// emptyDisk is what every disk begins with.
var emptyDisk = bytes.Repeat([]byte{0xfa, 0x33, 0xc0, 0x8e}, 1024)

// diskText is what guests wrote to a volume and to what it stands on.
func diskText(path, base string) ([]byte, error) {
	var below []byte
	if base != "" {
		var err error
		if below, err = os.ReadFile(base); err != nil {
			return nil, err
		}
	}
	own, err := os.ReadFile(path)
	return append(bytes.TrimRight(bytes.TrimPrefix(below, emptyDisk), "\x00"), own...), err
}

// alive reports whether an agent runs; one that is dying counts as none, and is
// waited for.
func (b *box) alive() bool {
	if b.ended == nil {
		return false
	}
	select {
	case <-b.ended:
		return false
	default:
		return true
	}
}

func (b *box) stop() {
	if b.ended != nil {
		b.cancel()
		<-b.ended
	}
}

// step ends the agent where it is to die: no line of the step's worker runs after
// it.
func (b *box) step(_, step string, before bool) {
	b.mu.Lock()
	hit := b.kill != nil && b.kill(step, before)
	if hit {
		b.kill = nil
	}
	cancel := b.cancel
	b.mu.Unlock()
	if hit {
		cancel()
		runtime.Goexit()
	}
}

func (b *box) dieAt(kill func(step string, before bool) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kill = kill
}

func (b *box) fill(full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full = full
}

// reboot restarts the machine: the agent is gone at once, the VMs are off, and it
// comes back as another boot.
func (b *box) reboot() []string {
	b.stop()
	var off []string
	for _, vm := range b.list() {
		if b.vms.PowerOff(vm.ID) == nil {
			off = append(off, vm.ID)
		}
	}
	b.boot++
	return off
}

// list is what the machine really has, whatever the hypervisor answers.
func (b *box) list() []hypervisor.VM { return b.vms.Look() }

// client speaks to the server over a link.
func client(token string, l *link) (*api.Client, error) {
	c, err := api.NewClient("http://outcrop", token, "chaos")
	if err == nil {
		c.DialBy(l.dial)
	}
	return c, err
}

// world is all of it.
type world struct {
	dir    string
	logger *slog.Logger
	logs   *journal
	server *platform
	boxes  []*box
	link   *link // of the tenant
	tenant *api.Client
	image  string
}

// newWorld starts a server and three nodes with an image to launch.
func newWorld(t testing.TB, dir string) (*world, error) {
	w := &world{dir: dir, logs: &journal{}}
	w.logger = slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelInfo}))
	w.server = &platform{dir: filepath.Join(dir, "server"), log: w.logger.With("node", "-")}
	w.link = newLink(w.server.listener)
	if err := w.server.start(); err != nil {
		return w, err
	}
	token, err := w.server.ctl.CreateToken(t.Context(), iam.System, api.CreateToken{Role: string(iam.Operator)})
	if err != nil {
		return w, err
	}
	if w.tenant, err = client(token.Secret, w.link); err != nil {
		return w, err
	}
	var m api.Image
	if err := w.tenant.Do(t.Context(), "POST", api.ImagePath("default", "")+"?name=disk", bytes.NewReader(emptyDisk), &m); err != nil {
		return w, err
	}
	w.image = m.ID
	for _, id := range []string{"n1", "n2", "n3"} {
		b, err := w.newBox(id)
		if err == nil {
			w.boxes = append(w.boxes, b)
			err = b.start()
		}
		if err != nil {
			return w, err
		}
	}
	return w, nil
}

// end stops everything that runs.
func (w *world) end() error {
	for _, b := range w.boxes {
		b.link.turn(fair)
		b.stop()
		_ = b.vms.Close()
	}
	<-time.After(time.Minute) // for connections that are still being made
	if !w.server.up() {
		return nil
	}
	return w.server.stop(false)
}

// crash kills the server: connections break in the midst of requests.
func (w *world) crash() error {
	for _, b := range w.boxes {
		b.link.cut()
	}
	w.link.cut()
	return w.server.stop(true)
}

// journal keeps the last lines that were logged.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (t *journal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) >= 20000 {
		t.lines = append(t.lines[:0], t.lines[10000:]...)
	}
	t.lines = append(t.lines, strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// about are the lines that hold one of the words, the last n.
func (t *journal) about(n int, words ...string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for _, l := range t.lines {
		for _, word := range words {
			if strings.Contains(l, word) {
				out = append(out, l)
				break
			}
		}
	}
	return strings.Join(out[max(0, len(out)-n):], "\n")
}
