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
)

// ListNodeJoins answers a page of the machines that wait for approval, in the order
// of the node ids that they ask for.
func (c *Control) ListNodeJoins(ctx context.Context, who iam.Caller, p Page) (api.List[api.PendingJoin], error) {
	out := api.List[api.PendingJoin]{Items: []api.PendingJoin{}}
	if err := iam.Allow(who, iam.ListNodeJoins, iam.Scope{}); err != nil {
		return out, err
	}
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		rows, err := tx.PendingJoins(p.Cursor, p.limit()+1)
		for i := range rows[:min(len(rows), p.limit())] {
			out.Items = append(out.Items, pendingView(&rows[i]))
		}
		if len(rows) > p.limit() {
			out.NextCursor = rows[p.limit()-1].NodeID
		}
		return err
	})
	return out, err
}

func pendingView(j *compute.NodeJoin) api.PendingJoin {
	return api.PendingJoin{NodeID: j.NodeID, Fingerprint: compute.KeyID(j.Key), Hostname: j.Hostname, MachineID: j.MachineID, BootID: j.BootID,
		TokenID: j.TokenID, NodeRole: j.NodeRole, NodeZone: j.NodeZone, CreatedAt: j.CreatedAt, LastSeenAt: j.SeenAt, ExpiresAt: j.ExpiresAt}
}

// Reasons of JOIN_APPROVAL_REFUSED.
const (
	notPending          = "NOT_PENDING"
	joinExpired         = "EXPIRED"
	fingerprintMismatch = "FINGERPRINT_MISMATCH"
	nodeTaken           = "NODE_TAKEN"
)

func approvalRefused(reason, format string, args ...any) error {
	e := fault.Coded(fault.Conflict, fault.JoinApprovalRefused, format, args...)
	e.Details = api.ApprovalRefused{Reason: reason}
	return e
}

