package schedule

import (
	"cmp"
	"maps"
	"slices"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// levels in the order in which a view holds its domains.
var levels = [...]compute.Level{compute.LevelNode, compute.LevelRack, compute.LevelPower, compute.LevelZone}

const zoneLevel = len(levels) - 1

func levelOf(l compute.Level) int { return max(0, slices.Index(levels[:], l)) }

// domain is one node, rack, power feed or zone. Names of racks and feeds count
// within their zone: "r1" of two zones are two racks. The zero domain stands for
// all nodes that do not declare the level.
type domain struct{ region, zone, name string }

func (d domain) declared() bool { return d.name != "" }

func (d domain) compare(e domain) int {
	return cmp.Or(cmp.Compare(d.region, e.region), cmp.Compare(d.zone, e.zone), cmp.Compare(d.name, e.name))
}

func domainOf(n *Node, l compute.Level) domain {
	var name string
	switch l {
	case compute.LevelNode:
		return domain{name: n.ID}
	case compute.LevelRack:
		name = n.Labels[compute.LabelRack]
	case compute.LevelPower:
		name = n.Labels[compute.LabelPower]
	case compute.LevelZone:
		name = n.Zone
	}
	if name == "" {
		return domain{}
	}
	return domain{n.Region, n.Zone, name}
}

// census counts the members of one group in each domain of its level.
type census map[domain]*count

// count is the number of members in a domain, by partition and in all.
type count struct {
	all       int64
	partition [compute.MaxPartitions + 1]int64
}

func (c census) add(d domain, partition, n int64) {
	k := c[d]
	if k == nil {
		k = new(count)
		c[d] = k
	}
	k.all += n
	k.partition[slot(partition)] += n
	if k.all == 0 {
		delete(c, d)
	}
}

// slot is where count holds a partition; what is none shares slot 0.
func slot(partition int64) int64 {
	if partition < 0 || partition > compute.MaxPartitions {
		return 0
	}
	return partition
}

func (s *Snapshot) census(g *Group) census {
	if g == nil {
		return nil
	}
	c := census{}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for seat, members := range n.Members {
			if seat.Group == g.ID && members > 0 {
				c.add(domainOf(n, g.Rule.Level), seat.Partition, members)
			}
		}
	}
	return c
}

// partitions are the partitions to try, the least populated first.
func (r *Request) partitions(c census) []int64 {
	g := r.Group
	if g == nil || g.Rule.Kind != compute.GroupPartition {
		return []int64{0}
	}
	if g.Partition != 0 {
		return []int64{g.Partition}
	}
	var sum [compute.MaxPartitions + 1]int64
	for _, k := range c {
		for p, n := range k.partition {
			sum[p] += n
		}
	}
	if f := r.From; f != nil && f.Seat.Group == g.ID {
		sum[slot(f.Seat.Partition)]--
	}
	order := make([]int64, min(g.Rule.Partitions, compute.MaxPartitions))
	for i := range order {
		order[i] = int64(i) + 1
	}
	slices.SortStableFunc(order, func(a, b int64) int { return int(sum[a] - sum[b]) })
	return order
}

// ranks say what a member more costs the rule of its group, by domain.
type ranks struct {
	rule      compute.GroupRule
	census    census
	partition int64
	given     domain // where the instance gives up its seat
	givenPart int64
	gives     bool
	home      domain // of a cluster; only when settled
	settled   bool
}

func newRanks(r *Request, c census, partition int64, given domain) ranks {
	k := ranks{rule: r.Group.Rule, census: c, partition: partition}
	if f := r.From; f != nil && f.Seat.Group == r.Group.ID && c[given] != nil {
		k.given, k.givenPart, k.gives = given, f.Seat.Partition, true
	}
	if k.rule.Kind == compute.GroupCluster {
		k.home, k.settled = k.findHome()
	}
	return k
}

// members are how many members a domain has, in all and of the own partition.
func (k *ranks) members(d domain) (all, own int64) {
	if c := k.census[d]; c != nil {
		all, own = c.all, c.partition[slot(k.partition)]
	}
	if k.gives && d == k.given {
		all--
		if slot(k.givenPart) == slot(k.partition) {
			own--
		}
	}
	return all, own
}

// findHome is the declared domain with the most members of a cluster. A cluster
// whose members all stand on nodes that do not declare the level is settled
// nowhere, that is in the zero domain.
func (k *ranks) findHome() (home domain, settled bool) {
	var most int64
	for _, d := range slices.SortedFunc(maps.Keys(k.census), domain.compare) {
		all, _ := k.members(d)
		if all == 0 {
			continue
		}
		settled = true
		if d.declared() && all > most {
			home, most = d, all
		}
	}
	return home, settled
}

// cost of one more member in d; false when the rule forbids it. 0 is the best.
func (k *ranks) cost(d domain) (int64, bool) {
	all, own := k.members(d)
	return k.price(all, own, d.declared(), d == k.home)
}

// fresh is the cost of one more member in a declared domain that has none.
func (k *ranks) fresh() (int64, bool) { return k.price(0, 0, true, false) }

func (k *ranks) price(all, own int64, declared, home bool) (int64, bool) {
	if k.rule.Strict && !declared {
		return 0, false
	}
	switch k.rule.Kind {
	case compute.GroupSpread:
		return 2*all + oneIf(!declared), all == 0 || !k.rule.Strict
	case compute.GroupCluster:
		if !k.settled {
			return oneIf(!declared), true
		}
		if declared && home {
			return 0, true
		}
		return 1 + oneIf(!declared), !k.rule.Strict
	default:
		return oneIf(own == 0), all == own
	}
}

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
