package node

import (
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
)

var (
	chaosSeed  = flag.Uint64("chaos.seed", 0, "run the chaos test with this seed alone")
	chaosSteps = flag.Int("chaos.steps", 600, "steps of each run of the chaos test")
	chaosRuns  = flag.Int("chaos.runs", 6, "runs of the chaos test, each with a seed of its own")
)

// Whatever customers ask and whatever breaks, server and nodes together never run
// a VM twice, never run one that is terminated, keep their books in order, and
// when it is over, all is as it was last asked for and nothing is left behind.
//
// contract: U-03 U-04 U-11 U-16 U-17 U-19 U-21
// lesson 3, lesson 4, lesson 9, lesson 12, lesson 19, lesson 20
func TestChaos(t *testing.T) {
	seeds := []uint64{*chaosSeed}
	if *chaosSeed == 0 {
		seeds = nil
		if testing.Short() || apptest.Race {
			*chaosRuns, *chaosSteps = 1, min(*chaosSteps, 150)
		}
		for range *chaosRuns {
			seeds = append(seeds, 1+rand.Uint64N(1<<32))
		}
	}
	identity() // made outside of the bubble
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			began := time.Now()
			var virtual time.Duration
			var c *chaos
			replayable(t, seed)
			dir, err := os.MkdirTemp(memory(), "chaos")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)))
				start := time.Now()
				c = &chaos{seed: seed, wishes: map[string]*wish{}, began: start}
				if c.world, err = newWorld(t, dir); err == nil {
					err = c.run(*chaosSteps)
				}
				err = errors.Join(err, c.world.end())
				if err != nil {
					err = fmt.Errorf("%w\n%s", err, c.logs.about(20, "level=ERROR"))
				}
				virtual = time.Since(start)
			})
			t.Logf("seed %d: %d steps, %v of virtual time in %v: %s", seed, len(c.log), virtual.Round(time.Second), time.Since(began).Round(time.Millisecond), c.tally())
			if err != nil {
				t.Errorf("%v\n\nreplay with: go test ./internal/node -run TestChaos -chaos.seed=%d -chaos.steps=%d", err, seed, *chaosSteps)
			}
		})
	}
}

// memory is a folder whose files are in memory, where there is one: virtual time
// waits for every write that a disk has to have.
func memory() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err != nil || !info.IsDir() {
		return ""
	}
	return shm
}

// replayable takes chance out of all but the turns that goroutines take.
func replayable(t *testing.T, seed uint64) {
	cryptotest.SetGlobalRandom(t, seed)
	procs, draw := runtime.GOMAXPROCS(1), randN
	t.Cleanup(func() { runtime.GOMAXPROCS(procs); randN = draw })
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 1))
	randN = func(n time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(rng.Int64N(int64(n)))
	}
}

// chaos is one run.
type chaos struct {
	*world
	seed   uint64
	rng    *rand.Rand
	began  time.Time
	log    []string
	counts map[string]int
	became map[string]int // events of the instances at the end, by name
	ids    []string       // of all instances that were ever made, in order
	wishes map[string]*wish
	made   int
	due    []due
	// troubles are the spans in which a node could not do what it was told.
	troubles []trouble
}

type trouble struct {
	node     string
	from, to time.Time
}

// wish is what the tenant can expect of an instance.
type wish struct {
	state    string   // that the last accepted verb leads to; empty: the guest's own end, or an answer that was lost, leaves it open
	desired  string   // desiredState; "?" after a lost answer
	onBoot   bool     // start it when its node has booted
	userData []string // what it may have; more than one after a lost answer
	// perhapsGone: a terminate got no answer.
	perhapsGone bool
	wrote       []string // by the guest, to its root volume
}

// deed is one thing that the driver does.
type chaosDeed struct {
	name   string
	weight int
	do     func(c *chaos) (string, error)
}

