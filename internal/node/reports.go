package node

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// reports keeps the latest word of each guest's agent until the server has it.
type reports struct {
	poke chan struct{} // capacity 1: there is something to send

	mu      sync.Mutex
	pending map[string]heard
}

// heard is one heartbeat and when it came.
type heard struct {
	beat api.AgentHeartbeat
	at   time.Time
}

func newReports() *reports {
	return &reports{poke: make(chan struct{}, 1), pending: map[string]heard{}}
}

// take keeps a heartbeat. A code that the server has not got yet is not lost by a
// later heartbeat without one.
func (r *reports) take(id string, h api.AgentHeartbeat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.InstallCode == "" {
		h.InstallCode = r.pending[id].beat.InstallCode
	}
	r.pending[id] = heard{h, time.Now()}
	nudge(r.poke)
}

// batch is what is pending, as a message of this moment.
func (r *reports) batch(now time.Time) (api.AgentReports, map[string]heard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var m api.AgentReports
	for _, id := range slices.Sorted(maps.Keys(r.pending)) {
		h := r.pending[id]
		age := max(0, now.Sub(h.at).Milliseconds())
		m.Reports = append(m.Reports, api.AgentReport{
			InstanceID: id, AgeMS: age, Version: h.beat.Version,
			ReconcileResult: h.beat.ReconcileResult, ReconcileAgeMS: age,
			InstallCode: h.beat.InstallCode, Boot: h.beat.Boot,
		})
	}
	return m, maps.Clone(r.pending)
}

// sent drops what the server has, unless there is a newer word meanwhile.
func (r *reports) sent(batch map[string]heard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, h := range batch {
		now, ok := r.pending[id]
		switch {
		case !ok:
		case now.at.Equal(h.at):
			delete(r.pending, id)
		case now.beat.InstallCode == h.beat.InstallCode:
			now.beat.InstallCode = ""
			r.pending[id] = now
		}
	}
}

const (
	reportApart   = 5 * time.Second // the least time between two batches
	reportTimeout = 10 * time.Second
)

// sendReports passes on what guests' agents say, in batches, until the server has
// it. A batch that it does not understand is dropped: it would stand in the way of
// all that follow.
func (a *agent) sendReports(ctx context.Context) {
	pace := newPace(a.log, "report of guest agents")
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.reports.poke:
		}
		next := reportApart
		message, batch := a.reports.batch(time.Now())
		if len(batch) == 0 {
			continue
		}
		call, cancel := context.WithTimeout(ctx, reportTimeout)
		err := a.up.Do(call, http.MethodPost, a.path("agent-reports"), message, nil)
		cancel()
		if err == nil {
			pace.worked()
		}
		if err == nil || fault.Is(err, fault.Invalid) {
			a.reports.sent(batch)
		}
		if err != nil && ctx.Err() == nil {
			next = max(next, pace.failed(err))
			nudge(a.reports.poke)
		}
		if !sleep(ctx, next) {
			return
		}
	}
}
