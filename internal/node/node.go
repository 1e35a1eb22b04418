// Package node is the agent of a hypervisor node. It reports the machine by
// heartbeat, syncs with the server (observed up, desired down) and brings each
// VM to its goal: a table says what to do (action.go), named steps do it
// (start.go, stop.go), one worker per VM is the only one to touch it.
//
// It may be killed at any moment. What it has to remember is on disk, written
// whole or not at all; everything else it sees by looking again. VMs go on
// without it, and it never removes one that the server did not give up.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/metadata"
	"github.com/outcrop-cloud/outcrop/internal/network"
	"github.com/outcrop-cloud/outcrop/internal/node/detect"
	"github.com/outcrop-cloud/outcrop/internal/node/host"
)

// Config is what an agent needs to know.
type Config struct {
	ServerURL  string
	TokenFile  string // read again before each request, so that a renewed token is taken
	ID         string // of the node (contract N-02); may be empty where it has joined
	DataDir    string // images and instances; one agent at a time holds it
	Hypervisor hypervisor.Hypervisor

	// Without a TokenFile the machine joins by a key of its own, with the join token
	// in the file or as it is given here, and needs none once it has joined. An empty
	// ServerURL is then that of the join.
	JoinTokenFile string
	JoinToken     string

	Role   compute.Role // empty: what the join token says, or hypervisor
	Region string       // empty: the server's default
	Zone   string       // empty: what the join token says, or the server's default

	// What the node keeps for itself and how far it may be overcommitted; nil
	// means half of the computed reservation, 4 and 1 (contract N-09).
	ReservedVCPUs       *int64
	ReservedMemoryBytes *int64
	VCPURatio           *float64
	MemoryRatio         *float64

	// Network makes the node's network, with a metadata service that serve answers
	// one subnet's listener with; nil: VMs have no network cards.
	Network func(serve func(subnetID string, l net.Listener)) (network.Network, error)
	// Host is the machine, for power actions and the memory reservation; nil: nothing
	// is done to it.
	Host host.Host
	// WakeMAC is the network card that wakes the machine; empty: the likeliest one.
	WakeMAC string
	// GuestAgent is the program that guests install by the install command; empty:
	// they cannot.
	GuestAgent string

	Interval time.Duration // between heartbeats; zero means as the server says
	Version  string        // for the User-Agent
	Commit   string        // that the agent was built from; empty where the build does not say
	Log      *slog.Logger

	// StepHook, where set, is called before and after each step of each VM. It
	// is there for tests, which let the agent die at that point.
	StepHook func(instance, step string, before bool)
}

func (c *Config) check() error {
	switch {
	case !compute.ValidNodeID(c.ID) && (c.ID != "" || c.TokenFile != ""):
		return errBadNodeID(c.ID)
	case c.Hypervisor == nil:
		return errors.New("the agent needs a hypervisor")
	case c.DataDir == "":
		return errors.New("the agent needs a directory for images and instances; name it with --data")
	}
	if c.Role == "" && c.TokenFile != "" {
		c.Role = compute.RoleHypervisor
	}
	if c.Role != "" && !slices.Contains(compute.Roles, c.Role) {
		return fmt.Errorf("node role %q: want one of %v", c.Role, compute.Roles)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Host == nil {
		c.Host = host.None{}
	}
	return c.checkWake()
}

func errBadNodeID(id string) error {
	return fmt.Errorf("node id %q: want 1 to 63 of A-Z a-z 0-9 . _ -, the first alphanumeric", id)
}

// Run drives the node until ctx ends; VMs go on running then. It returns early
// only for what a person has to put right: a bad setting, a token that cannot be
// read, a data directory that another agent holds.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	if cfg.TokenFile == "" {
		return runMember(ctx, cfg)
	}
	up := &uplink{tokenFile: cfg.TokenFile, dial: func(token string) (caller, error) {
		return api.NewClient(cfg.ServerURL, token, "outcrop-node/"+cfg.Version)
	}}
	a, err := newAgent(cfg, up)
	if err != nil {
		return err
	}
	a.run(ctx)
	return a.close()
}

// agent is one running node agent.
type agent struct {
	cfg    Config
	log    *slog.Logger
	dir    layout
	lock   io.Closer
	up     *uplink
	member *membership // nil: the node's token is somebody else's to renew
	images *imageCache
	boots  *gate
	facts  *facts
	view   view
	finds  findings

	wires   *wiring // nil: VMs have no network
	guests  *guestbook
	reports *reports
	storage *storage
	uploads *uploads
	streams *streams
	power   *powers
	wakes   *wakes
	keeper  *keeper

	detect     func() detect.Facts
	makeVolume func(ctx context.Context, v volume) error
	flatten    func(ctx context.Context, v flattened, to string) error

	life       context.Context // ends with the agent
	running    sync.WaitGroup
	registered chan struct{} // closed by the first accepted heartbeat
	news       chan struct{} // capacity 1: something observed has changed
	relist     chan struct{} // capacity 1: look at all VMs now

	mu      sync.Mutex
	workers map[string]*worker
	known   known // of the network
}

func newAgent(cfg Config, up *uplink) (*agent, error) {
	if _, err := up.connect(); err != nil {
		return nil, err
	}
	dir := layout{root: cfg.DataDir}
	lock, err := dir.open()
	if err != nil {
		return nil, err
	}
	return makeAgent(cfg, up, dir, lock)
}

