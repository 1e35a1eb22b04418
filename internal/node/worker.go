package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// worker brings one VM to its goal. Its goroutine is the only writer of the VM
// and of its directory (lesson 20), so a VM that is stuck holds up nothing else
// (lesson 10).
type worker struct {
	a   *agent
	id  string
	dir string
	log *slog.Logger

	poke chan struct{} // capacity 1: look at the VM again

	mu        sync.Mutex
	want      order
	supersede context.CancelFunc // ends the waits of the pass at work
	said      api.ObservedInstance
	vm        hypervisor.VM // the hypervisor's last word; zero when not defined
	sampled   time.Time     // when that was; zero: never
	left      int64         // the power action for which the VM is down

	// Of the goroutine alone.
	failed *failure // the wanted epoch cannot be reached
	blind  bool     // the last pass could not see the VM
	asked  asked
}

// failure is what keeps an epoch from being reached for good.
type failure struct {
	epoch   int64
	message string
}

// asked is when a guest was last asked to go down, and for which epoch.
type asked struct {
	epoch int64
	at    time.Time
}

// errForgotten ends a worker of which nothing is left.
var errForgotten = errors.New("forgotten")

func newWorker(a *agent, id string) *worker {
	return &worker{
		a: a, id: id, dir: a.dir.instance(id),
		log:  a.log.With("instance", id),
		poke: make(chan struct{}, 1),
		said: api.ObservedInstance{ID: id, Phase: string(compute.PhaseUnknown)},
	}
}

// tell gives the worker a newer order; where it changes anything, the pass at
// work is superseded.
func (w *worker) tell(o order) {
	w.mu.Lock()
	defer w.mu.Unlock()
	merged, changed := w.want.after(o)
	w.want = merged
	if changed && w.supersede != nil {
		w.supersede()
	}
}

func (w *worker) order() order {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.want
}

// begin takes the newest order. The context ends when a newer one comes.
func (w *worker) begin() (context.Context, order) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.supersede != nil {
		w.supersede()
	}
	ctx, cancel := context.WithCancel(w.a.life)
	w.supersede = cancel
	return ctx, w.want
}

// run passes until the agent ends: at once for a new order, when the VM may have
// changed, and after a failure with growing delays. A step that keeps failing is
// not hurried by the events that it makes.
func (w *worker) run() {
	delay := backoff{first: time.Second, most: 30 * time.Second}
	var last order
	for {
		ctx, o := w.begin()
		if o.goal != last.goal || o.desired.Epoch != last.desired.Epoch {
			delay.reset()
		}
		last = o
		err := w.pass(ctx, o)
		if errors.Is(err, errForgotten) {
			return
		}
		poke, again := (<-chan struct{})(w.poke), (<-chan time.Time)(nil)
		if err != nil {
			again = time.After(delay.next())
			if !w.blind {
				poke = nil
			}
		} else {
			delay.reset()
		}
		select {
		case <-ctx.Done():
		case <-poke:
		case <-again:
		}
		if w.a.life.Err() != nil {
			return
		}
	}
}

// maxRounds bounds how often one pass looks and acts. Replace, start and rest
// are three; more means that the VM does not stay as it was made.
const maxRounds = 5

// pass looks at the VM and acts until there is nothing more to do.
func (w *worker) pass(ctx context.Context, o order) error {
	for range maxRounds {
		g, err := w.look(ctx, o)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if o.desired.Departed && g.mark.Epoch > o.desired.Epoch {
			o.goal = goalNone // it came back after that
		}
		s := sightUnknown
		if err == nil {
			s = g.sight(w.epoch(o, g))
		}
		w.blind = err != nil
		leaving, o, act := w.leave(o, actions[o.goal][s], s)
		w.log.Debug("looked", "goal", o.goal, "epoch", o.desired.Epoch, "sees", s, "does", act)
		switch act {
		case hold:
			w.report(o, api.ObservedInstance{Epoch: o.desired.Epoch, Phase: string(compute.PhaseUnknown), Message: err.Error()})
			return err
		case rest:
			if o.desired.Departed && o.goal == compute.GoalGone {
				if err := w.noteLeft(o.desired.Epoch); err != nil {
					return err
				}
			}
			w.report(o, api.ObservedInstance{Epoch: w.epoch(o, g), Phase: string(phaseAtRest(o.goal, s)), Message: w.why(s)})
			w.down(leaving)
			return nil
		case await:
			w.down(leaving)
			return nil
		case forget:
			w.down(leaving)
			if w.a.forget(w) {
				w.a.changed()
				return errForgotten
			}
			return nil
		}
		if err := w.act(ctx, o, act); err != nil {
			return err
		}
	}
	return fmt.Errorf("the VM does not stay as it was made")
}

// act does the steps of an action in their order.
func (w *worker) act(ctx context.Context, o order, act action) error {
	for _, st := range w.plan(act, o) {
		err := w.step(ctx, o, st)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.log.Warn("step failed", "step", st.name, "epoch", o.desired.Epoch, "error", err)
		if hopeless(err) && o.goal == compute.GoalRunning {
			w.failed = &failure{o.desired.Epoch, err.Error()}
			return nil
		}
		w.report(o, api.ObservedInstance{Epoch: o.desired.Epoch, Phase: string(compute.PhasePreparing), Step: st.name, Message: err.Error()})
		return err
	}
	return nil
}

