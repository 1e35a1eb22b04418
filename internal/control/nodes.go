package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

const nodeIDRule = "is 1-63 of A-Z a-z 0-9 . _ -, the first a letter or digit"

// boundClaims refuses a heartbeat that claims a role or zone other than the
// token's (contract N-01).
func boundClaims(who iam.Caller, f *compute.NodeFacts) error {
	if who.NodeRole != "" && who.NodeRole != string(f.Role) {
		return fault.New(fault.Forbidden, "this token is for role %q, the heartbeat claims %q", who.NodeRole, f.Role)
	}
	if who.NodeZone != "" && who.NodeZone != f.AvailabilityZone {
		return fault.New(fault.Forbidden, "this token is for zone %q, the heartbeat claims %q", who.NodeZone, f.AvailabilityZone)
	}
	return nil
}

func (c *Control) facts(h *api.Heartbeat) compute.NodeFacts {
	k := &h.Capacity
	f := compute.NodeFacts{
		Hostname: h.Hostname, Role: compute.Role(h.Role), Region: h.Region, AvailabilityZone: h.AvailabilityZone, Architecture: h.Architecture,
		Capabilities: h.Capabilities, MachineID: h.MachineID, WakeOnLanMAC: h.WakeOnLanMAC,
		Capacity: compute.Capacity{
			TotalVCPUs: k.TotalVCPUs, ReservedVCPUs: k.ReservedVCPUs, VCPUOvercommitRatio: orOne(k.VCPUOvercommitRatio), CommittedVCPUs: k.CommittedVCPUs,
			TotalMemoryBytes: k.TotalMemoryBytes, ReservedMemoryBytes: k.ReservedMemoryBytes, MemoryOvercommitRatio: orOne(k.MemoryOvercommitRatio),
			CommittedMemoryBytes: k.CommittedMemoryBytes, TotalDiskBytes: k.TotalDiskBytes, HasGPU: k.HasGPU, HasNestedVirt: k.HasNestedVirt,
			HasSecureBoot: k.HasSecureBoot, HasTPM: k.HasTPM, Architecture: k.Architecture, KVMVersion: k.KVMVersion,
		},
	}
	if f.Region == "" {
		f.Region = c.o.Region
	}
	if f.AvailabilityZone == "" {
		f.AvailabilityZone = c.o.Zone
	}
	return f
}

func orOne(r *float64) float64 {
	if r == nil {
		return 1
	}
	return *r
}

// GetNode answers one node.
func (c *Control) GetNode(ctx context.Context, who iam.Caller, id string) (api.Node, error) {
	if err := iam.Allow(who, iam.GetNode, iam.Scope{NodeID: id}); err != nil {
		return api.Node{}, err
	}
	var n compute.Node
	err := c.db.Read(ctx, func(tx *store.Tx) (err error) {
		n, err = c.node(tx, id)
		return err
	})
	return c.nodeView(&n, c.now()), err
}

// node reads a node with the install's own rules applied.
func (c *Control) node(tx *store.Tx, id string) (compute.Node, error) {
	n, err := tx.Node(id)
	if err != nil {
		return n, notFound(err, "there is no node %q; list them with: outcrop node list", id)
	}
	return n, nil
}

// ListNodes answers a page of nodes in id order.
func (c *Control) ListNodes(ctx context.Context, who iam.Caller, p Page) (api.List[api.Node], error) {
	out := api.List[api.Node]{Items: []api.Node{}}
	if err := iam.Allow(who, iam.ListNodes, iam.Scope{}); err != nil {
		return out, err
	}
	now := c.now()
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		rows, err := tx.Nodes(p.Cursor, p.limit()+1)
		for i := range rows[:min(len(rows), p.limit())] {
			out.Items = append(out.Items, c.nodeView(&rows[i], now))
		}
		if len(rows) > p.limit() {
			out.NextCursor = rows[p.limit()-1].ID
		}
		return err
	})
	return out, err
}

