package control

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// observe applies a node's report. Only what changed since its last one is
// written, and all of that in one transaction, so an idle fleet costs reads only.
func (c *Control) observe(ctx context.Context, nodeID string, in *api.SyncRequest) error {
	now := c.now()
	c.obs.setFindings(nodeID, in.Findings)
	c.obs.hear(nodeID, in.Revision, now)
	if in.Unknown {
		// Nothing is concluded from a report that says nothing (lesson 9), but that the
		// machine has booted.
		in = &api.SyncRequest{BootID: in.BootID, Unknown: true}
	}
	fresh, booted := c.obs.fresh(nodeID, in, now)
	if len(fresh) == 0 && !booted && len(in.GoneVolumes) == 0 && len(in.FailedUploads) == 0 {
		return nil
	}
	changed := false
	var others []string
	err := retryStale(func() error {
		return c.db.Write(ctx, func(tx *store.Tx) (err error) {
			others = nil
			changed, err = c.observeAll(tx, nodeID, in, fresh, booted, &others)
			return err
		})
	})
	if err != nil {
		return err
	}
	c.obs.applied(nodeID, in, fresh, now)
	if changed {
		for _, id := range others {
			c.hub.nudge(id)
		}
		c.told(nodeID, true)
		c.converge.poke() // the state may be another than was wished
		c.drain.poke()
	}
	return nil
}

// observeAll applies what is new in a report; others gets the other nodes that have
// to hear of it.
func (c *Control) observeAll(tx *store.Tx, nodeID string, in *api.SyncRequest, fresh []api.ObservedInstance, booted bool, others *[]string) (changed bool, err error) {
	for _, o := range fresh {
		did, err := c.observeOne(tx, nodeID, o, others)
		if err != nil {
			return false, err
		}
		changed = changed || did
	}
	if len(in.GoneVolumes) > 0 {
		did, err := volumesGone(tx, nodeID, in.GoneVolumes)
		if err != nil {
			return false, err
		}
		changed = changed || did
	}
	if len(in.FailedUploads) > 0 {
		did, err := c.uploadsFailed(tx, nodeID, in.FailedUploads)
		if err != nil {
			return false, err
		}
		changed = changed || did
	}
	if booted {
		did, err := c.nodeBooted(tx, nodeID, in.BootID)
		if err != nil {
			return false, err
		}
		changed = changed || did
	}
	return changed, nil
}

