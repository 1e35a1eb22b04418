package control

import (
	"context"
	"errors"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// CreatePlacementGroup makes a placement group. key is the Idempotency-Key, or empty.
func (c *Control) CreatePlacementGroup(ctx context.Context, who iam.Caller, project string, in api.CreatePlacementGroup, key string) (api.PlacementGroup, error) {
	if err := iam.Allow(who, iam.CreatePlacementGroup, iam.Scope{ProjectID: project}); err != nil {
		return api.PlacementGroup{}, err
	}
	g := compute.PlacementGroup{ID: compute.NewID(compute.GroupPrefix), ProjectID: project, Name: in.Name, Rule: ruleOf(in)}
	if err := checkGroup(&g); err != nil {
		return api.PlacementGroup{}, err
	}
	return once(ctx, c, "placement-groups/"+project, key, in, func(tx *store.Tx) (api.PlacementGroup, error) {
		if err := projectExists(tx, project); err != nil {
			return api.PlacementGroup{}, err
		}
		g.CreatedAt = tx.Now
		return groupView(&g, 0), groupNamed(tx.InsertPlacementGroup(&g), g.Name)
	})
}

// ruleOf is the rule that a create asks for, with what it leaves out filled in.
func ruleOf(in api.CreatePlacementGroup) compute.GroupRule {
	r := compute.GroupRule{Kind: compute.GroupKind(in.Kind), Level: compute.Level(in.Level), Strict: in.Strict == nil || *in.Strict, Partitions: in.Partitions}
	if in.Level == "" {
		r.Level = compute.LevelNode
	}
	if r.Kind == compute.GroupPartition && r.Partitions == 0 {
		r.Partitions = 2
	}
	return r
}

func checkGroup(g *compute.PlacementGroup) error {
	var f []fault.Field
	checkName(g.Name, func(path, format string, args ...any) { f = append(f, fault.Field{Path: path, Message: format}) })
	if err := g.Rule.Check(); err != nil {
		f = append(f, fault.Field{Path: ruleField(g.Rule), Message: err.Error()})
	}
	return fault.InvalidFields(f)
}

// ruleField is the field that is wrong with a rule.
func ruleField(r compute.GroupRule) string {
	probe := compute.GroupRule{Kind: compute.GroupSpread, Level: r.Level}
	switch {
	case probe.Check() != nil:
		return "level"
	case r.Kind != compute.GroupSpread && r.Kind != compute.GroupCluster && r.Kind != compute.GroupPartition:
		return "kind"
	case r.Kind == compute.GroupPartition && !r.Strict && r.Partitions >= 2 && r.Partitions <= compute.MaxPartitions:
		return "strict"
	}
	return "partitions"
}

func groupNamed(err error, name string) error {
	if errors.Is(err, store.ErrExists) {
		return fault.Coded(fault.Conflict, fault.AlreadyExists, "the project has a placement group %q already; choose another name", name)
	}
	return err
}

// GetPlacementGroup answers one placement group.
func (c *Control) GetPlacementGroup(ctx context.Context, who iam.Caller, project, id string) (out api.PlacementGroup, err error) {
	if err := iam.Allow(who, iam.GetPlacementGroup, iam.Scope{ProjectID: project}); err != nil {
		return out, err
	}
	err = c.db.Read(ctx, func(tx *store.Tx) error {
		g, err := placementGroup(tx, project, id)
		if err != nil {
			return err
		}
		members, err := tx.GroupMembers(id)
		out = groupView(&g, int64(len(members)))
		return err
	})
	return out, err
}

func placementGroup(tx *store.Tx, project, id string) (compute.PlacementGroup, error) {
	g, err := tx.PlacementGroup(project, id)
	return g, notFound(err, "there is no placement group %q in project %q", id, project)
}

// ListPlacementGroups answers a page of a project's placement groups, oldest first.
func (c *Control) ListPlacementGroups(ctx context.Context, who iam.Caller, project string, p Page) (api.List[api.PlacementGroup], error) {
	if err := iam.Allow(who, iam.ListPlacementGroups, iam.Scope{ProjectID: project}); err != nil {
		return api.List[api.PlacementGroup]{}, err
	}
	var members map[string]int64
	return pageByAge(ctx, c, p, func(tx *store.Tx, after store.Cursor, limit int) (rows []compute.PlacementGroup, err error) {
		if err := projectExists(tx, project); err != nil {
			return nil, err
		}
		if members, err = tx.CountGroupMembers(project); err != nil {
			return nil, err
		}
		return tx.PlacementGroups(project, after, limit)
	}, func(g *compute.PlacementGroup) (api.PlacementGroup, store.Cursor) {
		return groupView(g, members[g.ID]), store.After(g.CreatedAt, g.ID)
	})
}

// UpdatePlacementGroup changes the name or the rule of a group. Its members stay
// where they are.
func (c *Control) UpdatePlacementGroup(ctx context.Context, who iam.Caller, project, id string, in api.PatchPlacementGroup) (out api.PlacementGroup, err error) {
	if err := iam.Allow(who, iam.UpdatePlacementGroup, iam.Scope{ProjectID: project}); err != nil {
		return out, err
	}
	err = c.db.Write(ctx, func(tx *store.Tx) error {
		g, err := placementGroup(tx, project, id)
		if err != nil {
			return err
		}
		if in.Name != nil {
			g.Name = *in.Name
		}
		if in.Level != nil {
			g.Rule.Level = compute.Level(*in.Level)
		}
		if in.Strict != nil {
			g.Rule.Strict = *in.Strict
		}
		if err := checkGroup(&g); err != nil {
			return err
		}
		if err := tx.UpdatePlacementGroup(&g); err != nil {
			return groupNamed(err, g.Name)
		}
		members, err := tx.GroupMembers(id)
		out = groupView(&g, int64(len(members)))
		return err
	})
	c.place.poke()
	return out, err
}

// DeletePlacementGroup removes a group. Its members run on and lose the reference
// (contract U-14).
func (c *Control) DeletePlacementGroup(ctx context.Context, who iam.Caller, project, id string) error {
	if err := iam.Allow(who, iam.DeletePlacementGroup, iam.Scope{ProjectID: project}); err != nil {
		return err
	}
	err := retryStale(func() error {
		return c.db.Write(ctx, func(tx *store.Tx) error {
			// First the lock: nobody joins, or is placed by the rule, from here on.
			if _, err := tx.LockPlacement(); err != nil {
				return err
			}
			g, err := placementGroup(tx, project, id)
			if err != nil {
				return err
			}
			members, err := tx.GroupMembers(id)
			if err != nil {
				return err
			}
			for n := range members {
				i := &members[n]
				i.Spec.PlacementGroupID = ""
				if err := tx.UpdateInstance(i); err != nil {
					return err
				}
				if err := event(tx, &i.Instance, who.Name, "placement-group", "the placement group "+g.Name+" was deleted; nothing holds the instance to its rule any more"); err != nil {
					return err
				}
			}
			return tx.DeletePlacementGroup(id)
		})
	})
	c.place.poke()
	return err
}

// ListPlacementViolations answers where a group does not stand as its rule says.
func (c *Control) ListPlacementViolations(ctx context.Context, who iam.Caller, project, id string) (api.List[api.GroupViolation], error) {
	out := api.List[api.GroupViolation]{Items: []api.GroupViolation{}}
	if err := iam.Allow(who, iam.ListPlacementViolations, iam.Scope{ProjectID: project}); err != nil {
		return out, err
	}
	fleet, g, _, err := c.groupAndFleet(ctx, project, id)
	if err == nil {
		out.Items = violationsView(fleet, g, who)
	}
	return out, err
}

// PlanRebalance proposes moves that bring a group nearer to its rule.
func (c *Control) PlanRebalance(ctx context.Context, who iam.Caller, project, id string) (api.RebalancePlan, error) {
	out := api.RebalancePlan{Moves: []api.RebalanceMove{}}
	if err := iam.Allow(who, iam.PlanRebalance, iam.Scope{ProjectID: project}); err != nil {
		return out, err
	}
	fleet, g, members, err := c.groupAndFleet(ctx, project, id)
	if err != nil {
		return out, err
	}
	out.Violations = violationsView(fleet, g, who)
	if len(out.Violations) == 0 {
		return out, nil
	}
	for _, m := range schedule.Rebalance(fleet, *g, members) {
		move := api.RebalanceMove{InstanceID: m.InstanceID}
		if seesNodes(who) {
			move.From, move.To = m.From, m.To
		}
		out.Moves = append(out.Moves, move)
	}
	return out, nil
}

// groupAndFleet reads a group, its placed members, and the fleet at one moment.
func (c *Control) groupAndFleet(ctx context.Context, project, id string) (s *schedule.Snapshot, g *schedule.Group, members []schedule.Member, err error) {
	err = c.lookAtFleet(ctx, func(tx *store.Tx, ix *schedule.Index) error {
		row, err := placementGroup(tx, project, id)
		if err != nil {
			return err
		}
		g = &schedule.Group{ID: row.ID, Rule: row.Rule}
		rows, err := tx.GroupMembers(id)
		if err != nil {
			return err
		}
		details, err := tx.DetailsOfGroup(id)
		if err != nil {
			return err
		}
		members = nil
		for n := range rows {
			i := &rows[n]
			if i.NodeID == "" {
				continue
			}
			held, err := tx.Allocation(i.ID, store.Holding)
			if err != nil {
				return err
			}
			r := requestOf(&i.Instance, usage(&i.Instance, details.Of(i.ID)).DiskBytes)
			r.From = &held.Allocation
			members = append(members, schedule.Member{InstanceID: i.ID, Request: r})
		}
		s = ix.Snapshot()
		return nil
	})
	return s, g, members, err
}

// seesNodes reports whether a caller may know which nodes there are.
func seesNodes(who iam.Caller) bool { return who.Role == iam.Operator }

func violationsView(s *schedule.Snapshot, g *schedule.Group, who iam.Caller) []api.GroupViolation {
	out := []api.GroupViolation{}
	for _, v := range schedule.Violations(s, []schedule.Group{*g}) {
		w := api.GroupViolation{Level: string(v.Level), Strict: v.Strict, Members: v.Members, Excess: v.Excess, Message: v.Text}
		if seesNodes(who) {
			w.Domain, w.Zone, w.NodeIDs = v.Domain, v.Zone, v.NodeIDs
		}
		out = append(out, w)
	}
	return out
}

func groupView(g *compute.PlacementGroup, members int64) api.PlacementGroup {
	return api.PlacementGroup{
		ID: g.ID, ProjectID: g.ProjectID, Name: g.Name, Kind: string(g.Rule.Kind), Level: string(g.Rule.Level), Strict: g.Rule.Strict,
		Partitions: g.Rule.Partitions, Members: members, CreatedAt: g.CreatedAt,
	}
}
