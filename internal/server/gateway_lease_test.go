package server_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
	"github.com/outcrop-cloud/outcrop/internal/limit"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// The work queue as an obvious model: porcupine looks for an order of the
// operations, each within its own time, that the model allows.

const leaseFor, attempts, slots = time.Minute, 2, 2

// leaseOp is what a client did.
type leaseOp struct {
	kind, host, job string
	epoch           int64
	now             time.Time
}

// leaseResult is what it was told.
type leaseResult struct {
	ok    bool
	job   string
	epoch int64
}

type modelJob struct {
	state          string
	epoch, attempt int64
	host           string
	until          time.Time
}

type leaseState map[string]modelJob

// expired is the state once every lease that has ended is taken back.
func (s leaseState) expired(now time.Time) leaseState {
	out := maps.Clone(s)
	for id, j := range out {
		if (j.state == "running" || j.state == "cancelling") && !now.Before(j.until) {
			out[id] = j.failed()
		}
	}
	return out
}

func (j modelJob) failed() modelJob {
	switch {
	case j.state == "cancelling":
		j.state = "cancelled"
	case j.attempt >= attempts:
		j.state = "failed"
	default:
		j.state = "queued"
	}
	return j
}

func (s leaseState) claim(op leaseOp, r leaseResult) (bool, any) {
	held, queued := 0, 0
	for _, j := range s {
		if j.host == op.host && (j.state == "running" || j.state == "cancelling") {
			held++
		}
		if j.state == "queued" {
			queued++
		}
	}
	if r.job == "" {
		return held >= slots || queued == 0, s
	}
	j := s[r.job]
	if j.state != "queued" || held >= slots || r.epoch != j.epoch+1 {
		return false, s
	}
	s[r.job] = modelJob{"running", j.epoch + 1, j.attempt + 1, op.host, op.now.Add(leaseFor)}
	return true, s
}

var leaseModel = porcupine.Model{
	Init:  func() any { return leaseState{} },
	Equal: func(a, b any) bool { return maps.Equal(a.(leaseState), b.(leaseState)) },
	Step: func(state, input, output any) (bool, any) {
		op, r := input.(leaseOp), output.(leaseResult)
		s := state.(leaseState).expired(op.now)
		j, known := s[op.job]
		switch op.kind {
		case "queue":
			s[r.job] = modelJob{state: "queued"}
			return r.ok, s
		case "claim":
			return s.claim(op, r)
		case "cancel":
			if !known {
				return false, s
			}
			switch j.state {
			case "queued":
				j.state = "cancelled"
			case "running":
				j.state = "cancelling"
			case "succeeded", "failed":
				return !r.ok, s
			}
			s[op.job] = j
			return r.ok, s
		}
		mine := (j.state == "running" || j.state == "cancelling") && j.host == op.host && j.epoch == op.epoch
		if !mine || !r.ok {
			return mine == r.ok, s
		}
		switch {
		case op.kind == "renew":
			j.until = op.now.Add(leaseFor)
		case op.kind == "complete" && j.state == "cancelling":
			j.state = "cancelled"
		case op.kind == "complete":
			j.state = "succeeded"
		case op.kind == "fail":
			j = j.failed()
		}
		s[op.job] = j
		return true, s
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// TestLeasesAreLinearizable has hosts and users at one queue at the same time,
// over two servers where the database allows it, while leases run out.
//
// lesson 38
// lesson 39
func TestLeasesAreLinearizable(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		dir, clk := t.TempDir(), newClock()
		fast := func(o *gateway.Options) { o.Rate = limit.Rate{Burst: 1e6, PerSecond: 1e6} }
		servers := []*gw{newGateway(t, o, dir, clk, fast)}
		servers = append(servers, newGateway(t, o, dir, clk, fast))
		app := servers[0].newApp("a")
		k := servers[0].newKey(app, "hosts.ingest", "work.claim", "work.insert", "work.cancel")
		h := &leaseHistory{key: k, clock: clk, begun: time.Now()}
		r := rand.New(rand.NewPCG(7, 8))
		for range 12 {
			for i := range 3 {
				get[api.HeartbeatHost](servers[0], 200, heartbeat(k, beat(fmt.Sprint("h", i), "slotsTotal", slots, "pollSeconds", 3600)))
			}
			var wg sync.WaitGroup
			for client := range 5 {
				seed, e := r.Uint64(), servers[client%2]
				wg.Go(func() { h.client(e, client, rand.New(rand.NewPCG(seed, 1)), 4) })
			}
			wg.Wait()
			clk.step([]time.Duration{0, 25 * time.Second, 61 * time.Second}[r.IntN(3)])
		}
		switch porcupine.CheckOperationsTimeout(leaseModel, h.ops, time.Minute) {
		case porcupine.Illegal:
			for _, op := range h.ops {
				t.Logf("%d %s", op.ClientId, leaseModel.DescribeOperation(op.Input, op.Output))
			}
			t.Error("no order of the operations explains the answers")
		case porcupine.Unknown:
			t.Error("the check did not come to an end")
		}
	})
}

