package schedule

import (
	"fmt"
	"maps"
	"slices"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Violation is one domain where a placement group does not stand as its rule
// says: a node got another label, the rule changed, or best effort was all there
// was.
type Violation struct {
	GroupID string
	Level   compute.Level
	Strict  bool
	Members int64  // of the group in the domain
	Excess  int64  // of these, how many would have to go
	Text    string // names no place, fit for a tenant
	// For operators.
	Domain  string   // the rack, power feed, zone or node; empty when undeclared
	Zone    string   // of the rack or power feed
	NodeIDs []string // with members, sorted
}

// Violations lists what is wrong with groups now, in the order of groups and then
// of domains.
func Violations(s *Snapshot, groups []Group) []Violation {
	var list []Violation
	for i := range groups {
		g := &groups[i]
		c := s.census(g)
		home := homeOf(c)
		for _, d := range slices.SortedFunc(maps.Keys(c), domain.compare) {
			if n := excess(g.Rule, c[d], d, home); n > 0 {
				list = append(list, Violation{
					GroupID: g.ID, Level: g.Rule.Level, Strict: g.Rule.Strict, Members: c[d].all, Excess: n,
					Text: violationText(g.Rule, c[d], d), Domain: d.name, Zone: d.zone, NodeIDs: s.membersIn(g, d),
				})
			}
		}
	}
	return list
}

// homeOf is the declared domain with the most members.
func homeOf(c census) domain {
	k := ranks{census: c}
	home, _ := k.findHome()
	return home
}

// excess is how many members of a domain stand against the rule. A strict rule
// counts everyone who stands where the level is not declared.
func excess(rule compute.GroupRule, c *count, d, home domain) int64 {
	switch {
	case rule.Strict && !d.declared():
		return c.all
	case rule.Kind == compute.GroupSpread:
		return c.all - 1
	case rule.Kind == compute.GroupCluster:
		if d.declared() && d == home {
			return 0
		}
		return c.all
	}
	return c.all - slices.Max(c.partition[:])
}

// totalExcess is the excess in all domains.
func totalExcess(rule compute.GroupRule, c census) int64 {
	var sum int64
	home := homeOf(c)
	for d, n := range c {
		sum += excess(rule, n, d, home)
	}
	return sum
}

func violationText(rule compute.GroupRule, c *count, d domain) string {
	members := "1 member stands"
	if c.all != 1 {
		members = fmt.Sprintf("%d members stand", c.all)
	}
	switch {
	case !d.declared():
		return fmt.Sprintf("%s on nodes that have no declared %s", members, rule.Level)
	case rule.Kind == compute.GroupSpread:
		return fmt.Sprintf("%s on one %s, where the rule wants 1", members, rule.Level)
	case rule.Kind == compute.GroupCluster:
		return fmt.Sprintf("%s on another %s than most of the group", members, rule.Level)
	}
	return fmt.Sprintf("%s on one %s, but not all in one partition", members, rule.Level)
}

func (s *Snapshot) membersIn(g *Group, d domain) []string {
	var ids []string
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if domainOf(n, g.Rule.Level) != d {
			continue
		}
		for seat, members := range n.Members {
			if seat.Group == g.ID && members > 0 {
				ids = append(ids, n.ID)
				break
			}
		}
	}
	slices.Sort(ids)
	return ids
}