var chaosDeeds = []chaosDeed{
	{"create", 14, (*chaos).create},
	{"start", 12, func(c *chaos) (string, error) {
		return c.verb("start", api.StartInstance{Rerun: c.rng.IntN(10) == 0}, "running")
	}},
	{"stop", 8, func(c *chaos) (string, error) {
		patience := int64(c.rng.IntN(100))
		return c.verb("stop", api.StopInstance{DeadlineSeconds: &patience}, "stopped")
	}},
	{"force-stop", 4, func(c *chaos) (string, error) { return c.verb("stop", api.StopInstance{Force: true}, "stopped") }},
	{"reboot", 6, func(c *chaos) (string, error) {
		return c.verb("reboot", api.RebootInstance{Force: c.rng.IntN(3) == 0}, "running")
	}},
	{"terminate", 8, (*chaos).terminate},
	{"wish", 7, (*chaos).wish},
	{"on-boot", 3, (*chaos).onBoot},
	{"user-data", 8, (*chaos).putUserData},

	{"write", 8, (*chaos).write},
	{"migrate", 7, func(c *chaos) (string, error) { return c.verb("migrate", api.MigrateInstance{}, "") }},
	{"cancel-migration", 2, func(c *chaos) (string, error) { return c.verb("migrate/cancel", nil, "") }},
	{"attach", 4, (*chaos).attach},
	{"detach", 3, (*chaos).detach},
	{"delete-volume", 2, (*chaos).deleteVolume},
	{"create-image", 4, (*chaos).createImage},
	{"cordon", 1, func(c *chaos) (string, error) { return c.maintain("cordon", nil) }},
	{"uncordon", 6, func(c *chaos) (string, error) { return c.maintain("uncordon", nil) }},
	{"drain", 2, func(c *chaos) (string, error) {
		return c.maintain("drain", api.DrainNode{Strategy: []string{"migrate", "stop"}[c.rng.IntN(2)], DeadlineSeconds: 60 + c.rng.Int64N(3600)})
	}},

	{"declare-off", 6, (*chaos).declareOff},

	{"kill-agent", 5, func(c *chaos) (string, error) { b := c.box(); b.stop(); return b.id, b.start() }},
	{"lose-agent", 3, (*chaos).loseAgent},
	{"kill-agent-at", 6, (*chaos).killAgentAt},
	{"reboot-node", 3, (*chaos).rebootNode},
	{"partition", 8, (*chaos).partition},
	{"lose-answers", 3, (*chaos).loseAnswers},
	{"kill-server", 3, func(c *chaos) (string, error) { return c.bounce(true) }},
	{"restart-server", 1, func(c *chaos) (string, error) { return c.bounce(false) }},

	{"crash-guest", 4, func(c *chaos) (string, error) {
		return c.strike(func(b *box, id string) error { return b.vms.Crash(id, "kernel panic") })
	}},
	{"power-off", 4, func(c *chaos) (string, error) {
		return c.strike(func(b *box, id string) error { return b.vms.PowerOff(id) })
	}},
	{"deaf", 3, func(c *chaos) (string, error) {
		deaf, id := c.rng.IntN(2) == 0, c.instance()
		for _, b := range c.boxes {
			b.vms.IgnoreShutdown(id, deaf)
		}
		return fmt.Sprint(id, " ", deaf), nil
	}},
	{"fail", 6, func(c *chaos) (string, error) {
		b, v, id, n := c.box(), verbs[c.rng.IntN(len(verbs))], c.instance(), 1+c.rng.IntN(3)
		b.vms.Fail(v, id, n, hypervisor.ErrUnavailable)
		return fmt.Sprint(b.id, " ", v, " ", id, " ", n), nil
	}},
	{"hang", 5, func(c *chaos) (string, error) {
		b, v, id, n := c.box(), append(verbs, fake.VerbList)[c.rng.IntN(len(verbs)+1)], c.instance(), 1+c.rng.IntN(3)
		if v == fake.VerbList {
			id = ""
		}
		b.vms.Hang(v, id, n)
		return fmt.Sprint(b.id, " ", v, " ", id, " ", n), nil
	}},
	{"hypervisor-down", 3, func(c *chaos) (string, error) {
		b, d := c.box(), c.span(4*time.Minute)
		c.troubles = append(c.troubles, trouble{b.id, time.Now(), time.Now().Add(d)})
		b.vms.SetDown(true)
		c.later(d, func() error { b.vms.SetDown(false); return nil })
		return fmt.Sprint(b.id, " for ", d), nil
	}},
	{"disk-full", 2, func(c *chaos) (string, error) {
		b, d := c.box(), c.span(4*time.Minute)
		c.troubles = append(c.troubles, trouble{b.id, time.Now(), time.Now().Add(d)})
		b.fill(true)
		c.later(d, func() error { b.fill(false); return nil })
		return fmt.Sprint(b.id, " for ", d), nil
	}},
	{"jump", 1, func(c *chaos) (string, error) {
		d := c.span(time.Hour)
		return d.String(), c.sleep(d)
	}},
}

// waits between two steps.
var chaosWaits = []time.Duration{0, 0, 20 * time.Millisecond, 150 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second}

