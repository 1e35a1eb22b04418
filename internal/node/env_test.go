package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
	"github.com/outcrop-cloud/outcrop/internal/network"
	"github.com/outcrop-cloud/outcrop/internal/node/detect"
	"github.com/outcrop-cloud/outcrop/internal/node/host"
	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// server is the other end of the agent's protocol. It keeps instances with the
// real rules of their life, so that what the agent reports has its real effect.
type server struct {
	mu        sync.Mutex
	changed   chan struct{} // closed and renewed by every change
	revision  int
	instances map[string]*compute.Instance
	images    map[string][]byte // by the digest that instances ask for
	image     api.DesiredImage
	blobs     map[string][]byte
	wish      map[string]bool
	interval  int64
	down      error  // answer to everything while set
	commit    string // of the build that the server says to be

	beats    []time.Time
	beat     api.Heartbeat
	syncs    []api.SyncRequest
	consoles map[string][]byte
	fetches  int

	extra    map[string]func(*api.DesiredInstance) // what a test has of its own, by instance
	kept     []api.KeptVolume
	toMake   []api.ImageUpload
	streams  map[string]api.ConsoleStream
	dialled  map[string]chan net.Conn // by stream
	uploaded map[string][]byte        // by upload/n
	reports  []api.AgentReports
	onImage  func(ctx context.Context) // before an image is sent

	power    *api.DesiredPower
	toWake   []api.DesiredWake
	reserved *int64 // what the node is to keep for itself; nil: its own affair
}

func newServer() *server {
	s := &server{
		changed: make(chan struct{}), instances: map[string]*compute.Instance{}, images: map[string][]byte{},
		blobs: map[string][]byte{}, wish: map[string]bool{}, consoles: map[string][]byte{}, interval: 60,
		extra: map[string]func(*api.DesiredInstance){}, streams: map[string]api.ConsoleStream{},
		dialled: map[string]chan net.Conn{}, uploaded: map[string][]byte{},
	}
	s.image = s.addImage(bytes.Repeat([]byte{0xfa, 0x33, 0xc0, 0x8e}, 1024))
	return s
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (s *server) addImage(b []byte) api.DesiredImage {
	s.images[digest(b)] = b
	return api.DesiredImage{SHA256: digest(b), Format: "raw", SizeBytes: int64(len(b)), VirtualSize: int64(len(b))}
}

// edit changes something and ends all held answers.
func (s *server) edit(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
	s.revision++
	close(s.changed)
	s.changed = make(chan struct{})
}

// create adds an instance that is to run with the user-data.
func (s *server) create(id, userData string) {
	s.edit(func() {
		s.instances[id] = &compute.Instance{
			ID: id, ProjectID: "default", NodeID: "n1", State: compute.StateCreating, Goal: compute.GoalRunning, Epoch: 1,
			RootVolumeID: "vol-" + strings.ToLower(id[2:]) + "0",
			Spec: compute.InstanceSpec{
				Name: "web", Shape: compute.Shape{VCPUs: 1, MemoryBytes: 256 << 20}, RootVolumeBytes: 1 << 30,
				PublicKeys: []string{"ssh-ed25519 AAAA a@b"},
			},
		}
		s.setUserData(id, userData)
	})
}

func (s *server) setUserData(id, userData string) {
	hash := digest([]byte(userData))
	s.blobs[hash] = []byte(userData)
	s.instances[id].Spec.UserDataHash = hash
}

// verb does what a customer asks and reports whether the state allows it.
func (s *server) verb(id string, v compute.Verb, do func(*compute.Instance)) (accepted bool) {
	s.edit(func() {
		i := s.instances[id]
		if accepted = i != nil && compute.Judge(i.State, v) == compute.Accept; accepted {
			do(i)
		}
	})
	return accepted
}

func (s *server) stop(id string, patience time.Duration, force bool) bool {
	return s.verb(id, compute.VerbStop, func(i *compute.Instance) { i.Stop(time.Now(), patience, force) })
}
func (s *server) start(id string) bool {
	return s.verb(id, compute.VerbStart, func(i *compute.Instance) { i.Start(time.Now()) })
}
func (s *server) reboot(id string, force bool) bool {
	return s.verb(id, compute.VerbReboot, func(i *compute.Instance) { i.Reboot(time.Now(), force) })
}
func (s *server) terminate(id string) bool {
	return s.verb(id, compute.VerbTerminate, func(i *compute.Instance) { i.Terminate(time.Now()) })
}

func (s *server) state(id string) compute.InstanceState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.instances[id].State
}

func (s *server) instance(id string) compute.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.instances[id]
}

