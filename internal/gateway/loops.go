package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/store"
)

// Run drives all background work of the gateway until ctx ends. This is the list
// of what goes on in a gateway by itself:
//
//	leases     every second: takes back the work of hosts that do not renew
//	nonces     every 10 s: forgets those whose created can no longer pass
//	last used  every minute: writes when keys were used
//	forget     every hour: hosts that were silent for long, work that is long over
func (g *Gateway) Run(ctx context.Context) error {
	loops := []struct {
		name  string
		every time.Duration
		once  func(context.Context) error
	}{
		{"leases", time.Second, g.ExpireLeases},
		{"nonces", 10 * time.Second, g.ForgetNonces},
		{"last-used", time.Minute, g.writeLastUsed},
		{"forget", time.Hour, g.Forget},
	}
	done := make(chan struct{})
	for _, l := range loops {
		go func() {
			defer func() { done <- struct{}{} }()
			g.loop(ctx, l.name, l.every, l.once)
		}()
	}
	for range loops {
		<-done
	}
	return g.writeLastUsed(context.WithoutCancel(ctx))
}

// loop runs once at once, then at every tick, one run at a time.
func (g *Gateway) loop(ctx context.Context, name string, every time.Duration, once func(context.Context) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := once(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
			g.log.ErrorContext(ctx, "loop failed; it runs again", "loop", name, "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// batch bounds one transaction of a loop: heartbeats wait behind it.
const batch = 500

// drain runs step until it has nothing left to do, each time in a transaction of
// its own.
func (g *Gateway) drain(ctx context.Context, step func(*store.Tx) (int64, error)) error {
	for {
		var n int64
		err := g.db.Write(ctx, func(tx *store.Tx) (err error) {
			n, err = step(tx)
			return err
		})
		if err != nil || n == 0 {
			return err
		}
	}
}

// ExpireLeases takes back the work of hosts that let their lease end.
func (g *Gateway) ExpireLeases(ctx context.Context) error {
	overdue := false
	err := g.db.Read(ctx, func(tx *store.Tx) error {
		jobs, err := tx.JobsOverdue(1)
		overdue = len(jobs) > 0
		return err
	})
	if err != nil || !overdue {
		return err
	}
	return g.drain(ctx, func(tx *store.Tx) (int64, error) {
		n, err := expire(tx)
		if store.Conflict(err) { // somebody else is at it
			return 0, nil
		}
		return int64(n), err
	})
}

// ForgetNonces forgets those whose created can no longer pass.
func (g *Gateway) ForgetNonces(ctx context.Context) error {
	return g.drain(ctx, func(tx *store.Tx) (int64, error) { return tx.ForgetNonces(batch) })
}

func (g *Gateway) writeLastUsed(ctx context.Context) error {
	used := g.keys.TakeUsed()
	part := make(map[string]time.Time, batch)
	var err error
	flush := func() {
		if len(part) > 0 && err == nil {
			now := part
			err = g.db.Write(ctx, func(tx *store.Tx) error { return tx.TouchKeys(now) })
			part = make(map[string]time.Time, batch)
		}
	}
	for id, at := range used {
		if part[id] = at; len(part) == batch {
			flush()
		}
	}
	flush()
	return err
}

// Forget removes hosts that were silent for KeepHosts and work that ended
// KeepWork ago.
func (g *Gateway) Forget(ctx context.Context) error {
	err := g.drain(ctx, func(tx *store.Tx) (int64, error) {
		return tx.ForgetJobs(tx.Now.Add(-g.o.KeepWork), batch)
	})
	return errors.Join(err, g.forgetHosts(ctx))
}

func (g *Gateway) forgetHosts(ctx context.Context) error {
	for {
		silent := g.now().Add(-g.o.KeepHosts)
		var names []struct{ app, host string }
		err := g.db.Read(ctx, func(tx *store.Tx) error {
			hosts, err := tx.HostsSilentSince(silent, batch)
			for _, h := range hosts {
				names = append(names, struct{ app, host string }{h.AppID, h.Name})
			}
			return err
		})
		if err != nil || len(names) == 0 {
			return err
		}
		err = g.db.Write(ctx, func(tx *store.Tx) error {
			for _, n := range names {
				h, err := tx.Host(n.app, n.host)
				if err == nil && h.SeenAt.Before(silent) {
					err = tx.DeleteHost(n.app, n.host)
				}
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}