// run does the steps, puts right all that is broken, and looks at what has become
// of it.
func (c *chaos) run(steps int) error {
	c.counts = map[string]int{}
	time.Sleep(2 * time.Second)
	total := 0
	for _, d := range chaosDeeds {
		total += d.weight
	}
	for step := range steps {
		c.rng = rand.New(rand.NewPCG(c.seed, uint64(step))) // what came of earlier steps does not change what is drawn for this one
		pause := chaosWaits[c.rng.IntN(len(chaosWaits))]
		n := c.rng.IntN(total)
		i := slices.IndexFunc(chaosDeeds, func(d chaosDeed) bool { n -= d.weight; return n < 0 })
		d := chaosDeeds[i]
		at := time.Since(c.began)
		said, err := d.do(c)
		c.counts[d.name]++
		c.log = append(c.log, fmt.Sprintf("%12v %s %s", at.Round(time.Millisecond), d.name, said))
		if err == nil {
			if err = c.sleep(pause); err == nil {
				err = c.check()
			}
		}
		if err != nil {
			return c.tell(err)
		}
	}
	return c.tell(c.settle())
}

// due is what the driver does when its time has come.
type due struct {
	at time.Time
	do func() error
}

func (c *chaos) later(d time.Duration, do func() error) {
	c.due = append(c.due, due{time.Now().Add(d), do})
	slices.SortStableFunc(c.due, func(a, b due) int { return a.at.Compare(b.at) })
}

// sleep lets time pass, and does what is due meanwhile.
func (c *chaos) sleep(d time.Duration) error {
	end := time.Now().Add(d)
	for len(c.due) > 0 && !c.due[0].at.After(end) {
		next := c.due[0]
		c.due = c.due[1:]
		time.Sleep(time.Until(next.at))
		if err := next.do(); err != nil {
			return err
		}
	}
	time.Sleep(time.Until(end))
	return nil
}

// tell adds to an error how it came to it.
func (c *chaos) tell(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\n\nthe last steps:\n%s", err, strings.Join(c.log[max(0, len(c.log)-*chaosTail):], "\n"))
}

var chaosTail = flag.Int("chaos.tail", 60, "how many steps a failed chaos test prints")

func (c *chaos) tally() string {
	var out []string
	for _, d := range chaosDeeds {
		out = append(out, fmt.Sprintf("%s %d", d.name, c.counts[d.name]))
	}
	return strings.Join(out, ", ") + fmt.Sprint("; what became of it: ", c.became)
}

func (c *chaos) box() *box { return c.boxes[c.rng.IntN(len(c.boxes))] }

// instance is one of the last that were made, the terminated ones among them.
func (c *chaos) instance() string {
	if len(c.ids) == 0 {
		return "i-aaaaaaaaa"
	}
	recent := c.ids[max(0, len(c.ids)-10):]
	return recent[c.rng.IntN(len(recent))]
}

func (c *chaos) span(most time.Duration) time.Duration {
	return time.Duration(c.rng.Int64N(int64(most/time.Second))+1) * time.Second
}

// callPatience is how long the tenant waits for an answer.
const callPatience = 20 * time.Second

