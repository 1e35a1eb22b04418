package control_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
)

var (
	fleetNodes = flag.Int("fleet.nodes", 10_000, "nodes of the test of a fleet in virtual time; 1,000 with -short")
	fleetCalm  = flag.Duration("fleet.calm", 15*time.Minute, "how long nothing happens in it, virtual time")
	fleetSeed  = flag.Uint64("fleet.seed", 0, "its seed; 0 draws one")
)

// beatEvery is the interval that the server tells its nodes (contract N-06).
const beatEvery = time.Minute

// Bounds of what is promised: a node is suspect after one and a half intervals and
// unreachable after three, no earlier, and placement knows it a sweep later.
const (
	suspectAfter     = beatEvery * 3 / 2
	unreachableAfter = beatEvery * compute.MissedIntervals
	sweep            = 5 * time.Second
)

// ticker is a node that beats: a clock of its own, and a moment of its next beat.
type ticker struct {
	id         string
	skew       time.Duration
	head, tail []byte // of its heartbeat, around the moment of the sample
	next       time.Time
	seen       time.Time     // its last beat that was answered
	quiet      time.Duration // how long it had been silent then
	cut        bool          // from the server
	seenAs     compute.LivenessStatus
}

// tickers are a fleet in virtual time: the test moves the clock of the server, and
// the nodes beat when their time has come.
type tickers struct {
	t     *testing.T
	s     *apptest.System
	rng   *rand.Rand
	nodes []*ticker
	byID  map[string]*ticker
	up    time.Time // when the server began to listen

	beats    int
	spent    time.Duration // real time of all beats
	falsely  map[string]int
	suspect  []time.Duration // from the last beat until placement knew
	lost     []time.Duration // likewise: unreachable
	scans    int
	scanning time.Duration // real time of all scans
}

// 10,000 nodes that beat every minute, on the real store and the real rules: a
// restart of the server, long and short, half of the fleet cut off, clocks that are
// a day off, and all coming back at once. Nobody who beats is ever held for late, and
// who does not is found in time, not earlier.
//
// contract: N-06 N-23
// lesson 1, lesson 2, lesson 5
func TestFleetInVirtualTime(t *testing.T) {
	n := *fleetNodes
	if testing.Short() || apptest.Race {
		n = min(n, 1000)
	}
	seed := *fleetSeed
	if seed == 0 {
		seed = 1 + rand.Uint64N(1<<32)
	}
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		t.Setenv("TMPDIR", "/dev/shm") // virtual time waits for every write that a disk has to have
	}
	f := newTickers(t, n, seed)
	t.Logf("%d nodes, a beat per %v, -fleet.seed=%d", n, beatEvery, seed)

	f.step("the first beats, within a minute", time.Minute, time.Second)
	f.step("calm", *fleetCalm, 5*time.Second)
	f.show("calm")
	f.skews()

	f.restart("a short restart", 20*time.Second)
	f.step("reconnect", 10*time.Second, time.Second)
	f.show("after the short restart")
	f.step("after it", 4*time.Minute, 5*time.Second)

	// A tenth dies while the server is away for longer than anybody may be silent.
	for _, k := range f.nodes[:n/10] {
		k.cut = true
	}
	f.restart("a long restart", 20*time.Minute)
	f.step("reconnect", 10*time.Second, time.Second)
	f.show("after the long restart")
	f.step("until the dead are found", 4*time.Minute, time.Second)
	f.found("dead since before the restart", n/10)
	f.heal()
	f.step("their return", 10*time.Second, time.Second)

	for i, k := range f.nodes {
		k.cut = i%2 == 0
	}
	f.step("half of them partitioned", 4*time.Minute, time.Second)
	f.show("partitioned")
	f.found("partitioned half", (n+1)/2)
	f.heal()
	f.step("reconnect storm", 10*time.Second, time.Second)
	f.show("after the storm")
	f.step("after it", 5*time.Minute, 5*time.Second)
	f.show("at the end")
	t.Logf("in all %d beats in %v of real time, %.0f per second", f.beats, f.spent.Round(time.Millisecond), float64(f.beats)/f.spent.Seconds())
	for what, count := range f.falsely {
		t.Errorf("%d nodes were seen as %s, who were not", count, what)
	}
	t.Logf("false suspects and false unreachables: %d in %d scans of all nodes (%v each)", len(f.falsely), f.scans, (f.scanning / time.Duration(f.scans)).Round(time.Microsecond))
}

