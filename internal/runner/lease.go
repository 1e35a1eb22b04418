package runner

import (
	"context"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// lease is the right to run a job. It counts from when its last renewal was sent,
// by a clock that goes on while the machine sleeps.
type lease struct {
	mu    sync.Mutex
	until time.Duration // boot
}

func (l *lease) over(now time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now >= l.until
}

// watchLease ends the job when its lease is over, whatever else hangs.
func (j *running) watchLease(ctx context.Context, release context.CancelCauseFunc) {
	for {
		if j.lease.over(j.r.clock.boot()) {
			release(ErrLeaseLost)
			return
		}
		if !pause(ctx, 250*time.Millisecond, nil) {
			return
		}
	}
}

// keepLease renews while ctx lives, so also while the end is being reported.
func (j *running) keepLease(ctx context.Context, release context.CancelCauseFunc) {
	every := time.Duration(max(j.work.RenewSeconds, 1)) * time.Second
	delay := backoff{first: 500 * time.Millisecond, most: 5 * time.Second}
	wait := every
	for pause(ctx, wait, nil) {
		answer, err := j.renew(ctx)
		switch {
		case err == nil:
			delay.reset()
			wait = time.Duration(max(answer.RenewSeconds, 1)) * time.Second
			if answer.Cancel {
				j.end(errCancelled)
			}
		case lost(err):
			release(ErrLeaseLost)
			return
		default:
			wait = delay.next(err)
		}
	}
}

// lost reports whether the gateway says that the job is another's, or gone.
func lost(err error) bool {
	return refusedWith(err, codeLost) || refusedWith(err, codeNotFound)
}

// renew sends one renewal. That the command gets on is another thing than that its
// host is alive: only new output counts (lesson 38).
func (j *running) renew(ctx context.Context) (api.RenewedWork, error) {
	written := j.Output.Written()
	in := api.RenewWork{Host: j.r.id.Host, LeaseEpoch: j.Epoch, Progressed: written > j.told}
	sent := j.r.clock.boot()
	var out api.Data[api.RenewedWork]
	if err := j.send(ctx, "renew", in, &out); err != nil {
		return out.Data, err
	}
	j.told = written
	j.lease.mu.Lock()
	defer j.lease.mu.Unlock()
	if out.Data.LeaseSeconds > 0 {
		j.lease.until = sent + time.Duration(out.Data.LeaseSeconds)*time.Second
	}
	return out.Data, nil
}
