package control

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// maxHold is how long a sync may be held, whatever the agent asks.
const maxHold = 60 * time.Second

// recheck is how often a held sync looks by itself: a change that another server
// made gives this one no nudge.
const recheck = 5 * time.Second

// Sync takes what a node observes and answers what it is to do, at once when
// that is news to the node, else when it becomes so or the hold is over. busy
// ends the hold early (the server is stopping).
func (c *Control) Sync(ctx context.Context, who iam.Caller, nodeID string, in *api.SyncRequest, busy <-chan struct{}) (api.SyncResponse, error) {
	if err := iam.Allow(who, iam.SyncNode, iam.Scope{NodeID: nodeID}); err != nil {
		return api.SyncResponse{}, err
	}
	if err := c.observe(ctx, nodeID, in); err != nil {
		return api.SyncResponse{}, err
	}
	hold := time.NewTimer(min(time.Duration(in.WaitSeconds)*time.Second, maxHold))
	defer hold.Stop()
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for last := false; ; {
		nudged := c.hub.wait(nodeID) // before looking, so that nothing slips through
		out, news, err := c.desired(ctx, nodeID, in.Revision)
		if err != nil || news || last {
			return out, err
		}
		select {
		case <-nudged:
		case <-tick.C:
		case <-hold.C:
			last = true
		case <-busy:
			last = true
		case <-ctx.Done():
			return api.SyncResponse{}, ctx.Err()
		}
	}
}

// desired reads the node's whole desired set when its revision is not have.
func (c *Control) desired(ctx context.Context, nodeID, have string) (out api.SyncResponse, news bool, err error) {
	out.Instances = []api.DesiredInstance{}
	out.Consoles = c.cons.wanted(nodeID)
	err = c.db.Read(ctx, func(tx *store.Tx) error {
		rev, err := tx.DesiredRevision(nodeID)
		if err != nil {
			return notFound(err, "node %q is not registered; its first heartbeat does that", nodeID)
		}
		out.Revision = strconv.FormatInt(rev, 10)
		if out.Revision == have {
			return nil
		}
		out.Changed = true
		rows, err := tx.InstancesOn(nodeID)
		if err != nil {
			return err
		}
		for i := range rows {
			d, err := c.desiredInstance(tx, &rows[i])
			if err != nil {
				return err
			}
			out.Instances = append(out.Instances, d)
		}
		return nil
	})
	return out, out.Changed || len(out.Consoles) > 0, err
}

func (c *Control) desiredInstance(tx *store.Tx, i *store.Instance) (api.DesiredInstance, error) {
	d := api.DesiredInstance{
		ID: i.ID, ProjectID: i.ProjectID, Name: i.Spec.Name, Epoch: i.Epoch, Goal: string(i.Goal), Reboot: i.State == compute.StateRebooting,
		Force: i.ForceStopping, VCPUs: i.Spec.Shape.VCPUs, MemoryBytes: i.Spec.Shape.MemoryBytes,
		UserDataHash: i.Spec.UserDataHash, PublicKeys: i.Spec.PublicKeys, Volumes: []api.DesiredVolume{},
	}
	if i.State == compute.StateStopping {
		// At least 1: nothing at all would read as no deadline.
		d.StopWithinMS = max(1, i.Deadline.Sub(tx.Now).Milliseconds())
		d.Force = d.Force || !tx.Now.Before(i.Deadline)
	}
	img, err := tx.ImageByID(i.Spec.ImageID)
	if err != nil && !(errors.Is(err, store.ErrNotFound) && i.Goal == compute.GoalGone) {
		return d, err
	}
	d.Image = api.DesiredImage{SHA256: img.SHA256, Format: img.Format, SizeBytes: img.SizeBytes, VirtualSize: img.VirtualSize}
	volumes, err := tx.Volumes(i.ID)
	for _, v := range volumes {
		d.Volumes = append(d.Volumes, api.DesiredVolume{ID: v.ID, SizeBytes: v.SizeBytes, Root: v.Root})
	}
	return d, err
}