// last is the newest report of a VM.
func (s *server) last(id string) api.ObservedInstance {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.syncs) == 0 {
		return api.ObservedInstance{}
	}
	for _, o := range s.syncs[len(s.syncs)-1].Instances {
		if o.ID == id {
			return o
		}
	}
	return api.ObservedInstance{}
}

func (s *server) lastSync() (none api.SyncRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.syncs) == 0 {
		return none
	}
	return s.syncs[len(s.syncs)-1]
}

func (s *server) desired(now time.Time) []api.DesiredInstance {
	var list []api.DesiredInstance
	for _, id := range slices.Sorted(maps.Keys(s.instances)) {
		i := s.instances[id]
		if i.State == compute.StateTerminated {
			continue
		}
		d := api.DesiredInstance{
			ID: id, ProjectID: i.ProjectID, Name: i.Spec.Name, Epoch: i.Epoch, Goal: string(i.Goal),
			Reboot: i.State == compute.StateRebooting, Force: i.ForceStopping,
			VCPUs: i.Spec.Shape.VCPUs, MemoryBytes: i.Spec.Shape.MemoryBytes, Image: s.image,
			Volumes:      []api.DesiredVolume{{ID: i.RootVolumeID, SizeBytes: i.Spec.RootVolumeBytes, Root: true, Made: !i.LaunchedAt.IsZero()}},
			UserDataHash: i.Spec.UserDataHash, PublicKeys: i.Spec.PublicKeys,
			Interfaces:   []api.DesiredInterface{nicOf(id)},
			AgentEnabled: true, AgentActivation: "automatic",
		}
		if i.State == compute.StateStopping {
			d.StopWithinMS = max(0, i.Deadline.Sub(now).Milliseconds())
		}
		if extra := s.extra[id]; extra != nil {
			extra(&d)
		}
		list = append(list, d)
	}
	return list
}

const subnetA = "subnet-aaaaaaaaaa"

// nicOf is the card of an instance; the address and the MAC are made of its id.
func nicOf(id string) api.DesiredInterface {
	eni := "eni-" + strings.ToLower(id[2:]) + "0"
	sum := sha256.Sum256([]byte(id))
	return api.DesiredInterface{ID: eni, SubnetID: subnetA, MAC: vpc.MACOf(eni, 0).String(),
		Address: fmt.Sprintf("172.31.%d.%d", sum[0], max(3, sum[1]-1))}
}

func (s *server) subnets() []api.DesiredSubnet {
	return []api.DesiredSubnet{{ID: subnetA, ProjectID: "default", VPCID: "vpc-aaaaaaaaaa", CIDR: "172.31.0.0/16", VPCCIDR: "172.31.0.0/16"}}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	if down != nil {
		e := fault.From(down)
		w.WriteHeader(e.Kind.Status())
		_ = json.NewEncoder(w).Encode(map[string]string{"code": e.Code, "message": e.Message})
		return
	}
	part := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/compute/nodes/n1/"), "/")
	switch {
	case part[0] == "heartbeat":
		s.heartbeat(w, r)
	case part[0] == "sync":
		s.sync(w, r)
	case part[0] == "blobs":
		s.send(w, s.blobs[part[1]])
	case part[0] == "images":
		s.mu.Lock()
		s.fetches++
		on := s.onImage
		s.mu.Unlock()
		if on != nil {
			on(r.Context())
		}
		s.send(w, s.images[part[1]])
	case part[0] == "instances" && part[2] == "console":
		b, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.consoles[part[1]] = b
		delete(s.wish, part[1])
		s.mu.Unlock()
	case part[0] == "uploads":
		b, _ := io.ReadAll(r.Body)
		s.edit(func() { s.uploaded[part[1]+"/"+part[2]] = b })
	case part[0] == "agent-reports":
		var m api.AgentReports
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.edit(func() { s.reports = append(s.reports, m) })
	default:
		http.NotFound(w, r)
	}
}

func (s *server) send(w http.ResponseWriter, b []byte) {
	s.mu.Lock()
	b = slices.Clone(b)
	s.mu.Unlock()
	if b == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = w.Write(b)
}

func (s *server) heartbeat(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var h api.Heartbeat
	if err := json.NewDecoder(r.Body).Decode(&h); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.beat, s.beats = h, append(s.beats, time.Now())
	node := api.Node{ID: "n1", State: "ready", HeartbeatIntervalSeconds: s.interval}
	if s.reserved != nil {
		node.EnforceReservation, node.ReservedMemoryBytes = true, *s.reserved
	}
	_ = json.NewEncoder(w).Encode(node)
}

