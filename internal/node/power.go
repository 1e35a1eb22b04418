package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/node/host"
)

// carried is the latest power action that was carried out here. It is written down
// before the host is asked, so that an agent which starts after the boot does not
// do it again, nor one that an older server asks for (contract N-18).
type carried struct {
	Generation int64  `json:"generation"`
	BootID     string `json:"bootId"` // of the boot that it was to end
}

func readCarried(path string) (c carried, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		err = fmt.Errorf("what power action was last carried out is not known, so none is: %w; put the file right, or remove it", err)
	}
	return c, err
}

func (c carried) write(path string) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return writeFile(path, b)
}

// powers is what is known of the node's power action.
type powers struct {
	path string
	poke chan struct{} // capacity 1: the order, or a VM, may have changed

	mu     sync.Mutex
	done   carried
	broken error             // done could not be read
	want   *api.DesiredPower // nil: none is in progress
	at     time.Time         // when the host may act on it
	said   api.PowerReport
	// until is when guests that are still up have their plug pulled; zero unless the
	// host goes down.
	until time.Time
	lacks bool // the last action failed for want of systemd
}

func newPowers(path string) *powers {
	p := &powers{path: path, poke: make(chan struct{}, 1)}
	p.done, p.broken = readCarried(path)
	p.said.Generation = p.done.Generation
	return p
}

// set is the server's newest word. An action that was carried out before this boot
// is over, whatever the server believes; so is one that is older.
func (p *powers) set(d *api.DesiredPower, bootID string, received time.Time) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d != nil && (d.Generation < p.done.Generation || d.Generation == p.done.Generation && p.done.BootID != bootID) {
		d = nil
	}
	switch {
	case d == nil && p.want == nil, d != nil && p.want != nil && d.Generation == p.want.Generation:
		return false
	case d == nil:
		p.said = api.PowerReport{Generation: p.done.Generation}
	default:
		p.at = received.Add(time.Duration(d.NotBeforeMS) * time.Millisecond)
	}
	p.want, p.until = d, time.Time{}
	nudge(p.poke)
	return true
}

// order is the action to carry out, and when.
func (p *powers) order() (d *api.DesiredPower, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.want, p.at
}

// wanted reports whether the action is still to be carried out.
func (p *powers) wanted(d *api.DesiredPower) bool {
	now, _ := p.order()
	return now != nil && now.Generation == d.Generation
}

// leaving is the generation of the action for which guests go down, and until when
// they may take; 0 while none do.
func (p *powers) leaving() (generation int64, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until.IsZero() || p.want == nil {
		return 0, time.Time{}
	}
	return p.want.Generation, p.until
}

// report is what a sync says; nil where there never was an action.
func (p *powers) report() *api.PowerReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.said.Generation == 0 {
		return nil
	}
	said := p.said
	return &said
}

// say notes where the action stands, for the next sync.
func (a *agent) say(d *api.DesiredPower, stage compute.PowerStage, message string) {
	said := api.PowerReport{Generation: d.Generation, Stage: string(stage), Message: message}
	a.power.mu.Lock()
	news := a.power.said != said
	a.power.said = said
	a.power.mu.Unlock()
	if news {
		a.log.Info("power action", "action", d.Action, "generation", d.Generation, "stage", string(stage), "message", message)
		a.changed()
	}
}

const (
	hostTimeout = time.Minute
	// guestGrace is how long guests whose plug was pulled may take to be gone; then
	// the host goes down whatever the hypervisor says.
	guestGrace = 30 * time.Second
)

// powerActions carries out what the server asks for, each action once.
func (a *agent) powerActions(ctx context.Context) {
	var over int64 // the last one that was dealt with by this agent
	for {
		if d, at := a.power.order(); d != nil && d.Generation != over {
			over = d.Generation
			if a.carryOut(ctx, d, at) {
				continue
			}
			over = 0 // it was taken back
		}
		select {
		case <-ctx.Done():
			return
		case <-a.power.poke:
		}
	}
}