// UpdateNode changes what an operator wants of a node (contract N-08, N-09).
func (c *Control) UpdateNode(ctx context.Context, who iam.Caller, id string, in api.PatchNode) (api.Node, error) {
	if err := iam.Allow(who, iam.UpdateNode, iam.Scope{NodeID: id}); err != nil {
		return api.Node{}, err
	}
	if err := CheckPatchNode(in); err != nil {
		return api.Node{}, err
	}
	var before, n compute.Node
	err := c.db.Write(ctx, func(tx *store.Tx) (err error) {
		if n, err = tx.NodeToChange(id); err != nil {
			return notFound(err, "there is no node %q; list them with: outcrop node list", id)
		}
		before = n
		patchSpec(&n.Spec, in)
		return tx.UpdateNode(&n)
	})
	if err != nil {
		return api.Node{}, err
	}
	c.logOverrides(ctx, &before, &n)
	c.place.poke() // there may be more room now
	return c.nodeView(&n, c.now()), nil
}

// logOverrides notes the labels whose declared value wins over what was detected,
// when they are others than before (contract N-15). before is nil for a new node.
func (c *Control) logOverrides(ctx context.Context, before, now *compute.Node) {
	var had []compute.Override
	if before != nil {
		_, had = before.Labels()
	}
	_, has := now.Labels()
	for _, o := range has {
		if !slices.Contains(had, o) {
			c.log.InfoContext(ctx, "a declared label overrides what was detected", "node", now.ID, "label", o.Key, "declared", o.Declared, "detected", o.Detected)
		}
	}
	for _, o := range had {
		if !slices.ContainsFunc(has, func(h compute.Override) bool { return h.Key == o.Key }) {
			c.log.InfoContext(ctx, "a declared label overrides nothing any more", "node", now.ID, "label", o.Key)
		}
	}
}

// CheckPatchNode names every problem that a change of a node has by itself.
func CheckPatchNode(in api.PatchNode) error {
	var f []fault.Field
	add := func(path, msg string) { f = append(f, fault.Field{Path: path, Message: msg}) }
	count := func(path string, v api.Nullable[int64]) {
		if v.Set && !v.Null && v.Value < 0 {
			add(path, "must not be negative")
		}
	}
	ratio := func(path string, v api.Nullable[float64]) {
		if v.Set && !v.Null && v.Value <= 0 {
			add(path, "must be above 0")
		}
	}
	count("reservedVCPUs", in.ReservedVCPUs)
	count("reservedMemoryBytes", in.ReservedMemoryBytes)
	ratio("vcpuOvercommitRatio", in.VCPUOvercommitRatio)
	ratio("memoryOvercommitRatio", in.MemoryOvercommitRatio)
	for _, k := range slices.Sorted(maps.Keys(in.DeclaredCapabilities)) {
		if v := in.DeclaredCapabilities[k]; v == nil {
			continue // a label may always be taken back
		} else if err := compute.CheckDeclaredLabel(k, *v); err != nil {
			add("declaredCapabilities."+k, err.Error())
		}
	}
	return fault.InvalidFields(f)
}

func patchSpec(s *compute.NodeSpec, in api.PatchNode) {
	if in.DisplayName != nil {
		s.DisplayName = *in.DisplayName
	}
	if in.ReservedVCPUs.Set {
		s.ReservedVCPUs = in.ReservedVCPUs.Pointer()
	}
	if in.ReservedMemoryBytes.Set {
		s.ReservedMemoryBytes = in.ReservedMemoryBytes.Pointer()
	}
	if in.VCPUOvercommitRatio.Set {
		s.VCPUOvercommitRatio = in.VCPUOvercommitRatio.Pointer()
	}
	if in.MemoryOvercommitRatio.Set {
		s.MemoryOvercommitRatio = in.MemoryOvercommitRatio.Pointer()
	}
	if len(in.DeclaredCapabilities) == 0 {
		return
	}
	declared := maps.Clone(s.DeclaredCapabilities)
	if declared == nil {
		declared = map[string]string{}
	}
	for k, v := range in.DeclaredCapabilities {
		if v == nil {
			delete(declared, k)
		} else {
			declared[k] = *v
		}
	}
	s.DeclaredCapabilities = declared
}

