package schedule

import (
	"cmp"
	"slices"
)

// Member is an instance of a placement group, with the request that placed it and
// what it holds now in Request.From.
type Member struct {
	InstanceID string
	Request    Request
}

// Move is one step of a plan.
type Move struct {
	InstanceID string
	From, To   string // node ids
}

// Rebalance plans moves that bring the group g nearer to its rule. Every move fits
// when those before it are done, and lowers the number of members that stand
// against the rule; none is left that would do so by itself. Small instances move
// first. The plan is a proposal: nothing is reserved, and there may be a better
// one that moves several at once.
func Rebalance(s *Snapshot, g Group, members []Member) []Move {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Request.Shape.MemoryBytes, b.Request.Shape.MemoryBytes), cmp.Compare(a.InstanceID, b.InstanceID))
	})
	ix := NewIndex(s.Nodes)
	var plan []Move
	for moved := true; moved; {
		moved = false
		for i := range members {
			if move, ok := ix.improve(g, &members[i]); ok {
				plan = append(plan, move)
				moved = true
			}
		}
	}
	return plan
}

// improve moves m where that lowers the excess of its group.
func (ix *Index) improve(g Group, m *Member) (Move, bool) {
	from := m.Request.From
	excess := totalExcess(g.Rule, ix.census(&g))
	if from == nil || from.Seat.Group != g.ID || ix.nodes[from.NodeID] == nil || excess == 0 {
		return Move{}, false
	}
	r := m.Request
	g.Partition = from.Seat.Partition
	r.Group = &g
	d := ix.Pick(r)
	if d.NodeID == "" {
		return Move{}, false
	}
	to := r.Allocation(d)
	ix.Commit(to)
	ix.Release(*from)
	if totalExcess(g.Rule, ix.census(&g)) >= excess {
		ix.Commit(*from)
		ix.Release(to)
		return Move{}, false
	}
	m.Request.From = &to
	return Move{m.InstanceID, from.NodeID, to.NodeID}, true
}
