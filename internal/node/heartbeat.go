package node

import (
	"context"
	"net/http"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

const (
	defaultInterval = 60 * time.Second // contract N-06
	beatTimeout     = 10 * time.Second
)

// heartbeats beats at once and then at the pace that the server sets, earlier
// when the facts have changed.
func (a *agent) heartbeats(ctx context.Context) {
	pace := newPace(a.log, "heartbeat")
	first := true
	for {
		node, err := a.beat(ctx)
		if ctx.Err() != nil {
			return
		}
		next, early := time.Duration(0), (<-chan struct{})(nil)
		if err != nil {
			next = pace.failed(err)
		} else {
			pace.worked()
			a.keeper.set(&node)
			next, early = jitter(a.interval(node)), a.facts.fresh
			if first {
				a.log.Info("the server knows the node", "node", node.ID, "state", node.State)
				close(a.registered)
				first = false
			}
		}
		if !a.pause(ctx, next, early) {
			return
		}
	}
}

// beat sends one heartbeat.
func (a *agent) beat(ctx context.Context) (api.Node, error) {
	var node api.Node
	a.facts.refresh(ctx, a.detect)
	h, err := a.heartbeat()
	if err != nil {
		return node, err
	}
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	return node, a.up.Do(ctx, http.MethodPut, a.path("heartbeat"), h, &node)
}

func (a *agent) interval(n api.Node) time.Duration {
	switch {
	case a.cfg.Interval > 0:
		return a.cfg.Interval
	case n.HeartbeatIntervalSeconds > 0:
		return time.Duration(n.HeartbeatIntervalSeconds) * time.Second
	}
	return defaultInterval
}
