package control

import (
	"context"
	"errors"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// Run drives all background work of the compute API until ctx ends. This is the
// list of what goes on in a server by itself:
//
//	placement   every 10 s and at every nudge: gives waiting instances a node
//	deadlines   every 5 s: ends transitional states that took too long
//	converge    every 10 s and at every change of a wish: state towards desiredState
//	power       every 5 s: a node that was told to shut down and is silent is off
//	migrations  every 5 s: gives up those whose nodes cannot finish them
//	drains      every 5 s and at every report: moves on what is drained
//	audit       every 5 min: compares allocations, instances and nodes' reports, and mends
//	last used   every minute: writes when tokens were used
//	forget      every 10 min: old answers, terminated instances, files without an image
func (c *Control) Run(ctx context.Context) error {
	if err := errors.Join(c.sweepImages(ctx), c.countNodes(ctx)); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop while it began
		}
		return err
	}
	loops := []loop{
		{"placement", 10 * time.Second, c.place, c.placeWaiting},
		{"deadlines", 5 * time.Second, nil, c.expire},
		{"converge", 10 * time.Second, c.converge, c.convergeDesired},
		{"power", 5 * time.Second, nil, c.judgeNodes},
		{"audit", auditEvery, nil, c.auditOnce},
		{"migrations", 5 * time.Second, nil, c.tendMoves},
		{"drains", 5 * time.Second, c.drain, c.driveDrains},
		{"last-used", time.Minute, nil, c.writeLastUsed},
		{"forget", 10 * time.Minute, nil, c.forget},
	}
	done := make(chan struct{})
	for _, l := range loops {
		go func() {
			defer func() { done <- struct{}{} }()
			l.run(ctx, c)
		}()
	}
	for range loops {
		<-done
	}
	// The last word of every token that was used is still worth a write.
	return c.writeLastUsed(context.WithoutCancel(ctx))
}

// loop runs once at once, then at every tick and nudge, one run at a time.
type loop struct {
	name  string
	every time.Duration
	nudge *nudge
	once  func(context.Context) error
}

func (l loop) run(ctx context.Context, c *Control) {
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	var poked chan struct{}
	if l.nudge != nil {
		poked = l.nudge.c
	}
	for {
		if err := l.once(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
			c.log.ErrorContext(ctx, "loop failed; it runs again", "loop", l.name, "err", err)
		}
		select {
		case <-tick.C:
		case <-poked:
		case <-ctx.Done():
			return
		}
	}
}

// expireBatch is how many overdue instances are read at once.
const expireBatch = 500

// expire ends transitional states whose deadline has passed. An instance on a
// node that nobody hears of keeps its intent (contract U-21), and a node that was away
// has its time anew. Of several servers the one that the node syncs with judges. So
// many waiting ones there may be, none keeps the others from being looked at.
func (c *Control) expire(ctx context.Context) (err error) {
	reachable := map[string]bool{}
	for after := (store.Cursor{}); ; {
		overdue, rerr := c.overdue(ctx, after, reachable)
		if rerr != nil {
			return errors.Join(err, rerr)
		}
		for _, i := range overdue {
			after = store.After(i.Deadline, i.ID)
			heard, ok := c.obs.heard(i.NodeID, c.now())
			if i.NodeID != "" && (!ok || !reachable[i.NodeID]) {
				continue
			}
			_, cerr := c.change(ctx, iam.System, iam.UpdateInstance, i.ProjectID, i.ID, func(tx *store.Tx, i *store.Instance) (string, error) {
				if i.Expire(tx.Now, heard) {
					return "deadline", nil
				}
				return "", nil
			})
			if cerr != nil && !fault.Is(cerr, fault.NotFound) { // gone meanwhile
				err = errors.Join(err, cerr)
			}
		}
		if len(overdue) < expireBatch {
			return err
		}
	}
}

