// Package runner is a runner host of the gateway: it reports by signed heartbeat,
// asks for work, and runs one job per slot.
//
// Three things go on beside each other and never wait for one another: the heart
// beats, the checks look at the host, and each job keeps its own lease. A failed
// heartbeat ends no job; only a lease that ran out does, counted from when its
// last renewal was sent.
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

// Config is what a runner is told.
type Config struct {
	Dir         string            // data folder, as Enroll left it
	Version     string            // of this program
	Engine      Engine            // how jobs are run
	Slots       int               // jobs at once
	Poll        time.Duration     // whole seconds
	SlotMemory  int64             // bytes that one job may need
	DiskNeeded  int64             // bytes that stay free; below it no new work
	RequireKVM  bool              // no work without a usable /dev/kvm
	Credentials map[string]string // variable of each job's environment: file that holds its value
	Command     []string          // stands in front of each job's command
	StopGrace   time.Duration     // what running jobs get when the runner is told to stop

	Log       slog.Handler      // beside the log in Dir
	Transport http.RoundTripper // nil: HTTP over the network

	probes probes
	clock  *clock
}

// Engine runs jobs.
type Engine interface {
	// Check says what keeps it from running any; empty: nothing.
	Check(ctx context.Context) string
	// Sweep ends and removes what no job of running (by Job.Key) owns: what an
	// earlier process of this runner left behind. It returns the keys of those jobs.
	Sweep(ctx context.Context, running func(key string) bool) (gone []string, err error)
	// Run runs the job's command with its output going to j.Output, and returns its
	// exit code. When ctx ends it ends the command, all of it: at once when the
	// cause is ErrLeaseLost, else after asking. An error says that the command
	// could not be run to its end.
	Run(ctx context.Context, j *Job) (exit int64, err error)
}

// Unfit is an error of Engine.Run that no other attempt would cure.
type Unfit struct{ Reason string }

func (u *Unfit) Error() string { return u.Reason }

// Defaults of a Config.
const (
	DefaultPoll       = 30 * time.Second
	DefaultSlotMemory = 1 << 30
	DefaultDiskNeeded = 2 << 30
)

// validate names the first thing that cannot be.
func (c *Config) validate() error {
	switch {
	case c.Slots < 1:
		return errors.New("a runner needs a slot at least")
	case c.Poll < time.Second || c.Poll > 24*time.Hour || c.Poll%time.Second != 0:
		return errors.New("a runner polls every 1 s to 24 h, in whole seconds")
	case c.SlotMemory < 1 || c.DiskNeeded < 0:
		return errors.New("the memory of a slot is above 0, the disk that stays free at least 0")
	}
	return nil
}

// runner is a host at work.
type runner struct {
	cfg    *Config
	id     Identity
	client *client
	clock  *clock
	log    *slog.Logger
	heart  *heart
	checks *checks
	wake   nudge // of the loop that asks for work

	mu       sync.Mutex
	jobs     map[string]*running // by Job.Key
	stopping bool
	ended    sync.WaitGroup
}

// Run is a runner host until ctx ends. It then takes no new work, gives running
// jobs the grace, and hands the rest back.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	id, key, secret, err := load(cfg.Dir)
	if err != nil {
		return err
	}
	if cfg.clock == nil {
		cfg.clock = newClock()
	}
	if cfg.probes.disk == nil {
		cfg.probes = hostProbes
	}
	spare := &reserve{path: filepath.Join(cfg.Dir, fileReserve)}
	file := &logFile{path: filepath.Join(cfg.Dir, fileLog), reserve: spare}
	defer file.Close()
	log := slog.New(tee{cfg.Log, slog.NewTextHandler(file, nil)})
	client, err := newClient(&id, key, secret, cfg.clock, cfg.Transport, cfg.Version, log)
	if err != nil {
		return err
	}
	r := &runner{cfg: &cfg, id: id, client: client, clock: cfg.clock, log: log, wake: newNudge(), jobs: map[string]*running{}}
	r.checks = &checks{cfg: &cfg, clock: cfg.clock, ready: make(chan struct{})}
	r.heart = &heart{client: client, log: log, report: r.report, poll: cfg.Poll, early: newNudge()}
	r.run(ctx, spare)
	return nil
}

func (r *runner) run(ctx context.Context, spare *reserve) {
	raise()
	r.heart.update = update(r.cfg.Dir, r.cliVersion(), r.client.clock.signing().UTC())
	r.heart.fit = r.wake.send
	r.heart.known = func() { _ = writeOwn(filepath.Join(r.cfg.Dir, fileVersion), []byte(r.cliVersion()+"\n")) }
	beating, stopBeating := context.WithCancel(context.WithoutCancel(ctx))
	var loops sync.WaitGroup
	loops.Go(func() { r.watchHost(beating, spare) })
	loops.Go(func() {
		pause(beating, firstChecks, r.checks.ready)
		r.heart.run(beating)
	})
	loops.Go(func() { r.watchSleep(beating) })
	r.sweep(ctx)
	r.askForWork(ctx)
	r.drain()
	stopBeating()
	loops.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastBeat)
	defer cancel()
	if err := r.heart.beat(last); err != nil {
		r.log.Warn("the gateway could not be told that the runner stops", "error", err)
	}
}