func newTickers(t *testing.T, n int, seed uint64) *tickers {
	f := &tickers{t: t, s: apptest.Start(t, apptest.Options{}), rng: rand.New(rand.NewPCG(seed, 0)), byID: map[string]*ticker{}, falsely: map[string]int{}}
	f.up = f.s.Clock.Now()
	skews := []time.Duration{0, 24 * time.Hour, -24 * time.Hour, 10 * time.Second}
	for i := range n {
		k := &ticker{id: fmt.Sprintf("node-%05d", i), skew: skews[i%len(skews)], seenAs: compute.LivenessOK}
		h := apptest.Machine(k.id)
		mark := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
		h.Capacity.SampledAt = &mark
		body, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		k.head, k.tail, _ = bytes.Cut(body, []byte(mark.Format(time.RFC3339Nano)))
		k.next = f.up.Add(time.Duration(f.rng.Int64N(int64(beatEvery))))
		f.nodes = append(f.nodes, k)
		f.byID[k.id] = k
	}
	return f
}

// within is a moment in the next d.
func (f *tickers) within(d time.Duration) time.Time {
	return f.s.Clock.Now().Add(time.Duration(f.rng.Int64N(int64(d))))
}

// step lets time pass in small steps, in which those beat whose time has come, and
// looks at all of them after each.
func (f *tickers) step(what string, d, every time.Duration) {
	f.t.Helper()
	began, beats, spent := time.Now(), f.beats, f.spent
	for range d / every {
		f.s.Clock.Advance(every)
		f.beat()
		f.scan()
	}
	beats, spent = f.beats-beats, f.spent-spent
	f.t.Logf("%-32s %6v of virtual time in %v: %d beats, %.0f per second", what, d, time.Since(began).Round(time.Millisecond), beats, float64(beats)/spent.Seconds())
}

// beat lets all beat whose time has come, side by side. The next beat comes after an
// interval, a tenth more or less, as with the real agent.
func (f *tickers) beat() {
	now := f.s.Clock.Now()
	var due []*ticker
	for _, k := range f.nodes {
		if !k.cut && !k.next.After(now) {
			due = append(due, k)
			k.next = k.next.Add(beatEvery - beatEvery/10 + time.Duration(f.rng.Int64N(int64(beatEvery/5))))
		}
	}
	began := time.Now()
	var all sync.WaitGroup
	for part := range slices.Chunk(due, max(1, len(due)/128)) {
		all.Go(func() {
			for _, k := range part {
				f.send(k, now)
			}
		})
	}
	all.Wait()
	f.beats += len(due)
	f.spent += time.Since(began)
}

func (f *tickers) send(k *ticker, now time.Time) {
	body := slices.Concat(k.head, now.Add(k.skew).AppendFormat(nil, time.RFC3339Nano), k.tail)
	_, err := f.s.Control.Heartbeat(f.t.Context(), iam.Caller{Role: iam.Node, NodeID: k.id}, k.id, body)
	if err != nil {
		f.t.Errorf("%s: %v", k.id, err)
	}
	k.quiet, k.seen = now.Sub(f.judgedFrom(k)), now
}