// DeleteNode forgets a node that holds nothing, and ends its key and its tokens.
func (c *Control) DeleteNode(ctx context.Context, who iam.Caller, id string) error {
	if err := iam.Allow(who, iam.DeleteNode, iam.Scope{NodeID: id}); err != nil {
		return err
	}
	gone := false
	err := c.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.LockPlacement(); err != nil { // nothing comes there meanwhile
			return err
		}
		placed, err := tx.InstancesOn(id)
		if err != nil {
			return err
		}
		if len(placed) > 0 {
			return fault.Coded(fault.Conflict, fault.NodeInUse, "%d instances are placed on node %q, the first is %s; terminate them first", len(placed), id, placed[0].ID)
		}
		coming, err := tx.IncomingOn(id)
		if err != nil {
			return err
		}
		if coming > 0 {
			return fault.Coded(fault.Conflict, fault.NodeInUse, "%d instances are on their way to node %q; wait for them, or cordon it first", coming, id)
		}
		if err := forgetVolumes(tx, id); err != nil {
			return err
		}
		if err := tx.RevokeNodeTokens(id); err != nil {
			return err
		}
		joined, err := tx.DeleteJoin(id)
		if err != nil {
			return err
		}
		err = tx.DeleteNode(id)
		if gone = err == nil; joined && errors.Is(err, store.ErrNotFound) {
			return nil // it never reported
		}
		return notFound(err, "there is no node %q; list them with: outcrop node list", id)
	})
	if err == nil {
		if gone {
			c.nodes.Add(-1)
		}
		c.obs.forget(id)
		c.beats.forget(id)
		c.skews.note(id, false, time.Time{})
		c.hub.nudge(id)
	}
	return err
}

// forgetVolumes drops the volumes that were to go from a node. It is refused where there
// are others: whoever has them could neither use nor delete them any more.
func forgetVolumes(tx *store.Tx, nodeID string) error {
	all, err := tx.VolumesOn(nodeID)
	if err != nil {
		return err
	}
	for _, v := range all {
		if !v.Going {
			return fault.Coded(fault.Conflict, fault.NodeInUse, "volume %s of project %q is on node %q, attached to no instance; delete it first", v.ID, v.ProjectID, nodeID)
		}
		if err := tx.DeleteVolume(v.ID); err != nil {
			return err
		}
	}
	return nil
}

// nodeView renders a node for the wire. What is derived is derived here, on
// every read.
func (c *Control) nodeView(n *compute.Node, now time.Time) api.Node {
	n.Spec.Computed = c.computed()
	r, source := n.Reservation()
	room := n.Committable()
	k := &n.Facts.Capacity
	v := api.Node{
		ID: n.ID, DisplayName: n.Spec.DisplayName, Hostname: n.Facts.Hostname, Role: string(n.Facts.Role), Region: n.Facts.Region,
		AvailabilityZone: n.Facts.AvailabilityZone, Architecture: n.Facts.Architecture, State: string(n.State()),
		Capacity: api.HeartbeatCapacity{
			TotalVCPUs: k.TotalVCPUs, ReservedVCPUs: k.ReservedVCPUs, VCPUOvercommitRatio: &k.VCPUOvercommitRatio, CommittedVCPUs: k.CommittedVCPUs,
			TotalMemoryBytes: k.TotalMemoryBytes, ReservedMemoryBytes: k.ReservedMemoryBytes, MemoryOvercommitRatio: &k.MemoryOvercommitRatio,
			CommittedMemoryBytes: k.CommittedMemoryBytes, TotalDiskBytes: k.TotalDiskBytes, HasGPU: k.HasGPU, HasNestedVirt: k.HasNestedVirt,
			HasSecureBoot: k.HasSecureBoot, HasTPM: k.HasTPM, Architecture: k.Architecture, KVMVersion: k.KVMVersion,
			SampledAt: optional(n.Liveness.SampledAt),
		},
		ReservedVCPUs: r.VCPUs, ReservedMemoryBytes: r.MemoryBytes, ReservationSource: string(source),
		CommittableVCPUs: room.VCPUs, CommittableMemoryBytes: room.MemoryBytes,
		CommittedVCPUs: n.Used.VCPUs, CommittedMemoryBytes: n.Used.MemoryBytes, CommittedDiskBytes: n.Used.DiskBytes,
		DetectedCapabilities: compute.WithoutFormer(n.Facts.Capabilities), DeclaredCapabilities: n.Spec.DeclaredCapabilities,
		HeartbeatIntervalSeconds: int64(c.o.HeartbeatInterval / time.Second),
		LastSeenAt:               n.Liveness.SeenAt, CreatedAt: n.CreatedAt,
	}
	v.VCPUOvercommitRatio, v.MemoryOvercommitRatio = n.Ratios()
	var overrides []compute.Override
	v.Capabilities, overrides = n.Labels()
	for _, o := range overrides {
		v.Overrides = append(v.Overrides, api.LabelOverride{Key: o.Key, Declared: o.Declared, Detected: o.Detected})
	}
	v.CommittedCapabilities = n.Held
	v.FreeCapabilities = compute.FreeCountables(compute.Countables(v.Capabilities), n.Held)
	v.Liveness, v.Maintenance = c.liveness(n, now), maintenanceView(n)
	v.Findings = c.findings(n, &v, now)
	v.PowerAction, v.EnforceReservation = powerView(n), c.computed()
	v.DeclaredOffAt = optional(n.Maintenance.DeclaredOff)
	return v
}

