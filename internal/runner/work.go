package runner

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

// claimFor is how long one request for work is sent again until it is answered.
// The gateway gives the same answer to the same request, so that no job is lost
// with an answer.
const claimFor = 20 * time.Second

// askForWork asks every poll, and at once after a job came or ended, until ctx
// ends.
func (r *runner) askForWork(ctx context.Context) {
	for {
		for r.mayAsk() && r.askOnce(ctx) {
		}
		if !pause(ctx, jitter(r.cfg.Poll), r.wake) {
			return
		}
		r.sweep(ctx)
	}
}

// mayAsk reports whether there is a slot and nothing in the way, here and as the
// gateway knows it.
func (r *runner) mayAsk() bool {
	found := r.checks.current()
	r.mu.Lock()
	free := r.cfg.Slots - len(r.jobs)
	r.mu.Unlock()
	return free > 0 && found.blocked == "" && found.lowDisk == nil && r.heart.fresh()
}

// askOnce makes one request for work and begins what it brings. It reports
// whether to ask again at once.
func (r *runner) askOnce(ctx context.Context) bool {
	w, sent, err := r.claim(ctx)
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		// Only what the platform answered goes into the next heartbeat.
		r.heart.tell(&api.WorkRequest{Code: cut(refused.Code, 100), Message: cut(refused.Message, 500)})
		r.log.Warn("a request for work was refused", "error", err)
		return false
	case err != nil:
		if ctx.Err() == nil {
			r.log.Warn("a request for work failed", "error", err)
		}
		return false
	}
	r.heart.tell(&api.WorkRequest{OK: true})
	if w == nil {
		return false
	}
	r.begin(ctx, w, sent)
	return true
}

// claim asks for a job. sent is when the lease began to count.
func (r *runner) claim(ctx context.Context) (w *api.ClaimedWork, sent time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, claimFor)
	defer cancel()
	memory, disk := r.cfg.SlotMemory, r.checks.current().free
	in := api.ClaimWork{Host: r.id.Host, MemoryBytes: &memory, DiskBytes: &disk}
	key := rand.Text()
	sent = r.clock.boot()
	delay := backoff{first: 500 * time.Millisecond, most: 5 * time.Second}
	for {
		var out api.ClaimAnswer
		err = r.client.post(ctx, "/v1/work/claims", in, &out, "Idempotency-Key", key)
		if err == nil {
			return out.Data, sent, checkClaim(out.Data)
		}
		var refused *refusal
		if errors.As(err, &refused) && refused.Status < 500 || !pause(ctx, delay.next(err), nil) {
			return nil, 0, err
		}
	}
}

// checkClaim refuses what no gateway should answer: the id becomes part of paths.
func checkClaim(w *api.ClaimedWork) error {
	if w != nil && (fleet.CanonicalID(w.ID) != w.ID || len(w.Command) == 0 || w.LeaseEpoch < 1 || w.LeaseSeconds < 1) {
		return errors.New("the gateway answered a job that makes no sense; is it one?")
	}
	return nil
}

// begin runs a claimed job beside the others.
func (r *runner) begin(ctx context.Context, w *api.ClaimedWork, sent time.Duration) {
	j := newRunning(r, w, sent)
	r.mu.Lock()
	r.jobs[j.Key()] = j
	r.mu.Unlock()
	r.ended.Go(func() {
		j.run(context.WithoutCancel(ctx)) // it outlives the order to stop, see drain
		r.mu.Lock()
		delete(r.jobs, j.Key())
		r.mu.Unlock()
		r.wake.send()
	})
}

// job is what the engine gets: the work with what the host adds to it.
func (r *runner) job(w *api.ClaimedWork) (*Job, error) {
	j := &Job{ID: w.ID, Epoch: w.LeaseEpoch, Command: append(append([]string{}, r.cfg.Command...), w.Command...), Env: map[string]string{},
		Image: w.Image, MemoryBytes: w.MemoryBytes, DiskBytes: w.DiskBytes, TimeoutSeconds: w.TimeoutSeconds, Output: newOutput()}
	if j.MemoryBytes == 0 {
		j.MemoryBytes = r.cfg.SlotMemory
	}
	for name, path := range r.cfg.Credentials {
		b, err := readOwn(path)
		if err != nil {
			return j, fmt.Errorf("the credential %s: %w", name, err)
		}
		j.Env[name] = strings.TrimSpace(string(b))
	}
	maps.Copy(j.Env, w.Env)
	return j, nil
}
