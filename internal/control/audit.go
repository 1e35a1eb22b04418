package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// The audit compares what is written down with itself and with what nodes report, both
// ways, and mends what is certain (lesson 12). What a node says about a VM is
// never a reason to change anything here: a report may be late (lesson 9).

// auditEvery is how often the audit runs by itself.
const auditEvery = 5 * time.Minute

// auditLog remembers since when each disagreement stands, so that one is logged
// once, and one that passes by itself is not logged at all.
type auditLog struct {
	mu    sync.Mutex
	since map[auditKey]time.Time
	told  map[auditKey]bool
}

type auditKey struct{ code, instance, node string }

func newAuditLog() *auditLog {
	return &auditLog{since: map[auditKey]time.Time{}, told: map[auditKey]bool{}}
}

func keyOf(f *api.AuditFinding) auditKey { return auditKey{f.Code, f.InstanceID, f.NodeID} }

// note dates findings; those that are over are forgotten. It answers those that
// stand since an earlier run and were not told of.
func (l *auditLog) note(found []api.AuditFinding, now time.Time) (news []api.AuditFinding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	since, told := map[auditKey]time.Time{}, map[auditKey]bool{}
	for i := range found {
		k := keyOf(&found[i])
		at, ok := l.since[k]
		if !ok {
			at = now
		}
		since[k], told[k] = at, l.told[k]
		if ok && !told[k] {
			told[k] = true
			news = append(news, found[i])
		}
	}
	l.since, l.told = since, told
	return news
}

func (l *auditLog) date(found []api.AuditFinding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range found {
		if at, ok := l.since[keyOf(&found[i])]; ok {
			found[i].Since = &at
		}
	}
}

// GetAudit compares now. Nothing is mended by looking.
func (c *Control) GetAudit(ctx context.Context, who iam.Caller) (api.Audit, error) {
	if err := iam.Allow(who, iam.GetAudit, iam.Scope{}); err != nil {
		return api.Audit{}, err
	}
	out, err := c.audit(ctx)
	c.audits.date(out.Findings)
	return out, err
}

// auditOnce is the loop's run: compare, log what is new, mend what is certain. Of
// several servers one mends.
func (c *Control) auditOnce(ctx context.Context) error {
	out, err := c.audit(ctx)
	if err != nil {
		return err
	}
	for _, f := range c.audits.note(out.Findings, out.At) {
		c.log.WarnContext(ctx, "the books do not agree", "code", f.Code, "instance", f.InstanceID, "node", f.NodeID, "message", f.Message)
	}
	if !slices.ContainsFunc(out.Findings, func(f api.AuditFinding) bool { return f.Repair == repairAutomatic }) {
		return nil
	}
	return c.db.Write(ctx, func(tx *store.Tx) error {
		leads, err := tx.Lead("audit", c.name, tx.Now.Add(auditEvery))
		if err != nil || !leads {
			return err
		}
		return c.mend(ctx, tx)
	})
}

const (
	repairAutomatic = "automatic"
	repairNone      = "none"
)

// check is one comparison within the database.
type check struct {
	code    string
	find    func(*store.Tx) ([]store.Doubt, error)
	message func(store.Doubt) string
	// mend, where it is certain what is right. It looks at the row again.
	mend func(*Control, *store.Tx, store.Doubt) error
}

var checks = []check{
	{"AllocationOfTerminated", (*store.Tx).AllocationsOfTerminated,
		func(store.Doubt) string { return "the instance is terminated and still holds room; it is released" },
		func(_ *Control, tx *store.Tx, d store.Doubt) error { return tx.Release(d.InstanceID) }},
	{"InstanceNotAccounted", (*store.Tx).InstancesWithoutAllocation,
		func(store.Doubt) string {
			return "no room is written down for the instance; what it asked for is written down, even where the node is over-full then"
		},
		(*Control).account},
	{"SeatInNoGroup", (*store.Tx).SeatsInNoGroup,
		func(d store.Doubt) string {
			return "the allocation has a seat in the placement group " + d.Other + ", which is gone; the seat is dropped"
		},
		func(_ *Control, tx *store.Tx, d store.Doubt) error { return tx.DropSeats(d.Other) }},
	{"DiskNotAsHeld", (*store.Tx).DiskNotAsHeld,
		func(store.Doubt) string {
			return "the allocation's disk is not the sum of the instance's volumes; it is written anew"
		},
		func(c *Control, tx *store.Tx, d store.Doubt) error {
			i, err := tx.InstanceByID(d.InstanceID)
			if err != nil {
				return err
			}
			return c.reallocate(tx, &i)
		}},
	{"AllocationOfNoMigration", (*store.Tx).AllocationsOfNoMigration,
		func(store.Doubt) string {
			return "room is held for a migration of the instance, and there is none; it is released"
		},
		func(_ *Control, tx *store.Tx, d store.Doubt) error {
			return tx.ReleasePurpose(d.InstanceID, store.Moving)
		}},
	{"AllocationElsewhere", (*store.Tx).AllocationsElsewhere,
		func(d store.Doubt) string {
			return fmt.Sprintf("the room is held on node %q, the instance is on node %q; find out where its VM runs before anything is changed", d.NodeID, d.Other)
		}, nil},
	{"AllocationOnNoNode", (*store.Tx).AllocationsOnNoNode,
		func(d store.Doubt) string {
			return fmt.Sprintf("the room is held on node %q, which is not known; if the machine is gone for good, terminate the instance", d.NodeID)
		}, nil},
}