// overdue reads the next overdue instances, and which of their nodes are heard of.
func (c *Control) overdue(ctx context.Context, after store.Cursor, reachable map[string]bool) (out []store.Instance, err error) {
	return out, c.db.Read(ctx, func(tx *store.Tx) (err error) {
		if out, err = tx.OverdueInstances(after, expireBatch); err != nil {
			return err
		}
		for _, i := range out {
			if _, known := reachable[i.NodeID]; !known && i.NodeID != "" {
				n, err := tx.Node(i.NodeID)
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					return err
				}
				reachable[i.NodeID] = err == nil && c.reachable(&n, tx.Now)
			}
		}
		return nil
	})
}

// restartAfter is how long an instance stays in error before its desiredState starts
// or stops it again, so that one that crashes at once does not spin.
const restartAfter = time.Minute

// convergeDesired starts and stops what is not as the operator asked for
// (contract U-16). Of several servers one does it.
func (c *Control) convergeDesired(ctx context.Context) error {
	var todo []store.Instance
	err := c.db.Read(ctx, func(tx *store.Tx) (err error) {
		todo, err = tx.InstancesToConverge(tx.Now.Add(-restartAfter), 500)
		return err
	})
	if err != nil || len(todo) == 0 {
		return err
	}
	leads := false
	if err := c.db.Write(ctx, func(tx *store.Tx) (err error) {
		leads, err = tx.Lead("converge", c.name, tx.Now.Add(30*time.Second))
		return err
	}); err != nil || !leads {
		return err
	}
	for _, i := range todo {
		var verr error
		if i.Spec.DesiredState == "running" {
			_, verr = c.StartInstance(ctx, iam.System, i.ProjectID, i.ID, api.StartInstance{})
		} else {
			_, verr = c.StopInstance(ctx, iam.System, i.ProjectID, i.ID, api.StopInstance{})
		}
		// It may have moved on since it was read; then there is nothing to do.
		if verr != nil && !fault.HasCode(verr, fault.InvalidState) && !fault.HasCode(verr, fault.NodeNotUp) && !fault.Is(verr, fault.NotFound) {
			err = errors.Join(err, verr)
		}
	}
	return err
}

func (c *Control) reachable(n *compute.Node, now time.Time) bool {
	status, _ := n.Liveness.Status(now, c.since, c.o.HeartbeatInterval)
	return status != compute.LivenessUnreachable
}

func (c *Control) writeLastUsed(ctx context.Context) error {
	used := c.keys.TakeUsed()
	if len(used) == 0 {
		return nil
	}
	return c.db.Write(ctx, func(tx *store.Tx) error { return tx.TouchTokens(used) })
}

// forgetBatch bounds what one run removes of what many callers can write.
const forgetBatch = 1000

func (c *Control) forget(ctx context.Context) error {
	err := c.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.ForgetAnswers(tx.Now.Add(-rememberFor)); err != nil {
			return err
		}
		if _, err := tx.ForgetJoins(tx.Now.Add(-time.Hour), tx.Now.Add(-compute.JoinKept)); err != nil {
			return err
		}
		if _, err := tx.ForgetCredentials(tx.Now.Add(-2 * compute.JoinWaits)); err != nil {
			return err
		}
		if _, err := tx.ForgetNonces(forgetBatch); err != nil {
			return err
		}
		if err := tx.ForgetWakes(); err != nil {
			return err
		}
		if err := tx.ForgetReleased(tx.Now.Add(-vpc.LeaseTime)); err != nil {
			return err
		}
		_, err := tx.PurgeTerminated(tx.Now.Add(-compute.TerminatedListed))
		return err
	})
	return errors.Join(err, c.sweepImages(ctx))
}

func (c *Control) countNodes(ctx context.Context) error {
	return c.db.Read(ctx, func(tx *store.Tx) error {
		n, err := tx.CountNodes()
		c.nodes.Store(n)
		return err
	})
}