// observeOne applies one VM's report. One that is not this node's to report says
// nothing (contract N-24), but for its being gone where it was to go.
func (c *Control) observeOne(tx *store.Tx, nodeID string, o api.ObservedInstance, others *[]string) (changed bool, err error) {
	if !compute.ValidInstanceID(o.ID) {
		return false, nil
	}
	i, err := tx.InstanceByID(o.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && (i.NodeID != nodeID || i.State == compute.StateTerminated) {
		return instanceDeparted(tx, nodeID, o)
	}
	if err != nil {
		return false, err
	}
	before := i.State
	changed = i.Observe(compute.Observation{Phase: compute.Phase(o.Phase), Epoch: o.Epoch, Message: cut(o.Message, maxMessage)}, tx.Now)
	if err := sample(tx, &i, o, before); err != nil {
		return false, err
	}
	if !changed {
		return false, nil
	}
	if i.Move != nil { // it has come to rest
		more, err := c.atRest(tx, &i)
		*others = append(*others, more...)
		return true, err
	}
	return true, c.save(tx, &i, "node "+nodeID, "state", "")
}

// sample notes that the node read the VM, and when its present run began.
func sample(tx *store.Tx, i *store.Instance, o api.ObservedInstance, before compute.InstanceState) error {
	if compute.Phase(o.Phase) == compute.PhaseUnknown || i.State != compute.StateRunning {
		return nil
	}
	a, err := tx.Agent(i.ID)
	if err != nil {
		return err
	}
	a.SampledAt = tx.Now.Add(-ageOf(o.SampleAgeS, time.Second))
	if before != compute.StateRunning {
		a.RunningSince = tx.Now
		if err := tx.VolumesMade(i.ID); err != nil {
			return err
		}
	}
	return tx.PutAgent(i.ID, &a)
}

// volumesGone takes a node's word that volumes are gone which were to go. What it says
// of others says nothing, however many it names.
func volumesGone(tx *store.Tx, nodeID string, ids []string) (changed bool, err error) {
	named := make(map[string]bool, len(ids))
	for _, id := range ids {
		named[id] = true
	}
	all, err := tx.VolumesOn(nodeID)
	if err != nil {
		return false, err
	}
	for _, v := range all {
		if !v.Going || !named[v.ID] {
			continue
		}
		changed = true
		if err := errors.Join(tx.DeleteVolume(v.ID), tx.RoomChanged(nodeID)); err != nil {
			return false, err
		}
	}
	left, err := tx.DeparturesOn(nodeID)
	if err != nil {
		return false, err
	}
	for _, d := range left {
		if !d.Volume || !named[d.ID] {
			continue
		}
		changed = true
		if err := tx.Departed(&d); err != nil {
			return false, err
		}
	}
	return changed, nil
}

// nodeBooted draws what follows from a node's boot: VMs that asked for it are
// started again, whatever is reported of them by now. The very first sync of a node is
// no boot that anybody saw.
func (c *Control) nodeBooted(tx *store.Tx, nodeID, bootID string) (changed bool, err error) {
	last, err := tx.SyncedBoot(nodeID)
	if err != nil {
		return false, notFound(err, "node %q is not registered; its first heartbeat does that", nodeID)
	}
	if last == bootID {
		return false, nil
	}
	if last != "" {
		rows, err := tx.InstancesOn(nodeID)
		if err != nil {
			return false, err
		}
		for n := range rows {
			i := &rows[n]
			if !i.Spec.StartOnNodeBoot {
				continue
			}
			stays, err := held(tx, i)
			if err != nil {
				return false, err
			}
			if stays {
				continue
			}
			if err := noUpload(tx, i); fault.HasCode(err, fault.InvalidState) {
				if err := event(tx, &i.Instance, "system", "node-boot", "not started again, as an image is being made of it"); err != nil {
					return false, err
				}
				continue
			} else if err != nil {
				return false, err
			}
			if !i.NodeBooted(tx.Now) {
				continue
			}
			if err := c.save(tx, i, "system", "node-boot", "started again, as its node booted"); err != nil {
				return false, err
			}
			changed = true
		}
	}
	return changed, tx.SetSyncedBoot(nodeID, bootID)
}

// maxMessage bounds what a node or guest may write into a message, bytes.
const maxMessage = 1000

// cut shortens to n bytes, never in the middle of a character: half of one is no
// text, and a database may refuse it.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// resample is how often the same word of a node on a VM is written again: often
// enough that a sample never looks stale (compute.AgentQuiet) while it is not.
const resample = time.Minute

// observations remembers each node's last applied report, so that the same word
// again costs nothing. It is a cache: after a restart everything is news once.
type observations struct {
	mu    sync.Mutex
	nodes map[string]*observedNode
}

type observedNode struct {
	known bool // a complete report was applied
	last  map[string]observed
	boot  string
	found []api.Finding
	told  int64 // the latest revision that it was sent
	// It has synced without a break since the first moment, and last at the second, each
	// time with all that it was sent.
	heardSince, heardAt time.Time
}

type observed struct {
	api.ObservedInstance
	at time.Time
}

func newObservations() *observations { return &observations{nodes: map[string]*observedNode{}} }

// maxAge is more than any age that means something.
const maxAge = 365 * 24 * time.Hour

// ageOf is an age in units as a node says it: nothing is of the future, and none
// overflows.
func ageOf(n int64, unit time.Duration) time.Duration {
	return time.Duration(min(max(n, 0), int64(maxAge/unit))) * unit
}

func (o *observations) node(id string) *observedNode {
	n := o.nodes[id]
	if n == nil {
		n = &observedNode{last: map[string]observed{}}
		o.nodes[id] = n
	}
	return n
}

// silence is how long a node that syncs may take until its next: a held answer, and
// some tries. One that took longer was away.
const silence = 2 * time.Minute

// hear notes that a node syncs. One that does not act on what it was sent may hear
// nothing of us: then it says so in vain.
func (o *observations) hear(nodeID, revision string, now time.Time) {
	has, _ := strconv.ParseInt(revision, 10, 64) // 0 for none
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.node(nodeID)
	if has < n.told {
		return
	}
	if now.Sub(n.heardAt) >= silence {
		n.heardSince = now
	}
	n.heardAt = now
}

// tell notes what a node is being sent.
func (o *observations) tell(nodeID, revision string) {
	sent, _ := strconv.ParseInt(revision, 10, 64)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.node(nodeID).told = sent
}

// heard is since when node and server have heard each other without a break; false
// when they do not.
func (o *observations) heard(nodeID string, now time.Time) (since time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.nodes[nodeID]
	if n == nil || now.Sub(n.heardAt) >= silence {
		return time.Time{}, false
	}
	return n.heardSince, true
}

func (o *observations) forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.nodes, id)
}

// fresh picks what differs from the last applied report or is due again, and
// says whether the node has booted since.
func (o *observations) fresh(nodeID string, in *api.SyncRequest, now time.Time) (out []api.ObservedInstance, booted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.node(nodeID)
	seen := make(map[string]bool, len(in.Instances))
	for _, i := range in.Instances {
		seen[i.ID] = true
		l, ok := n.last[i.ID]
		due := i.Phase == string(compute.PhaseRunning) && now.Sub(l.at) >= resample
		if !ok || due || l.Epoch != i.Epoch || l.Phase != i.Phase || l.Message != i.Message || l.BootID != i.BootID {
			out = append(out, i)
		}
	}
	if !in.Unknown {
		maps.DeleteFunc(n.last, func(id string, _ observed) bool { return !seen[id] })
	}
	return out, in.BootID != "" && in.BootID != n.boot
}

func (o *observations) applied(nodeID string, in *api.SyncRequest, fresh []api.ObservedInstance, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.node(nodeID)
	n.boot, n.known = in.BootID, n.known || !in.Unknown
	for _, i := range fresh {
		n.last[i.ID] = observed{i, now}
	}
}

// reported are the VMs that each node's last report named; false for those that it
// says are gone.
func (o *observations) reported() map[string]map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[string]map[string]bool, len(o.nodes))
	for id, n := range o.nodes {
		if !n.known {
			continue
		}
		vms := make(map[string]bool, len(n.last))
		for vm, last := range n.last {
			vms[vm] = last.Phase != string(compute.PhaseGone)
		}
		out[id] = vms
	}
	return out
}

// maxFindings bounds what is kept of a node's findings: they are in every answer with
// the node.
const (
	maxFindings = 100
	maxCode     = 64 // bytes of a finding's code
)

func (o *observations) setFindings(nodeID string, all []api.Finding) {
	f := slices.Clone(all[:min(len(all), maxFindings)])
	for i := range f {
		f[i].Code, f[i].Message, f[i].NextStep = cut(f[i].Code, maxCode), cut(f[i].Message, maxMessage), cut(f[i].NextStep, maxMessage)
	}
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