func (c *Control) liveness(n *compute.Node, now time.Time) api.NodeLiveness {
	status, since := n.Liveness.Status(now, c.since, c.o.HeartbeatInterval)
	l := api.NodeLiveness{Status: string(status), Since: since}
	switch status {
	case compute.LivenessSuspect:
		l.Reason = "the last heartbeat is late"
	case compute.LivenessUnreachable:
		l.Reason = fmt.Sprintf("no heartbeat for %s; look at the node and its network, and at: journalctl -u outcrop-node", now.Sub(n.Liveness.SeenAt).Round(time.Second))
	}
	if !n.Liveness.SampledAt.IsZero() {
		skew := n.Liveness.SampledAt.Sub(n.Liveness.SeenAt).Milliseconds()
		l.ClockSkewMS = &skew
	}
	return l
}

// maxSkew is how far a node's clock may be off before that is a finding.
const maxSkew = 30 * time.Second

// isSkewed reports whether a node's clock was off when it was last heard of, as far as
// it says what its clock shows.
func isSkewed(l *compute.Liveness) bool {
	return !l.SampledAt.IsZero() && l.SampledAt.Sub(l.SeenAt).Abs() > maxSkew
}

// nextSteps says what to do about findings that bring no step of their own: those
// of agents, and those that heartbeats show.
var nextSteps = map[string]string{
	"ClockSkew":              "set the node's clock by NTP",
	"Unreachable":            "look at the node and its network, and there at: journalctl -u outcrop-node",
	"LowDisk":                "make room on the node, or move instances away",
	"HypervisorUnreachable":  "look at libvirt on the node: systemctl status libvirtd virtqemud",
	"NoKVM":                  "enable virtualisation in the firmware, or nested virtualisation where the node is a VM itself",
	"NoLimits":               "give libvirt control groups on the node",
	"NetworkTrouble":         "look at the node's agent: journalctl -u outcrop-node",
	"HypervisorSetup":        "set libvirt up on the node as it says, then restart its agent",
	"UnknownVolumes":         "remove their folders on the node if nobody needs them",
	"ImageNotMade":           "it is tried again by itself; look at the node's agent: journalctl -u outcrop-node",
	"WasDeclaredOff":         "look why nobody heard of it; start those of its instances that are to run",
	"NoSystemd":              "reserve memory by other means, or run the node with systemd",
	"ReservationNotEnforced": "look at the node's agent: journalctl -u outcrop-node",
}

// findings are what an operator should know about a node: what its agent found,
// and what the platform sees.
func (c *Control) findings(n *compute.Node, v *api.Node, now time.Time) []api.Finding {
	out := c.obs.findings(n.ID)
	if l := &n.Liveness; isSkewed(l) {
		since := c.skews.of(n.ID, l.SeenAt)
		out = append(out, api.Finding{Code: "ClockSkew", Since: &since, Message: fmt.Sprintf(
			"the node's clock is %s off; liveness does not depend on it, certificates do", l.SampledAt.Sub(l.SeenAt).Round(time.Second))})
	}
	if v.Liveness.Status == string(compute.LivenessUnreachable) && n.State() != compute.NodeOff {
		since := v.Liveness.Since
		out = append(out, api.Finding{Code: "Unreachable", Message: "the node does not report; what runs there is not known, and nothing is placed there", Since: &since})
	}
	if f, ok := wasDeclaredOff(n, now); ok {
		out = append(out, f)
	}
	for _, f := range n.Findings() {
		found := api.Finding{Code: f.Code, Message: f.Message, NextStep: f.Next}
		if since, ok := n.Standing[f.Code]; ok {
			found.Since = &since
		}
		out = append(out, found)
	}
	for i := range out {
		if out[i].NextStep == "" {
			out[i].NextStep = nextSteps[out[i].Code]
		}
	}
	return out
}