func (s *server) sync(w http.ResponseWriter, r *http.Request) {
	var req api.SyncRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.take(req)
	hold := time.NewTimer(time.Duration(req.WaitSeconds) * time.Second)
	defer hold.Stop()
	for held := false; ; {
		s.mu.Lock()
		resp := api.SyncResponse{Revision: strconv.Itoa(s.revision), Instances: []api.DesiredInstance{}, ServerCommit: s.commit, Consoles: slices.Sorted(maps.Keys(s.wish))}
		if resp.Revision != req.Revision {
			resp.Changed, resp.Instances = true, s.desired(time.Now())
			resp.Subnets, resp.Volumes, resp.Uploads = s.subnets(), s.kept, s.toMake
			resp.Power, resp.Wakes = s.power, s.toWake
		}
		for _, id := range slices.Sorted(maps.Keys(s.streams)) {
			resp.Streams = append(resp.Streams, s.streams[id])
		}
		changed := s.changed
		s.mu.Unlock()
		if resp.Changed || len(resp.Consoles)+len(resp.Streams) > 0 || held {
			_ = json.NewEncoder(w).Encode(resp)
			return
		}
		select {
		case <-changed:
		case <-hold.C:
			held = true
		case <-r.Context().Done():
			return
		}
	}
}

// take applies what the node observes.
func (s *server) take(req api.SyncRequest) {
	s.mu.Lock()
	s.syncs = append(s.syncs, req)
	s.mu.Unlock()
	if req.Unknown {
		return
	}
	for _, o := range req.Instances {
		s.mu.Lock()
		i := s.instances[o.ID]
		s.mu.Unlock()
		if i == nil {
			continue
		}
		s.mu.Lock()
		changed := i.Observe(compute.Observation{Phase: compute.Phase(o.Phase), Epoch: o.Epoch, Message: o.Message}, time.Now())
		s.mu.Unlock()
		if changed {
			s.edit(func() {})
		}
	}
}

// Do speaks to the server without a network, which a synctest bubble cannot
// wait for.
func (s *server) Do(ctx context.Context, method, path string, in, out any, opts ...api.Option) error {
	var body io.Reader
	switch v := in.(type) {
	case nil:
	case io.Reader:
		body = v
	default:
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req := httptest.NewRequestWithContext(ctx, method, path, body)
	for _, o := range opts {
		o(req)
	}
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, req)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if rec.Code >= 400 {
		var e struct{ Code, Message string }
		_ = json.Unmarshal(rec.Body.Bytes(), &e)
		return &fault.Error{Kind: fault.KindOf(rec.Code), Code: e.Code, Message: e.Message}
	}
	switch v := out.(type) {
	case nil:
		return nil
	case io.Writer:
		_, err := io.Copy(v, rec.Body)
		return err
	}
	return json.Unmarshal(rec.Body.Bytes(), out)
}

// Upgrade hands the other end of a console's connection to the test.
func (s *server) Upgrade(_ context.Context, method, path, protocol string) (io.ReadWriteCloser, error) {
	id := path[strings.LastIndexByte(path, '/')+1:]
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.dialled[id]
	if waiting == nil || method != http.MethodPost || protocol != api.ConsoleProtocol {
		return nil, fault.New(fault.NotFound, "nobody waits")
	}
	delete(s.streams, id)
	near, far := net.Pipe()
	waiting <- far
	return near, nil
}

// through does something before each call to the server.
type through struct {
	*server
	before func(ctx context.Context, method, path string) error
}

func (t through) Do(ctx context.Context, method, path string, in, out any, opts ...api.Option) error {
	if err := t.before(ctx, method, path); err != nil {
		return err
	}
	return t.server.Do(ctx, method, path, in, out, opts...)
}

// guests is the fake hypervisor; each boot is noted with the seed it found.
type guests struct {
	*fake.Hypervisor
	dir string

	mu    sync.Mutex
	seeds map[string][][]byte
}

func (g *guests) Start(ctx context.Context, id string) error {
	before, _ := g.Hypervisor.Get(ctx, id)
	seed, _ := os.ReadFile(filepath.Join(g.dir, "instances", id, fileSeed))
	err := g.Hypervisor.Start(ctx, id)
	if err == nil && before.BootID == "" {
		g.mu.Lock()
		g.seeds[id] = append(g.seeds[id], seed)
		g.mu.Unlock()
	}
	return err
}

func (g *guests) boots(id string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.seeds[id])
}

// sawUserData reports whether the last boot's seed holds exactly this text.
func (g *guests) sawUserData(id, text string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.seeds[id]
	// The file begins a sector and what follows it is zero.
	return len(s) > 0 && bytes.Contains(s[len(s)-1], append([]byte(text), 0))
}