const (
	firstChecks = 2 * time.Second // what the first heartbeat waits for the checks
	lastBeat    = 3 * time.Second // what the last heartbeat may take
	sweepTime   = time.Minute
)

// cliVersion names this runner to the gateway, which knows Outcrop's own by the
// prefix (contract R-09).
func (r *runner) cliVersion() string { return cut("outcrop/"+r.cfg.Version, 64) }

// report is the heartbeat of this moment (contract ).
func (r *runner) report() api.HostHeartbeat {
	protocol := int64(fleet.CurrentProtocol)
	found := r.checks.current()
	r.mu.Lock()
	used := len(r.jobs)
	if r.stopping {
		found.blocked = "the runner was told to stop: it takes no new work"
	}
	r.mu.Unlock()
	b := api.HostHeartbeat{Host: r.id.Host, CLIVersion: r.cliVersion(), RunnerProtocol: &protocol, PollSeconds: int64(r.cfg.Poll / time.Second),
		SlotsUsed: int64(used), SlotsTotal: int64(r.cfg.Slots), LowDisk: found.lowDisk}
	if found.blocked != "" {
		b.Blocked = &api.HostBlocked{Reason: found.blocked}
	}
	return b
}

// watchHost keeps the checks and the reserve fresh.
func (r *runner) watchHost(ctx context.Context, spare *reserve) {
	for {
		if r.checks.refresh(ctx) {
			r.announce()
			r.heart.early.send()
		}
		if r.checks.current().lowDisk == nil {
			_ = spare.keep() // the next round tries again
		}
		if !pause(ctx, r.cfg.Poll, nil) {
			return
		}
	}
}

// announce logs what the checks found.
func (r *runner) announce() {
	switch found := r.checks.current(); {
	case found.blocked != "":
		r.log.Warn("no new work is taken", "blocked", found.blocked)
	case found.lowDisk != nil:
		r.log.Warn("no new work is taken for want of disk", "free", found.lowDisk.Free, "needed", found.lowDisk.Needed)
	default:
		r.log.Info("the host is fit for work")
	}
}

// watchSleep has the host report and ask at once after its machine slept. Leases
// need no word: they count by a clock that went on.
func (r *runner) watchSleep(ctx context.Context) {
	w := newSleepWatch(r.clock)
	for pause(ctx, time.Second, nil) {
		if gap := w.slept(); gap > 0 {
			r.log.Info("the machine slept; the runner goes on", "for", gap.Round(time.Second))
			r.heart.early.send()
			r.wake.send()
		}
	}
}

// sweep removes what nobody owns, and hands those jobs back: their leases would run
// out only later.
func (r *runner) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	gone, err := r.cfg.Engine.Sweep(ctx, func(key string) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.jobs[key] != nil
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		r.log.Warn("what an earlier job left behind could not all be removed; it is tried again", "error", err)
	}
	for _, key := range gone {
		id, epoch, ok := parseKey(key)
		if !ok {
			continue
		}
		err := r.client.post(ctx, "/v1/work/"+id+"/fail", api.FailWork{Host: r.id.Host, LeaseEpoch: epoch, Message: "the runner ended while the job ran"}, nil)
		r.log.Info("what an earlier job left behind is removed", "job", id, "handed back", err == nil)
	}
}

// drain gives the running jobs their grace and hands back those that need longer.
func (r *runner) drain() {
	r.mu.Lock()
	r.stopping = true
	left := len(r.jobs)
	r.mu.Unlock()
	r.heart.early.send()
	if left > 0 {
		r.log.Info("stopping; no new work is taken", "jobs", left, "grace", r.cfg.StopGrace)
	}
	done := make(chan struct{})
	go func() { r.ended.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-time.After(r.cfg.StopGrace):
	}
	r.mu.Lock()
	for _, j := range r.jobs {
		j.end(errStopping)
	}
	r.mu.Unlock()
	<-done
}

// tee is a handler that writes to two.
type tee struct{ a, b slog.Handler }

func (t tee) Enabled(ctx context.Context, l slog.Level) bool {
	return t.a.Enabled(ctx, l) || t.b.Enabled(ctx, l)
}

func (t tee) Handle(ctx context.Context, r slog.Record) error {
	var errs []error
	for _, h := range []slog.Handler{t.a, t.b} {
		if h.Enabled(ctx, r.Level) {
			errs = append(errs, h.Handle(ctx, r.Clone()))
		}
	}
	return errors.Join(errs...)
}

func (t tee) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tee{t.a.WithAttrs(attrs), t.b.WithAttrs(attrs)}
}

func (t tee) WithGroup(name string) slog.Handler {
	return tee{t.a.WithGroup(name), t.b.WithGroup(name)}
}

// Job is one attempt at a piece of work.
type Job struct {
	ID             string
	Epoch          int64 // of the lease
	Command        []string
	Env            map[string]string
	Image          string // empty: the engine's own
	MemoryBytes    int64
	DiskBytes      int64 // 0: what there is
	TimeoutSeconds int64
	Output         *Output
}

// Key names the attempt in folders and on instances.
func (j *Job) Key() string { return fmt.Sprintf("%s.%d", j.ID, j.Epoch) }

func parseKey(key string) (id string, epoch int64, ok bool) {
	id, text, _ := strings.Cut(key, ".")
	epoch, err := strconv.ParseInt(text, 10, 64)
	return id, epoch, err == nil && id != "" && id == fleet.CanonicalID(id)
}