// scan looks at all nodes as placement does, and holds each to the promise.
func (f *tickers) scan() {
	began, now := time.Now(), f.s.Clock.Now()
	err := f.s.Control.EachNode(f.t.Context(), func(n *schedule.Node) {
		k := f.byID[n.ID]
		quiet := now.Sub(f.judgedFrom(k))
		if n.Liveness != compute.LivenessOK && quiet < sweep { // it is back, and placement looks every few seconds
			quiet = max(quiet, k.quiet)
		}
		switch {
		case n.Liveness == compute.LivenessSuspect && quiet <= suspectAfter, n.Liveness == compute.LivenessUnreachable && quiet <= unreachableAfter:
			f.falsely[string(n.Liveness)]++
		case n.Liveness == k.seenAs:
			if late := sweep + 2*time.Second; n.Liveness == compute.LivenessOK && quiet > suspectAfter+late || n.Liveness == compute.LivenessSuspect && quiet > unreachableAfter+late {
				f.t.Fatalf("%s is silent for %v and still %s", k.id, quiet, n.Liveness)
			}
			return
		case n.Liveness == compute.LivenessOK:
		case n.Liveness == compute.LivenessSuspect:
			f.suspect = append(f.suspect, quiet)
		case n.Liveness == compute.LivenessUnreachable:
			f.lost = append(f.lost, quiet)
		}
		k.seenAs = n.Liveness
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.scans++
	f.scanning += time.Since(began)
}

// judgedFrom is the moment from which a node's silence counts: nobody is judged for
// the time in which nobody listened.
func (f *tickers) judgedFrom(k *ticker) time.Time {
	if k.seen.Before(f.up) {
		return f.up
	}
	return k.seen
}

// restart takes the server away for a while; then all who can come back within 5 s
// (contract N-06).
func (f *tickers) restart(what string, away time.Duration) {
	f.s.Stop()
	f.s.Clock.Advance(away)
	f.s.Restart()
	f.up = f.s.Clock.Now()
	for _, k := range f.nodes {
		k.next, k.quiet, k.seenAs = f.within(5*time.Second), 0, compute.LivenessOK
	}
	f.t.Logf("%-32s %6v", what, away)
}

// heal lets those who were cut off come back within 5 s.
func (f *tickers) heal() {
	for _, k := range f.nodes {
		if k.cut {
			k.cut, k.next = false, f.within(5*time.Second)
		}
	}
}

// show reads the list as an operator does; it has to say of every node what follows
// from when it was last heard of.
func (f *tickers) show(when string) {
	f.t.Helper()
	began, count := time.Now(), map[string]int{}
	f.list(func(v *api.Node, now time.Time) {
		k := f.byID[v.ID]
		want := compute.LivenessOK
		switch quiet := now.Sub(f.judgedFrom(k)); {
		case quiet > unreachableAfter:
			want = compute.LivenessUnreachable
		case quiet > suspectAfter:
			want = compute.LivenessSuspect
		}
		count[v.Liveness.Status]++
		if v.Liveness.Status != string(want) {
			f.falsely[v.Liveness.Status+" "+when]++
		}
	})
	f.t.Logf("%-32s the list shows %v, read in %v", when, count, time.Since(began).Round(time.Millisecond))
}

func (f *tickers) list(each func(v *api.Node, now time.Time)) {
	f.t.Helper()
	for p := (control.Page{Limit: control.MaxLimit}); ; {
		page, err := f.s.Control.ListNodes(f.t.Context(), iam.System, p)
		if err != nil {
			f.t.Fatal(err)
		}
		now := f.s.Clock.Now()
		for i := range page.Items {
			each(&page.Items[i], now)
		}
		if p.Cursor = page.NextCursor; p.Cursor == "" {
			return
		}
	}
}

// skews: a clock that is off is shown and found, and nothing else follows from it.
func (f *tickers) skews() {
	f.t.Helper()
	found := 0
	f.list(func(v *api.Node, _ time.Time) {
		k := f.byID[v.ID]
		has := slices.ContainsFunc(v.Findings, func(x api.Finding) bool { return x.Code == "ClockSkew" })
		if has {
			found++
		}
		shown := v.Liveness.ClockSkewMS
		if has != (k.skew.Abs() > 30*time.Second) || shown == nil || (time.Duration(*shown)*time.Millisecond-k.skew).Abs() > time.Second || v.Liveness.Status != "ok" {
			f.t.Errorf("%s is %v off: finding %v, shown %v, %s", v.ID, k.skew, has, shown, v.Liveness.Status)
		}
	})
	f.t.Logf("%d nodes with a clock that is a day off: found, shown, and ok", found)
}

// found tells how long it took until placement knew of those who fell silent.
func (f *tickers) found(what string, n int) {
	f.t.Helper()
	for _, d := range []struct {
		as    string
		after []time.Duration
		from  time.Duration
	}{{"suspect", f.suspect, suspectAfter}, {"unreachable", f.lost, unreachableAfter}} {
		if len(d.after) != n {
			f.t.Errorf("%s: %d of %d were seen as %s", what, len(d.after), n, d.as)
			continue
		}
		slices.Sort(d.after)
		f.t.Logf("%-32s %d %s after min %v, p50 %v, max %v of silence (promise: %v)", what, n, d.as,
			d.after[0].Round(time.Millisecond), d.after[n/2].Round(time.Millisecond), d.after[n-1].Round(time.Millisecond), d.from)
	}
	f.suspect, f.lost = nil, nil
}