// Space that should stay free, and more than enough.
const (
	reserve = 1 << 30
	plenty  = 1 << 40
)

// env is a server, a hypervisor and an agent between them.
type env struct {
	*server
	vms   *guests
	net   *network.Fake
	cfg   Config
	tweak func(*agent)
	free  atomic.Int64 // space on the disk

	agent  *agent
	cancel context.CancelFunc
	ended  chan struct{}
}

func newEnv(t testing.TB) *env {
	return newEnvIn(t, t.TempDir(), fake.Options{BootTime: 4 * time.Second, ShutdownTime: 2 * time.Second})
}

func newEnvIn(t testing.TB, dir string, opts fake.Options) *env {
	t.Helper()
	hv, err := fake.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{server: newServer(), vms: &guests{Hypervisor: hv, dir: filepath.Join(dir, "data"), seeds: map[string][][]byte{}}, net: &network.Fake{}}
	e.free.Store(plenty)
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(e.vms.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(e.vms.dir, fileIdentityKey), identity(), 0o600); err != nil {
		t.Fatal(err)
	}
	e.cfg = Config{ID: "n1", TokenFile: token, Host: host.None{}, DataDir: e.vms.dir, Hypervisor: e.vms, Log: testLog(t),
		Network: func(func(string, net.Listener)) (network.Network, error) { return e.net, nil }}
	return e
}

// identity is made once: it takes a while.
var identity = sync.OnceValue(func() []byte {
	dir, err := os.MkdirTemp("", "identity")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	l := layout{dir}
	if _, err := l.identityKey(); err != nil {
		panic(err)
	}
	b, err := os.ReadFile(l.file(fileIdentityKey))
	if err != nil {
		panic(err)
	}
	return b
})

func testLog(t testing.TB) *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func machine() detect.Facts {
	return detect.Facts{Hostname: "host", Architecture: "amd64", BootID: "boot-1", MachineID: "machine-1",
		VCPUs: 2, MemoryBytes: 8 << 30, DiskBytes: 100 << 30}
}

// up starts the agent.
func (e *env) up(t testing.TB) {
	t.Helper()
	if err := e.cfg.check(); err != nil {
		t.Fatal(err)
	}
	a, err := newAgent(e.cfg, &uplink{tokenFile: e.cfg.TokenFile, dial: func(string) (caller, error) { return e, nil }})
	if err != nil {
		t.Fatal(err)
	}
	a.detect = machine
	a.makeVolume = func(_ context.Context, v volume) error {
		return writeFile(v.path, fmt.Appendf(nil, "%s on %s, %d bytes", v.format, filepath.Base(v.base), v.sizeBytes))
	}
	a.images.space = func() (int64, int64, error) { return e.free.Load(), reserve, nil }
	if e.tweak != nil {
		e.tweak(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.agent, e.cancel, e.ended = a, cancel, make(chan struct{})
	go func(ended chan struct{}) {
		defer close(ended)
		a.run(ctx)
		a.close()
	}(e.ended)
}

// downAgent ends the agent and waits for its end.
func (e *env) downAgent() {
	e.cancel()
	<-e.ended
}

// killAt makes a StepHook that ends the agent at a step, as a kill would: no
// line of the step's worker runs after it.
func (e *env) killAt(name string, before bool, times int) func(string, string, bool) {
	var mu sync.Mutex
	return func(_, step string, b bool) {
		mu.Lock()
		hit := step == name && b == before && times > 0
		if hit {
			times--
		}
		mu.Unlock()
		if hit {
			e.cancel()
			runtime.Goexit()
		}
	}
}

// until waits for a condition in steps of fake time.
func (e *env) until(t testing.TB, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s; last sync: %+v", within, what, e.lastSync().Instances)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func (e *env) reaches(t testing.TB, id string, s compute.InstanceState, within time.Duration) {
	t.Helper()
	e.until(t, id+" becomes "+string(s), within, func() bool { return e.state(id) == s })
}

// vm is the state of a VM; "none" where none is defined.
func (e *env) vm(id string) hypervisor.State {
	vms, err := e.vms.List(context.Background())
	if err != nil {
		return hypervisor.State(err.Error())
	}
	for _, vm := range vms {
		if vm.ID == id {
			return vm.State
		}
	}
	return "none"
}

// files lists what is in the data directory, relative to it, without what the agent
// keeps for itself.
func (e *env) files() []string {
	var list []string
	_ = filepath.WalkDir(e.vms.dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(e.vms.dir, p)
			if !slices.Contains([]string{fileKnown, fileTokenKey, fileIdentityKey}, rel) {
				list = append(list, rel)
			}
		}
		return nil
	})
	return list
}