// ApproveNodeJoin lets the machine that waits for the node id in (contract N-22).
func (c *Control) ApproveNodeJoin(ctx context.Context, who iam.Caller, nodeID string, in api.JoinVerdict) (api.PendingJoin, error) {
	return c.judge(ctx, who, iam.ApproveNodeJoin, nodeID, in, func(tx *store.Tx, j *compute.NodeJoin) error {
		n, err := tx.Node(nodeID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if err == nil {
			token, terr := tx.Token(j.TokenID)
			if terr != nil && !errors.Is(terr, store.ErrNotFound) {
				return terr
			}
			if token.NodeID != nodeID || n.Foreign(j.Claimant()) {
				return approvalRefused(nodeTaken, "node id %q belongs to another machine, %q, which reported while this one waited; refuse this one, or give it the other's place with: outcrop node readmit %s", nodeID, n.Facts.Hostname, nodeID)
			}
		}
		j.State, j.ExpiresAt = compute.JoinAdmitted, time.Time{}
		return nil
	})
}

// RefuseNodeJoin turns the machine that waits for the node id away. It hears of it
// when it asks next, and may come again only with another join token.
func (c *Control) RefuseNodeJoin(ctx context.Context, who iam.Caller, nodeID string, in api.JoinVerdict) (api.PendingJoin, error) {
	return c.judge(ctx, who, iam.RefuseNodeJoin, nodeID, in, func(tx *store.Tx, j *compute.NodeJoin) error {
		j.State, j.ExpiresAt = compute.JoinRefused, tx.Now.Add(compute.JoinWaits)
		return nil
	})
}

// judge has verdict decide on the machine that waits for the node id.
func (c *Control) judge(ctx context.Context, who iam.Caller, a iam.Action, nodeID string, in api.JoinVerdict, verdict func(*store.Tx, *compute.NodeJoin) error) (out api.PendingJoin, err error) {
	if err := iam.Allow(who, a, iam.Scope{NodeID: nodeID}); err != nil {
		return out, err
	}
	if err := checkVerdict(nodeID, in); err != nil {
		return out, err
	}
	err = c.settle(ctx, func(tx *store.Tx) error {
		j, err := tx.NodeJoin(nodeID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		switch {
		case err != nil || j.State == compute.JoinAdmitted:
			return approvalRefused(notPending, "no machine waits to join as %q; list those that do with: outcrop node joins", nodeID)
		case j.State == compute.JoinRefused:
			return approvalRefused(notPending, "the machine that asked to join as %q was refused; it has to ask again, with a new join token: outcrop node join-token", nodeID)
		case !j.Stands(tx.Now):
			return approvalRefused(joinExpired, "the machine that asked to join as %q waited for too long, until %s; it has to ask again, with a new join token: outcrop node join-token", nodeID, j.ExpiresAt.Format(time.RFC3339))
		case in.Fingerprint != "" && in.Fingerprint != compute.KeyID(j.Key):
			return approvalRefused(fingerprintMismatch, "the machine that waits to join as %q has another key, %s; compare it with what the agent on the machine logs", nodeID, compute.KeyID(j.Key))
		}
		if err := verdict(tx, &j); err != nil {
			return err
		}
		out = pendingView(&j)
		return tx.UpdateJoin(&j, compute.JoinPending)
	})
	if err == nil {
		c.log.InfoContext(ctx, "a join is decided", "node", nodeID, "action", string(a), "by", who.Name, "hostname", out.Hostname, "fingerprint", out.Fingerprint)
	}
	return out, err
}

func checkVerdict(nodeID string, in api.JoinVerdict) error {
	var bad []fault.Field
	if !compute.ValidNodeID(nodeID) {
		bad = append(bad, fault.Field{Path: "nodeId", Message: nodeIDRule})
	}
	return fault.InvalidFields(append(bad, fieldsOf(CheckVerdict(in))...))
}

// CheckVerdict names every problem that the body of a verdict has by itself.
func CheckVerdict(in api.JoinVerdict) error {
	if in.Fingerprint != "" && !compute.ValidKeyID(in.Fingerprint) {
		return fault.InvalidFields([]fault.Field{{Path: "fingerprint", Message: "is SHA256: and 43 characters of base64, as the agent logs it"}})
	}
	return nil
}

func fieldsOf(err error) []fault.Field {
	if err == nil {
		return nil
	}
	return fault.From(err).Fields
}

// ReadmitNode forgets the machine that a node id is bound to: its key, its machine
// id and its tokens end, and the next machine that joins with the token of the
// answer is the node (contract N-21). What is placed there stays, and follows from
// what that machine reports.
func (c *Control) ReadmitNode(ctx context.Context, who iam.Caller, nodeID string, in api.ReadmitNode) (api.NewToken, error) {
	if err := iam.Allow(who, iam.ReadmitNode, iam.Scope{NodeID: nodeID}); err != nil {
		return api.NewToken{}, err
	}
	want := api.CreateToken{Role: string(iam.Join), Name: "readmit " + nodeID, NodeID: nodeID, NodeRole: in.NodeRole, NodeZone: in.NodeZone,
		ExpiresInSeconds: in.ExpiresInSeconds, Approve: in.Approve}
	if err := CheckToken(want); err != nil {
		return api.NewToken{}, err
	}
	var made issued
	err := c.db.Write(ctx, func(tx *store.Tx) error {
		joined, err := tx.DeleteJoin(nodeID)
		if err != nil {
			return err
		}
		n, err := tx.NodeToChange(nodeID)
		switch {
		case err == nil:
			n.Identity = compute.Identity{}
			err = tx.UpdateNode(&n)
		case joined && errors.Is(err, store.ErrNotFound): // it never reported
			err = nil
		}
		if err != nil {
			return notFound(err, "there is no node %q; list them with: outcrop node list", nodeID)
		}
		if err := tx.RevokeNodeTokens(nodeID); err != nil {
			return err
		}
		made, err = c.issue(tx, want)
		return err
	})
	if err != nil {
		return api.NewToken{}, err
	}
	c.beats.forget(nodeID)
	c.log.InfoContext(ctx, "a node is to be readmitted; its machine's key and tokens have ended", "node", nodeID, "by", who.Name)
	return c.newToken(made), nil
}

// rightBoot refuses a report of another boot than that of the node's heartbeats:
// two machines with one disk must not both say what runs there (contract N-21).
func (c *Control) rightBoot(ctx context.Context, nodeID, bootID string) error {
	if bootID == "" {
		return nil
	}
	return c.db.Read(ctx, func(tx *store.Tx) error {
		have, err := tx.NodeBoot(nodeID)
		if err != nil || have == "" || have == bootID {
			if errors.Is(err, store.ErrNotFound) {
				err = nil // said where the desired set is looked for
			}
			return err
		}
		return fault.Coded(fault.Conflict, fault.NodeIDConflict, "the heartbeats of node %q are of another boot than this report; where this machine has just booted, its next heartbeat comes first; else it is a copy of the node's disk: give it an id and a data folder of its own", nodeID)
	})
}

// errClash answers the machine that the id does not belong to, and names both
// (contract N-21). Who holds it, but for the hostname, is said only to callers that
// may know: an unbound join token is no way to look at nodes.
func errClash(nodeID string, k *compute.Clash, knows bool) error {
	holder := k.Holder
	if !knows {
		holder = compute.Claimant{Hostname: holder.Hostname, SeenAt: holder.SeenAt}
	}
	why := ""
	if k.Copy {
		why = " Their disks are copies of each other."
	}
	e := fault.Coded(fault.Conflict, fault.NodeIDConflict, "node id %q belongs to %s, which goes on; %s is refused.%s Give this machine an id and a data folder of its own; if it is to take the other's place, an operator runs: outcrop node readmit %s",
		nodeID, holder, k.Claimant, why, nodeID)
	e.Details = api.NodeIDConflict{NodeID: nodeID, Holder: claimantView(holder), Claimant: claimantView(k.Claimant)}
	return e
}

func claimantView(c compute.Claimant) api.Claimant {
	return api.Claimant{Hostname: c.Hostname, MachineID: c.MachineID, BootID: c.BootID, Fingerprint: c.Key, SeenAt: optional(c.SeenAt)}
}

// logClash raises the event of a second claimant, once for each.
func (c *Control) logClash(ctx context.Context, nodeID string, k *compute.Clash) {
	if !k.First {
		return
	}
	c.log.WarnContext(ctx, "two machines claim one node id; the first goes on, the other is refused", "event", "clone_detected", "node", nodeID,
		"holder", k.Holder.String(), "claimant", k.Claimant.String(), "copy", k.Copy)
}
