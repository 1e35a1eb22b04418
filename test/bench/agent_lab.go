package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// chain is the way from create to the agent's first heartbeat at the server, one
// step after the other: together they are the whole time.
var chain = []string{
	"create and placement",
	"the desired set comes to the node",
	"node: image", "node: volume", "node: cidata", "node: interface", "node: define", "node: claim", "node: boot",
	"node: between its steps",
	"guest: firmware and kernel, to userland",
	"guest: network, to the agent's start",
	"agent: first report, to the node",
	"the node's word comes to the server",
}

// guestsOwn are the steps that are the guest's alone.
const guestsOwn = "guest: "

// measureAgent launches an instance with the agent again and again.
func (l *launchLab) measureAgent(ctx context.Context) (r result, err error) {
	if _, err := l.heartbeat(ctx); err != nil { // waits for the hypervisor's probe, and fetches the image
		return r, err
	}
	took := map[string][]float64{}
	var totals, own, ratios []float64
	for range l.Rounds {
		steps, err := l.heartbeat(ctx)
		if err != nil {
			return r, err
		}
		var total, guest time.Duration
		for name, d := range steps {
			took[name] = append(took[name], float64(d.Microseconds())/1000)
			if total += d; strings.HasPrefix(name, guestsOwn) {
				guest += d
			}
		}
		totals, own, ratios = append(totals, total.Seconds()), append(own, guest.Seconds()), append(ratios, total.Seconds()/guest.Seconds())
	}
	r = result{Name: "agent", Value: median(totals), Unit: "s", Reference: median(own), Ratio: median(ratios), Better: lower,
		Against: "the guest's own part of it, from firmware to its network", Rounds: l.Rounds}
	var sum float64
	for _, name := range chain {
		sum += median(took[name])
	}
	for _, name := range chain {
		ms := median(took[name])
		r.Steps = append(r.Steps, share{name, ms, 100 * ms / sum})
	}
	return r, nil
}

// heartbeat launches one instance, waits until the server has its agent's first
// heartbeat, and ends it. Server, node and this program are on one machine, so
// their clocks are one.
func (l *launchLab) heartbeat(ctx context.Context) (map[string]time.Duration, error) {
	yes := true
	in := api.CreateInstance{Name: "bench", ImageID: l.imageID, VCPUs: 1, MemoryBytes: 128 << 20, AgentEnabled: &yes}
	var i api.Instance
	begun := time.Now()
	if err := l.client.Do(ctx, http.MethodPost, instances, in, &i); err != nil {
		return nil, err
	}
	console := filepath.Join(l.Dir, "node", "instances", i.ID, "console.log")
	userland, err := firstText(ctx, console, userland)
	if err != nil {
		return nil, err
	}
	agent, err := firstText(ctx, console, []byte("outcrop-micro: agent begin"))
	if err != nil {
		return nil, err
	}
	var known time.Time
	if err := until(ctx, 2*time.Minute, "the agent's heartbeat at the server", func() (bool, error) {
		err := l.client.Do(ctx, http.MethodGet, instances+"/"+i.ID, nil, &i)
		known = time.Now()
		return i.AgentStatus.LastHeartbeatAt != nil, err
	}); err != nil {
		return nil, err
	}
	placed, err := l.placedAt(ctx, i.ID)
	if err != nil {
		return nil, err
	}
	steps, first, last, err := nodeSteps(l.nodeLog(), i.ID)
	if err != nil {
		return nil, err
	}
	out := map[string]time.Duration{}
	for name, d := range steps {
		out["node: "+name] = d
		out["node: between its steps"] -= d
	}
	out["node: between its steps"] += last.Sub(first)
	out["create and placement"] = placed.Sub(begun)
	out["the desired set comes to the node"] = first.Sub(placed)
	out["guest: firmware and kernel, to userland"] = userland.Sub(last)
	out["guest: network, to the agent's start"] = agent.Sub(userland)
	out["agent: first report, to the node"] = i.AgentStatus.LastHeartbeatAt.Sub(agent)
	out["the node's word comes to the server"] = known.Sub(*i.AgentStatus.LastHeartbeatAt)
	return out, l.end(ctx, i.ID)
}

// firstText is when a text came into a file.
func firstText(ctx context.Context, file string, text []byte) (at time.Time, err error) {
	err = until(ctx, 2*time.Minute, string(text)+" on the console", func() (bool, error) {
		b, err := os.ReadFile(file)
		at = time.Now()
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return bytes.Contains(b, text), err
	})
	return at, err
}

// placedAt is when the server chose the node.
func (l *launchLab) placedAt(ctx context.Context, id string) (time.Time, error) {
	var events api.List[api.Event]
	if err := l.client.Do(ctx, http.MethodGet, instances+"/"+id+"/events", nil, &events); err != nil {
		return time.Time{}, err
	}
	for _, e := range events.Items {
		if e.Event == "placed" {
			return e.At, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s was placed, and no event says when", id)
}

// stepDone is a line of the node agent's log.
var stepDone = regexp.MustCompile(`^time=(\S+) .*msg="step done" .*instance=(\S+) step=(\S+) .*took=(\S+)`)

// nodeSteps reads what each step of a launch took, when the first began and when
// the VM ran.
func nodeSteps(log []byte, id string) (steps map[string]time.Duration, first, ran time.Time, err error) {
	steps = map[string]time.Duration{}
	for s := bufio.NewScanner(bytes.NewReader(log)); s.Scan(); {
		m := stepDone.FindStringSubmatch(s.Text())
		if m == nil || m[2] != id {
			continue
		}
		at, err1 := time.Parse(time.RFC3339Nano, m[1])
		took, err2 := time.ParseDuration(m[4])
		if err := errors.Join(err1, err2); err != nil {
			return nil, first, ran, err
		}
		if first.IsZero() {
			first = at.Add(-took)
		}
		steps[m[3]] = took
		if m[3] == "boot" {
			return steps, first, at, nil
		}
	}
	return nil, first, ran, fmt.Errorf("the node's log does not tell that %s was booted", id)
}