func (c *Control) audit(ctx context.Context) (api.Audit, error) {
	out := api.Audit{Findings: []api.AuditFinding{}}
	err := c.db.Read(ctx, func(tx *store.Tx) (err error) {
		out.At = tx.Now
		if out.Compared.Allocations, out.Compared.Instances, out.Compared.Nodes, err = tx.CountAll(); err != nil {
			return err
		}
		for _, k := range checks {
			found, err := k.find(tx)
			if err != nil {
				return err
			}
			repair := repairNone
			if k.mend != nil {
				repair = repairAutomatic
			}
			for _, d := range found {
				out.Findings = append(out.Findings, api.AuditFinding{Code: k.code, Message: k.message(d), InstanceID: d.InstanceID, NodeID: d.NodeID, Repair: repair})
			}
		}
		return c.auditReports(tx, &out)
	})
	return out, err
}

// auditReports compares with what the nodes that sync with this server report.
func (c *Control) auditReports(tx *store.Tx, out *api.Audit) error {
	reported := c.obs.reported()
	placed := map[string]string{}
	err := tx.InstancesOnNodes(func(id, node, state string) error {
		placed[id] = node
		vms, known := reported[node]
		if known && !vms[id] && state == string(compute.StateRunning) {
			out.Findings = append(out.Findings, api.AuditFinding{Code: "NotReported", InstanceID: id, NodeID: node, Repair: repairNone,
				Message: "the instance counts as running, and its node's last report does not name it; look at the VM on the node"})
		}
		return nil
	})
	for node, vms := range reported {
		for id, there := range vms {
			switch on, known := placed[id]; {
			case !there:
			case !known:
				out.Findings = append(out.Findings, api.AuditFinding{Code: "UnknownVM", InstanceID: id, NodeID: node, Repair: repairNone,
					Message: "the node reports a VM that is none of an instance that should be anywhere; it is left alone, look at it there"})
			case on != node:
				out.Findings = append(out.Findings, api.AuditFinding{Code: "VMElsewhere", InstanceID: id, NodeID: node, Repair: repairNone,
					Message: fmt.Sprintf("the node reports a VM of an instance that is placed on node %q; it is left alone", on)})
			}
		}
	}
	slices.SortStableFunc(out.Findings, func(a, b api.AuditFinding) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.InstanceID, b.InstanceID), cmp.Compare(a.NodeID, b.NodeID))
	})
	return err
}

// mend finds again, in the transaction that mends.
func (c *Control) mend(ctx context.Context, tx *store.Tx) error {
	for _, k := range checks {
		if k.mend == nil {
			continue
		}
		found, err := k.find(tx)
		if err != nil {
			return err
		}
		for _, d := range found {
			if err := k.mend(c, tx, d); err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			c.log.WarnContext(ctx, "the books are mended", "code", k.code, "instance", d.InstanceID, "node", d.NodeID)
		}
	}
	return nil
}

// account writes down what an instance holds, or asks for while it waits.
func (c *Control) account(tx *store.Tx, d store.Doubt) error {
	i, err := tx.InstanceByID(d.InstanceID)
	if err != nil {
		return err
	}
	details, err := tx.DetailsOf(i.ID)
	if err != nil {
		return err
	}
	r := requestOf(&i.Instance, usage(&i.Instance, details).DiskBytes)
	a := store.Allocation{InstanceID: i.ID, ProjectID: i.ProjectID, Purpose: store.Holding, Allocation: r.Allocation(schedule.Decision{})}
	a.NodeID, a.Seat.Group = i.NodeID, i.Spec.PlacementGroupID
	return tx.Allocate(&a)
}