// makeAgent makes an agent that owns the lock of its folder.
func makeAgent(cfg Config, up *uplink, dir layout, lock io.Closer) (*agent, error) {
	dir.warnUnreachable(cfg.Log)
	a := &agent{
		cfg: cfg, log: cfg.Log, dir: dir, lock: lock, up: up,
		boots:      newGate(max(2, 2*runtime.NumCPU())),
		facts:      newFacts(),
		detect:     func() detect.Facts { return detect.Machine(os.DirFS("/"), cfg.DataDir) },
		makeVolume: createVolume,
		flatten:    flatten,
		guests:     newGuestbook(dir),
		reports:    newReports(),
		storage:    newStorage(dir),
		uploads:    newUploads(),
		streams:    newStreams(),
		power:      newPowers(dir.file(filePower)),
		wakes:      &wakes{send: cfg.Host.Wake},
		keeper:     newKeeper(dir.file(fileReservation)),
		registered: make(chan struct{}),
		news:       make(chan struct{}, 1),
		relist:     make(chan struct{}, 1),
		workers:    map[string]*worker{},
	}
	a.images = newImageCache(dir.images(), a.fetchImage, dir.space, cfg.Log)
	if err := a.openNetwork(); err != nil {
		lock.Close()
		return nil, err
	}
	return a, nil
}

// openNetwork makes the network with its metadata service, and tells both what the
// agent before this one knew.
func (a *agent) openNetwork() error {
	if a.cfg.Network == nil {
		return nil
	}
	token, err := a.dir.tokenKey()
	if err != nil {
		return err
	}
	identity, err := a.dir.identityKey()
	if err != nil {
		return err
	}
	service, err := metadata.New(metadata.Config{Provider: a.guests, TokenKey: token, IdentityKey: identity, Extra: a.plane(), Log: a.log})
	if err != nil {
		return err
	}
	n, err := a.cfg.Network(service.Serve)
	if err != nil {
		return err
	}
	a.wires = newWiring(n, a.log)
	k, ok, err := readKnown(a.dir.file(fileKnown))
	if err != nil {
		a.log.Error("read", "error", err)
	}
	if ok {
		a.know(k)
	}
	return nil
}

// learn is a newer word on networks and guests. It is written down before it takes
// effect: what a crash then leaves is never more than the next agent knows of. a.mu
// is held.
func (a *agent) learn(k known) {
	if err := k.write(a.dir.file(fileKnown)); err != nil {
		a.log.Error("what is known of the networks cannot be kept; an agent that starts while the server is away will not serve them", "error", err)
	}
	a.know(k)
}

// know gives network and metadata service their newest word.
func (a *agent) know(k known) {
	a.known = k
	a.guests.set(k)
	a.wires.set(k.network())
}

// close lets go of what is the agent's alone; the guests keep their network.
func (a *agent) close() error {
	var err error
	if a.wires != nil {
		err = a.wires.net.Close()
	}
	return errors.Join(err, a.lock.Close())
}

// run is the list of everything that runs in an agent.
func (a *agent) run(ctx context.Context) {
	a.life = ctx
	a.adopt(a.dir.instances())
	for _, loop := range []func(context.Context){
		a.heartbeats,
		a.syncs,
		a.observe,
		a.listen,
		a.probe,
		a.sendReports,
		a.uploadImages,
		a.powerActions,
		a.keepMemory,
		a.renewals,
	} {
		a.running.Go(func() { loop(ctx) })
	}
	if a.wires != nil {
		a.running.Go(func() { a.wires.run(ctx) })
	}
	<-ctx.Done()
	a.running.Wait()
	a.images.flying.Wait()
}

// path is the path of this node's part of the API.
func (a *agent) path(more ...string) string { return api.NodePath(a.cfg.ID, more...) }

// adopt makes sure that each of the VMs has a worker.
func (a *agent) adopt(ids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range ids {
		a.worker(id)
	}
}

// worker finds or starts the worker of a VM; a.mu is held.
func (a *agent) worker(id string) *worker {
	w := a.workers[id]
	if w == nil {
		w = newWorker(a, id)
		a.workers[id] = w
		a.running.Go(w.run)
	}
	return w
}

// forget drops a worker of which nothing is left, unless the server has just
// named its VM again.
func (a *agent) forget(w *worker) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.order().goal != goalNone {
		return false
	}
	delete(a.workers, w.id)
	if a.known.names(w.id) {
		a.learn(a.known.without(w.id))
	}
	return true
}

// apply hands the whole desired set out: to network and metadata service first, so
// that a worker which waits for its taps waits for the right ones, and then to the
// workers. A VM that it does not name is kept as it is (lesson 3).
func (a *agent) apply(resp api.SyncResponse, received time.Time) {
	a.storage.set(resp.Volumes)
	a.uploads.set(resp.Uploads)
	if a.power.set(resp.Power, a.facts.bootID(), received) {
		defer a.stir() // guests may start again, or not
	}
	if a.wakes.set(resp.Wakes) {
		a.changed()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wires != nil {
		a.learn(a.known.after(resp.Subnets, resp.Instances, func(id string) bool { return a.workers[id] != nil }))
	}
	named := map[string]bool{}
	for _, d := range resp.Instances {
		if !compute.ValidInstanceID(d.ID) {
			a.log.Error("the server names an instance with an id that cannot be; it is ignored", "instance", d.ID)
			continue
		}
		named[d.ID] = true
		a.worker(d.ID).tell(newOrder(d, received))
	}
	for id, w := range a.workers {
		if !named[id] {
			w.tell(order{})
		}
	}
	nudge(a.relist) // volumes may have to go
}

// changed says that something observed has changed; many such make one sync.
func (a *agent) changed() { nudge(a.news) }

// nudge puts a token into a channel of capacity one, unless one is there.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep waits for d and reports whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool { return wait(ctx, d, nil) != cut }