// leaseHistory is what all clients did and were told.
type leaseHistory struct {
	key   key
	clock *clock
	begun time.Time

	mu     sync.Mutex
	ops    []porcupine.Operation
	jobs   []string
	leases []leaseOp // that were given out: host, job, epoch
}

func (h *leaseHistory) client(e *gw, id int, r *rand.Rand, n int) {
	for range n {
		op := h.choose(r)
		op.now = h.clock.now()
		call := time.Since(h.begun)
		result := h.do(e, op)
		back := time.Since(h.begun)
		h.mu.Lock()
		h.ops = append(h.ops, porcupine.Operation{ClientId: id, Input: op, Output: result, Call: int64(call), Return: int64(back)})
		if op.kind == "queue" {
			h.jobs = append(h.jobs, result.job)
		}
		if op.kind == "claim" && result.job != "" {
			h.leases = append(h.leases, leaseOp{host: op.host, job: result.job, epoch: result.epoch})
		}
		h.mu.Unlock()
	}
}

func (h *leaseHistory) choose(r *rand.Rand) leaseOp {
	h.mu.Lock()
	defer h.mu.Unlock()
	kinds := []string{"claim", "claim", "claim", "queue", "cancel", "renew", "complete", "fail"}
	op := leaseOp{kind: kinds[r.IntN(len(kinds))], host: fmt.Sprint("h", r.IntN(3))}
	switch {
	case op.kind == "queue" || op.kind == "claim":
	case len(h.leases) == 0 || op.kind == "cancel" && len(h.jobs) == 0:
		op.kind = "queue"
	case op.kind == "cancel":
		op.job = h.jobs[r.IntN(len(h.jobs))]
	default: // some lease, old or new
		l := h.leases[max(0, len(h.leases)-1-r.IntN(6))]
		op.host, op.job, op.epoch = l.host, l.job, l.epoch
	}
	return op
}

func (h *leaseHistory) do(e *gw, op leaseOp) (out leaseResult) {
	body := map[string]any{"host": op.host, "leaseEpoch": op.epoch}
	path := "/v1/work/" + op.job + "/" + op.kind
	switch op.kind {
	case "queue":
		path, body = "/v1/work", map[string]any{"command": []string{"x"}, "maxAttempts": attempts}
	case "claim":
		path, body = "/v1/work/claims", map[string]any{"host": op.host}
	case "cancel":
		body = nil
	case "complete":
		body["exitCode"] = 0
	case "fail":
		body["message"] = "m"
	}
	a := e.do(request{method: "POST", path: path, key: h.key, body: body})
	var got struct {
		Data *struct {
			ID         string
			LeaseEpoch int64
		}
	}
	_ = json.Unmarshal(a.body, &got)
	if out.ok = a.status < 300; !out.ok && !slices.Contains([]string{"lease_lost", "work_finished"}, a.code()) {
		e.t.Errorf("%+v: %s", op, &a)
	}
	if got.Data != nil && (op.kind == "queue" || op.kind == "claim") {
		out.job, out.epoch = got.Data.ID, got.Data.LeaseEpoch
	}
	return out
}