// plan lists the steps of an action.
func (w *worker) plan(act action, o order) []step {
	switch act {
	case start:
		return w.startSteps(o)
	case resume:
		return w.resumeSteps()
	case confirm:
		return w.lateConfirm()
	case replace, stop:
		return w.stopSteps(o)
	case remove:
		return w.removeSteps()
	}
	return nil
}

// epoch is the one that the VM is judged by: the wanted one, or that of its last
// start when nobody names it. Of a start that did not come about nothing may be
// said, for it is still to come: then it is none.
func (w *worker) epoch(o order, g glance) int64 {
	switch {
	case o.goal != goalNone:
		return o.desired.Epoch
	case g.mark.Started || g.up():
		return g.mark.Epoch
	}
	return 0
}

// why is the text that goes with what is seen.
func (w *worker) why(s sight) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case s == sightFailed:
		return w.failed.message
	case s == sightCrashed && w.vm.ID == "":
		return "somebody removed the VM from the hypervisor"
	}
	return w.vm.Reason
}

// look asks the hypervisor and reads the mark.
func (w *worker) look(ctx context.Context, o order) (glance, error) {
	g := glance{files: exists(w.dir), failed: w.failed != nil && w.failed.epoch == o.desired.Epoch && o.goal == compute.GoalRunning}
	var err error
	// Removing needs no mark: terminate beats everything (lesson 19).
	if g.mark, err = readMark(w.dir); err != nil && (o.goal != compute.GoalGone || o.desired.Departed) {
		return g, err
	}
	vm, err := w.get(ctx, g.mark.Started && o.goal != compute.GoalGone)
	if err != nil {
		return g, fmt.Errorf("the hypervisor does not tell of the VM: %w", err)
	}
	g.defined, g.state = vm.ID != "", vm.State
	g.fed = w.fed(vm.State == hypervisor.Paused)
	w.saw(vm)
	return g, nil
}

// fed reports whether a paused VM stands still for want of disk space that is
// there again. That it paused while the disk was full is remembered by an empty
// file, the one thing that a full disk still takes; a VM that somebody paused at
// another time has none.
func (w *worker) fed(paused bool) bool {
	note := filepath.Join(w.dir, fileStarved)
	switch {
	case !paused:
		_ = os.Remove(note)
		return false
	case w.a.diskIsFull():
		if f, err := os.OpenFile(note, os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			f.Close()
		}
		return false
	}
	return exists(note)
}

// confirmAbsent is how long a VM must be away before it is believed.
const confirmAbsent = time.Second

// get returns the zero VM where none is defined. A VM that was started and is
// away is looked for twice: libvirtd has been seen to say so for a moment after
// its own restart.
func (w *worker) get(ctx context.Context, started bool) (hypervisor.VM, error) {
	vm, err := w.getOnce()
	if started && errors.Is(err, hypervisor.ErrNotFound) {
		if !sleep(ctx, confirmAbsent) {
			return vm, ctx.Err()
		}
		vm, err = w.getOnce()
	}
	if errors.Is(err, hypervisor.ErrNotFound) {
		return hypervisor.VM{}, nil
	}
	return vm, err
}

func (w *worker) getOnce() (vm hypervisor.VM, err error) {
	err = w.call(func(ctx context.Context) error {
		vm, err = w.a.cfg.Hypervisor.Get(ctx, w.id)
		return err
	})
	return vm, err
}

// call gives a call to the hypervisor its time. A newer order does not cut it
// off: what it does should be over before anything else is asked of the VM.
func (w *worker) call(fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(w.a.life, hypervisor.CallTimeout)
	defer cancel()
	return fn(ctx)
}

// saw keeps what the hypervisor said. The console of a VM that went down is sent
// once, since its last lines tell why.
func (w *worker) saw(vm hypervisor.VM) {
	w.mu.Lock()
	wasUp := w.vm.BootID != ""
	w.vm, w.sampled = vm, time.Now()
	w.mu.Unlock()
	if wasUp && vm.BootID == "" && exists(w.dir) {
		w.a.running.Go(func() { w.a.sendConsole(w.a.life, w.id) })
	}
}

// sample takes the hypervisor's word from a list of all VMs: where it is news,
// the worker looks itself. So it does for a paused VM, which may have what it
// waits for.
func (w *worker) sample(vm hypervisor.VM, at time.Time) {
	w.mu.Lock()
	same := w.vm == vm && !w.sampled.IsZero() && vm.State != hypervisor.Paused
	if same && at.After(w.sampled) {
		w.sampled = at
	}
	w.mu.Unlock()
	if !same {
		nudge(w.poke)
	}
}

// report says how the VM stands. What an outdated order led to is not said.
func (w *worker) report(o order, r api.ObservedInstance) {
	r.ID = w.id
	w.mu.Lock()
	before := w.said
	changed := before != r && w.want.desired.Epoch == o.desired.Epoch && w.want.goal == o.goal
	if changed {
		w.said = r
	}
	w.mu.Unlock()
	if !changed {
		return
	}
	w.a.changed()
	if r.Phase != before.Phase || r.Epoch != before.Epoch {
		w.log.Info("VM", "phase", r.Phase, "epoch", r.Epoch, "message", r.Message)
	}
}

// observed is the report with the age of its sample.
func (w *worker) observed(now time.Time) api.ObservedInstance {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.said
	r.BootID = w.vm.BootID
	if !w.sampled.IsZero() {
		r.SampleAgeS = int64(now.Sub(w.sampled) / time.Second)
	}
	return r
}
