package control

import (
	"context"
	"fmt"
	"strconv"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// ExplainPlacement says where a create with the same body would go, or why it
// would go nowhere. Tenants see counts, operators the names of nodes (lesson 18).
func (c *Control) ExplainPlacement(ctx context.Context, who iam.Caller, project string, in api.CreateInstance) (out api.PlacementExplanation, err error) {
	if err := iam.Allow(who, iam.ExplainPlacement, iam.Scope{ProjectID: project}); err != nil {
		return out, err
	}
	spec, _, err := launchSpec(in)
	if err != nil {
		return out, err
	}
	err = c.lookAtFleet(ctx, func(tx *store.Tx, ix *schedule.Index) error {
		l, err := planLaunch(tx, project, spec, &in)
		if err != nil {
			return err
		}
		room, err := roomOf(tx, project, false)
		if err != nil {
			return err
		}
		out = explanationView(ix.Explain(l.request), who)
		if l.group != nil {
			out.Group = l.group.Name
		}
		out.Quota = room.over(l.ask())
		if len(out.Quota) > 0 {
			out.Fits, out.NodeID = false, ""
			out.Message = quotaText(out.Quota)
		}
		return nil
	})
	return out, err
}

// launch is a create as far as nothing has to be written for it.
type launch struct {
	spec    compute.InstanceSpec
	image   compute.Image
	volumes []compute.Volume // data volumes
	group   *compute.PlacementGroup
	request schedule.Request
}

// planLaunch finds what a create names and what it needs.
func planLaunch(tx *store.Tx, project string, spec compute.InstanceSpec, in *api.CreateInstance) (*launch, error) {
	if err := projectExists(tx, project); err != nil {
		return nil, err
	}
	l := &launch{spec: spec}
	var err error
	if l.image, err = launchImage(tx, project, spec.ImageID); err != nil {
		return nil, err
	}
	l.spec.Architecture = l.image.Architecture
	if l.spec.RootVolumeBytes, err = rootSize(&spec, &l.image); err != nil {
		return nil, err
	}
	if l.volumes, err = dataVolumes(tx, project, &l.image, in.DataVolumes); err != nil {
		return nil, err
	}
	disk := l.spec.RootVolumeBytes
	for _, v := range l.volumes {
		disk += v.SizeBytes
	}
	l.request = requestOf(&compute.Instance{Spec: l.spec}, disk)
	if id := spec.PlacementGroupID; id != "" {
		g, err := tx.PlacementGroup(project, id)
		if fault.Is(notFound(err, "none"), fault.NotFound) {
			return nil, fault.InvalidFields([]fault.Field{{Path: "placementGroupId", Message: fmt.Sprintf("there is no placement group %q in this project; list them with: outcrop placement-group list", id)}})
		}
		if err != nil {
			return nil, err
		}
		l.group, l.request.Group = &g, &schedule.Group{ID: g.ID, Rule: g.Rule}
	}
	return l, nil
}

// ask is what the launch makes the project hold.
func (l *launch) ask() store.ProjectUsage {
	return store.ProjectUsage{Instances: 1, Usage: l.request.Usage()}
}

func explanationView(d schedule.Decision, who iam.Caller) api.PlacementExplanation {
	if !seesNodes(who) {
		d = d.ForTenant()
		if d.NodeID != "" {
			d.NodeID = ""
			return fitting(d, "a node fits: the instance would be placed now")
		}
	}
	if d.NodeID != "" {
		return fitting(d, "it would go to node "+d.NodeID)
	}
	v := explained(d)
	v.Message = "no node can take the instance: " + reasons(d)
	return v
}

func fitting(d schedule.Decision, message string) api.PlacementExplanation {
	v := explained(d)
	v.Fits, v.Message, v.NodeID = true, message, d.NodeID
	return v
}

func explained(d schedule.Decision) api.PlacementExplanation {
	v := api.PlacementExplanation{EverFits: d.EverFits, Nodes: d.Nodes, Reasons: []api.PlacementReason{}}
	for _, r := range d.Reasons {
		v.Reasons = append(v.Reasons, api.PlacementReason{Code: string(r.Code), Subject: r.Subject, Message: r.Text, Nodes: r.Nodes, Alone: r.Alone, NodeIDs: r.NodeIDs})
	}
	if n := d.Nearest; n != nil {
		near := &api.NearestMiss{NodeID: n.NodeID, Fix: n.Fix}
		for _, m := range n.Misses {
			s := api.Shortfall{Code: string(m.Code), Subject: m.Subject}
			switch m.Code {
			case schedule.CodeVCPUs, schedule.CodeMemory, schedule.CodeDisk, schedule.CodeCountable:
				s.Need, s.Free, s.Total = &m.Need, &m.Free, &m.Total
			}
			near.Misses = append(near.Misses, s)
		}
		v.Nearest = near
	}
	return v
}

// maxCountables bounds the countables of an instance.
const maxCountables = 16

// maxUnits bounds the units of one countable that an instance may ask for.
const maxUnits = 1 << 20

// checkWishes reads what a create asks of its node. It stays with the instance
// (lesson 17).
func checkWishes(spec *compute.InstanceSpec, in *api.CreateInstance, add addField) {
	for n, text := range in.Selectors {
		path := "selectors[" + strconv.Itoa(n) + "]"
		list, err := compute.ParseSelectors(text)
		switch {
		case err != nil:
			add(path, "%s", err.Error())
		case len(list) == 0:
			add(path, "is empty; write a condition like capability.sec.tpm=true")
		}
		spec.Selectors = append(spec.Selectors, list...)
	}
	if len(spec.Selectors) > compute.MaxSelectors {
		add("selectors", "has %d conditions, the limit is %d", len(spec.Selectors), compute.MaxSelectors)
	}
	if len(in.Countables) > maxCountables {
		add("countables", "has %d entries, the limit is %d", len(in.Countables), maxCountables)
	}
	for key, units := range in.Countables {
		switch kind := compute.LabelKindOf(key); {
		case kind != compute.KindCountable:
			add("countables."+key, "is a %s label, which has no units; countable are capability.net.sriov_vfs, capability.mem.hugepages_1g, capability.gpu.MODEL and capability.accel.MODEL", kind)
		case units < 1 || units > maxUnits:
			add("countables."+key, "is 1 to %d units", maxUnits)
		}
	}
	spec.Countables = in.Countables
	spec.PlacementGroupID = in.PlacementGroupID
}