// call makes one call of the tenant. unknown: no answer came, so nothing is known
// of what the server did.
func (c *chaos) call(method, path string, in, out any, opts ...api.Option) (said string, ok, unknown bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	lose := c.rng.IntN(20) == 0
	if lose {
		c.link.turn(oneWay)
		defer c.link.turn(fair)
	}
	err = c.tenant.Do(ctx, method, path, in, out, opts...)
	var refused *fault.Error
	switch {
	case err == nil:
		return "accepted", true, false, nil
	case errors.As(err, &refused) && refused.Kind != fault.Internal:
		return refused.Code, false, false, nil
	case errors.As(err, &refused) && c.server.up():
		return "", false, false, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return "no answer", false, true, nil
}

func (c *chaos) create() (string, error) {
	living := 0
	for _, w := range c.wishes {
		if w.state != "terminated" {
			living++
		}
	}
	if living >= 9 {
		return "enough", nil
	}
	c.made++
	text := fmt.Sprintf("#!/bin/sh\n# user-data 0 of %d", c.made)
	data := base64.StdEncoding.EncodeToString([]byte(text))
	in := api.CreateInstance{Name: fmt.Sprint("vm-", c.made), ImageID: c.image, VCPUs: 1 + c.rng.Int64N(3), MemoryBytes: 256 << 20, RootVolumeBytes: 1 << 30, UserData: &data}
	w := &wish{state: "running", userData: []string{text}}
	if c.rng.IntN(3) == 0 {
		in.DesiredState = "running"
		w.desired = "running"
	}
	if c.rng.IntN(3) == 0 {
		in.StartOnNodeBoot = true
		w.onBoot = true
	}
	if c.rng.IntN(3) == 0 {
		in.DataVolumes = []api.DataVolumeInput{{SizeBytes: 1 << 30}}
	}
	// A create that got no answer is sent again with its key, as a client would.
	for range 5 {
		var out api.Instance
		said, ok, unknown, err := c.call("POST", api.InstancePath("default", ""), in, &out, api.IdempotencyKey(in.Name))
		if err != nil || !ok && !unknown {
			return said, err
		}
		if ok {
			c.ids = append(c.ids, out.ID)
			c.wishes[out.ID] = w
			return fmt.Sprint(out.ID, " ", in.VCPUs, " vCPUs, desired ", in.DesiredState, ", on boot ", in.StartOnNodeBoot), nil
		}
		if !c.server.up() {
			if err := c.server.start(); err != nil {
				return "", err
			}
		}
	}
	return "gave up", errors.New("five creates without an answer")
}

// verb asks for something that leads to a state; to none, where the instance is to be
// as it was when it is over.
func (c *chaos) verb(name string, in any, leads string) (string, error) {
	id := c.instance()
	w := c.wishes[id]
	if w == nil {
		return "nobody", nil
	}
	before := c.asked(id, name)
	said, ok, unknown, err := c.call("POST", api.InstancePath("default", id, name), in, nil)
	switch {
	case leads == "":
	case ok && c.asked(id, name) == before: // it was so, or on its way, as far as the server knew
		said = "done"
	case ok && w.state != "terminated":
		w.state = leads
		if name == "stop" && w.onBoot && c.bootUnseen(id) {
			w.state = "" // the boot that starts it again is still to be seen
		}
	case unknown && w.state != "terminated":
		w.state = ""
	}
	return id + " " + said, err
}

// asked is how often the tenant's verb was taken as an order.
func (c *chaos) asked(id, verb string) (n int) {
	events, _ := c.events(id)
	for _, e := range events {
		if e.Actor == "operator" && e.Event == verb {
			n++
		}
	}
	return n
}

func (c *chaos) terminate() (string, error) {
	id := c.instance()
	w := c.wishes[id]
	if w == nil {
		return "nobody", nil
	}
	said, ok, unknown, err := c.call("DELETE", api.InstancePath("default", id), nil, nil)
	if ok {
		w.state = "terminated"
	} else if unknown && w.state != "terminated" {
		w.state, w.perhapsGone = "", true
	}
	return id + " " + said, err
}

func (c *chaos) wish() (string, error) {
	id := c.instance()
	w := c.wishes[id]
	if w == nil {
		return "nobody", nil
	}
	want := []string{"running", "stopped", ""}[c.rng.IntN(3)]
	in := api.PatchInstance{DesiredState: api.Nullable[string]{Set: true, Null: want == "", Value: want}}
	said, ok, unknown, err := c.call("PATCH", api.InstancePath("default", id), in, nil)
	switch {
	case ok:
		if w.desired != want && w.state != "terminated" {
			w.state = "" // what was asked for before may be undone by now
		}
		w.desired = want
	case unknown:
		w.desired = "?"
	}
	return fmt.Sprint(id, " ", want, " ", said), err
}

func (c *chaos) onBoot() (string, error) {
	id := c.instance()
	w := c.wishes[id]
	if w == nil {
		return "nobody", nil
	}
	on := c.rng.IntN(2) == 0
	said, ok, unknown, err := c.call("PATCH", api.InstancePath("default", id), api.PatchInstance{StartOnNodeBoot: &on}, nil)
	if ok && w.onBoot == on {
		return fmt.Sprint(id, " ", on, " as it was"), nil
	}
	if w.onBoot = on && ok; w.state != "terminated" && (ok || unknown) {
		w.state = "" // a boot may be just being seen
	}
	return fmt.Sprint(id, " ", on, " ", said), err
}

// putUserData replaces the user-data, which is taken while the instance is stopped.
func (c *chaos) putUserData() (string, error) {
	id := c.instance()
	w := c.wishes[id]
	if w == nil {
		return "nobody", nil
	}
	c.made++
	text := fmt.Sprintf("#!/bin/sh\n# user-data %d of %s", c.made, id)
	said, ok, unknown, err := c.call("PUT", api.InstancePath("default", id, "user-data"), strings.NewReader(text), nil)
	if ok {
		w.userData = []string{text}
	} else if unknown {
		w.userData = append(w.userData, text)
	}
	return id + " " + said, err
}