// observe applies a report. It writes only what changed since the last report of
// the same node, so an idle fleet costs reads only.
func (c *Control) observe(ctx context.Context, nodeID string, in *api.SyncRequest) error {
	c.obs.setFindings(nodeID, in.Findings)
	if in.Unknown {
		return nil // nothing is concluded from a report that says nothing
	}
	fresh := c.obs.fresh(nodeID, in.Instances)
	for _, o := range fresh {
		if err := c.observeOne(ctx, nodeID, o); err != nil {
			return err
		}
		c.obs.applied(nodeID, o)
	}
	return nil
}

func (c *Control) observeOne(ctx context.Context, nodeID string, o api.ObservedInstance) error {
	if !compute.ValidInstanceID(o.ID) {
		return fault.InvalidFields([]fault.Field{{Path: "instances", Message: "has an id that is none of an instance"}})
	}
	changed := false
	err := retryStale(func() error {
		return c.db.Write(ctx, func(tx *store.Tx) error {
			i, err := tx.InstanceByID(o.ID)
			if errors.Is(err, store.ErrNotFound) || err == nil && i.NodeID != nodeID {
				return nil // not this node's to report: nothing follows from it (contract N-24)
			}
			if err != nil {
				return err
			}
			obs := compute.Observation{Phase: compute.Phase(o.Phase), Epoch: o.Epoch, Message: cut(o.Message, maxMessage)}
			if changed = i.Observe(obs, tx.Now); !changed {
				return nil
			}
			return c.save(tx, &i, "node "+nodeID, "state", "")
		})
	})
	if err == nil && changed {
		c.hub.nudge(nodeID)
	}
	return err
}

// maxMessage bounds what a node may write into an instance's message, bytes.
const maxMessage = 1000

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

// observations remembers each node's last applied report, so that the same word
// again costs nothing. It is a cache: after a restart everything is news once.
type observations struct {
	mu    sync.Mutex
	nodes map[string]*observedNode
}

type observedNode struct {
	last  map[string]api.ObservedInstance
	found []api.Finding
}

func newObservations() *observations { return &observations{nodes: map[string]*observedNode{}} }

func (o *observations) node(id string) *observedNode {
	n := o.nodes[id]
	if n == nil {
		n = &observedNode{last: map[string]api.ObservedInstance{}}
		o.nodes[id] = n
	}
	return n
}

func (o *observations) forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.nodes, id)
}

// fresh picks what differs from the last applied report.
func (o *observations) fresh(nodeID string, all []api.ObservedInstance) []api.ObservedInstance {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.node(nodeID)
	var out []api.ObservedInstance
	seen := make(map[string]bool, len(all))
	for _, i := range all {
		seen[i.ID] = true
		if l, ok := n.last[i.ID]; !ok || l.Epoch != i.Epoch || l.Phase != i.Phase || l.Message != i.Message {
			out = append(out, i)
		}
	}
	maps.DeleteFunc(n.last, func(id string, _ api.ObservedInstance) bool { return !seen[id] })
	return out
}

func (o *observations) applied(nodeID string, i api.ObservedInstance) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.node(nodeID).last[i.ID] = i
}

func (o *observations) setFindings(nodeID string, f []api.Finding) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.node(nodeID).found = f
}

func (o *observations) findings(nodeID string) []api.Finding {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := o.nodes[nodeID]; n != nil {
		return append([]api.Finding(nil), n.found...)
	}
	return nil
}

// NodeBlob answers user-data bytes to the node where an instance needs them.
func (c *Control) NodeBlob(ctx context.Context, who iam.Caller, nodeID, sha256 string) (b []byte, err error) {
	if err := iam.Allow(who, iam.ReadNodeBlob, iam.Scope{NodeID: nodeID}); err != nil {
		return nil, err
	}
	err = c.db.Read(ctx, func(tx *store.Tx) (err error) {
		b, err = tx.BlobForNode(nodeID, sha256)
		return notFound(err, "no instance on node %q needs this blob", nodeID)
	})
	return b, err
}