// carryOut reports whether the action was dealt with; not, when it was taken back
// or ctx ended.
func (a *agent) carryOut(ctx context.Context, d *api.DesiredPower, at time.Time) bool {
	if a.power.broken != nil {
		a.giveUp(d, a.power.broken)
		return true
	}
	a.say(d, compute.PowerWaiting, "")
	for time.Now().Before(at) {
		if wait(ctx, time.Until(at), a.power.poke) == cut || !a.power.wanted(d) {
			return false
		}
	}
	if !a.stopGuests(ctx, d) {
		return false
	}
	if err := a.power.begin(d, a.facts.bootID()); err != nil {
		a.giveUp(d, fmt.Errorf("it cannot be written down, so that it would be done again after the boot: %w", err))
		return true
	}
	a.say(d, compute.PowerActing, "the host was asked to go down")
	call, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	if err := a.cfg.Host.Power(call, compute.PowerVerb(d.Action)); err != nil {
		a.giveUp(d, err)
	}
	return true
}

// begin writes down that the action is carried out now.
func (p *powers) begin(d *api.DesiredPower, bootID string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = carried{d.Generation, bootID}
	return p.done.write(p.path)
}

// giveUp lets the guests that are to run run again.
func (a *agent) giveUp(d *api.DesiredPower, why error) {
	a.power.mu.Lock()
	a.power.until, a.power.lacks = time.Time{}, errors.Is(why, host.ErrNoSystemd)
	a.power.mu.Unlock()
	a.say(d, compute.PowerGaveUp, why.Error())
	a.stir()
}

// stopGuests takes all guests down in order: each is asked, and has its plug pulled
// when its time is over. No guest starts from here on.
func (a *agent) stopGuests(ctx context.Context, d *api.DesiredPower) bool {
	a.power.mu.Lock()
	a.power.until = time.Now().Add(compute.DefaultStopDeadline)
	until := a.power.until
	a.power.mu.Unlock()
	a.stir()
	for end := until.Add(guestGrace); ; {
		up := a.staying(d.Generation)
		if up == 0 || !time.Now().Before(end) {
			return true
		}
		a.say(d, compute.PowerStopping, fmt.Sprintf("guests that are still to go down: %d", up))
		if wait(ctx, time.Until(end), a.power.poke) == cut || !a.power.wanted(d) {
			return false
		}
	}
}

// staying counts the VMs that are not known to be down yet.
func (a *agent) staying(generation int64) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.workers {
		w.mu.Lock()
		if w.left != generation {
			n++
		}
		w.mu.Unlock()
	}
	return n
}

// stir lets every worker look at its VM anew.
func (a *agent) stir() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.workers {
		w.mu.Lock()
		if w.supersede != nil {
			w.supersede()
		}
		w.mu.Unlock()
	}
}

// departing is what a worker does in place of an action while the host goes down:
// what is up goes down, nothing starts.
func departing(act action, s sight) action {
	switch s {
	case sightRunning, sightPaused, sightStarved, sightOld, sightUnsaid:
		if act == remove {
			return remove
		}
		return stop
	}
	if act == start {
		return await
	}
	return act
}

// leave changes what a worker does while the host goes down. An order that gives the
// guest less time keeps it.
func (w *worker) leave(o order, act action, s sight) (int64, order, action) {
	generation, until := w.a.power.leaving()
	if generation == 0 {
		return 0, o, act
	}
	if o.goal != compute.GoalStopped || o.deadline.After(until) {
		o.deadline = until
	}
	return generation, o, departing(act, s)
}

// down notes that the VM is down for the host's sake.
func (w *worker) down(generation int64) {
	w.mu.Lock()
	news := w.left != generation
	w.left = generation
	w.mu.Unlock()
	if news && generation != 0 {
		nudge(w.a.power.poke)
	}
}
