package control

import (
	"context"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// readinessScan bounds how many nodes one page of findings looks at, so that a
// fleet without findings does not hold up a request.
const readinessScan = 5000

// ListReadiness answers a page of the nodes that have findings, in id order; with
// all, those without as well. A page may be short, even empty, and still have a
// next one.
func (c *Control) ListReadiness(ctx context.Context, who iam.Caller, p Page, all bool) (api.List[api.NodeReadiness], error) {
	out := api.List[api.NodeReadiness]{Items: []api.NodeReadiness{}}
	if err := iam.Allow(who, iam.ListReadiness, iam.Scope{}); err != nil {
		return out, err
	}
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		after := p.Cursor
		for scanned := 0; scanned < readinessScan; {
			rows, err := tx.Nodes(after, p.limit()+1)
			if err != nil {
				return err
			}
			for i := range rows[:min(len(rows), p.limit())] {
				r := c.readiness(&rows[i])
				if after = rows[i].ID; all || len(r.Findings) > 0 {
					out.Items = append(out.Items, r)
				}
				if len(out.Items) == p.limit() && i < len(rows)-1 {
					out.NextCursor = after
					return nil
				}
			}
			if len(rows) <= p.limit() {
				return nil
			}
			scanned += p.limit()
		}
		out.NextCursor = after
		return nil
	})
	return out, err
}

func (c *Control) readiness(n *compute.Node) api.NodeReadiness {
	v := c.nodeView(n, c.now())
	r := api.NodeReadiness{
		NodeID: v.ID, DisplayName: v.DisplayName, State: v.State, Liveness: v.Liveness.Status, Findings: v.Findings,
		Schedulable: schedulable(n.Facts.Role, n.State(), compute.LivenessStatus(v.Liveness.Status)),
	}
	if r.Findings == nil {
		r.Findings = []api.Finding{}
	}
	return r
}
