package control

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// GetCapacity sums up the fleet: all of it, and by region, zone and role.
func (c *Control) GetCapacity(ctx context.Context, who iam.Caller) (api.Capacity, error) {
	out := api.Capacity{Groups: []api.CapacityGroup{}}
	if err := iam.Allow(who, iam.GetCapacity, iam.Scope{}); err != nil {
		return out, err
	}
	type place struct{ region, zone, role string }
	groups := map[place]*api.CapacityGroup{}
	err := c.lookAtFleet(ctx, func(tx *store.Tx, ix *schedule.Index) error {
		out.At = tx.Now
		for n := range ix.Each {
			p := place{n.Region, n.Zone, string(n.Role)}
			g := groups[p]
			if g == nil {
				g = &api.CapacityGroup{Region: p.region, AvailabilityZone: p.zone, Role: p.role}
				groups[p] = g
			}
			addCapacity(&g.CapacitySum, n)
			addCapacity(&out.Total, n)
		}
		return nil
	})
	for _, g := range groups {
		out.Groups = append(out.Groups, *g)
	}
	slices.SortFunc(out.Groups, func(a, b api.CapacityGroup) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.AvailabilityZone, b.AvailabilityZone), cmp.Compare(a.Role, b.Role))
	})
	return out, err
}

// schedulable reports whether a node takes new instances (contract N-03, N-23).
func schedulable(role compute.Role, state compute.NodeState, live compute.LivenessStatus) bool {
	return role.RunsInstances() && state == compute.NodeReady && live != compute.LivenessUnreachable
}

func addCapacity(s *api.CapacitySum, n *schedule.Node) {
	open := schedulable(n.Role, n.State, n.Liveness)
	s.Nodes++
	s.Schedulable += count(open)
	s.Suspect += count(n.Liveness == compute.LivenessSuspect)
	s.Unreachable += count(n.Liveness == compute.LivenessUnreachable)
	s.NotReady += count(n.State != compute.NodeReady)
	add := func(a *api.CapacityAmount, of, used int64) {
		a.Committable = plus(a.Committable, of)
		a.Committed = plus(a.Committed, used)
		if open {
			a.Free = plus(a.Free, max(0, of-used))
		}
	}
	add(&s.VCPUs, n.Committable.VCPUs, n.Used.VCPUs)
	add(&s.MemoryBytes, n.Committable.MemoryBytes, n.Used.MemoryBytes)
	add(&s.DiskBytes, n.Committable.DiskBytes, n.Used.DiskBytes)
	for key, total := range n.Countables {
		k := s.Countables[key]
		k.Nodes++
		k.Total = plus(k.Total, total)
		if open {
			k.Free = plus(k.Free, max(0, total-n.Held[key]))
		}
		setCountable(s, key, k)
	}
	for key, held := range n.Held {
		k := s.Countables[key]
		k.Committed = plus(k.Committed, held)
		setCountable(s, key, k)
	}
}

// plus adds two numbers of 0 or more as far as a number goes: a node may report any
// size, and the sum of two must not turn negative.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func setCountable(s *api.CapacitySum, key string, k api.CountableSum) {
	if s.Countables == nil {
		s.Countables = map[string]api.CountableSum{}
	}
	s.Countables[key] = k
}

func count(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// EachNode goes through the fleet as placement sees it now, for metrics. visit
// keeps nothing of the node.
func (c *Control) EachNode(ctx context.Context, visit func(*schedule.Node)) error {
	return c.lookAtFleet(ctx, func(_ *store.Tx, ix *schedule.Index) error {
		for n := range ix.Each {
			visit(n)
		}
		return nil
	})
}
