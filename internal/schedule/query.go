package schedule

import (
	"maps"
	"math"
	"slices"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// query is a request made ready to be asked of many nodes.
type query struct {
	*Request
	need    compute.Usage
	keys    []string // of Countables with a need, sorted
	level   int      // of the group's rule, an index into levels
	ranks   ranks
	texts   []string // of Selectors, as far as they were asked for
	staying bool     // the node that the instance is on may be asked
}

// newQuery makes r ready. from is the node that the instance is on, nil when it
// is on none.
func newQuery(r *Request, c census, partition int64, from *Node) query {
	q := query{Request: r, need: r.Usage(), level: -1}
	for _, k := range slices.Sorted(maps.Keys(r.Countables)) {
		if r.Countables[k] > 0 {
			q.keys = append(q.keys, k)
		}
	}
	if r.Group != nil {
		q.level = levelOf(r.Group.Rule.Level)
		var given domain
		if from != nil {
			given = domainOf(from, levels[q.level])
		}
		q.ranks = newRanks(r, c, partition, given)
	}
	return q
}

// Code names a constraint.
type Code string

const (
	CodeRole         Code = "ROLE"               // subject: the role
	CodeState        Code = "STATE"              // subject: the state
	CodeUnreachable  Code = "UNREACHABLE"        //
	CodeRegion       Code = "REGION"             // subject: the region asked for
	CodeZone         Code = "ZONE"               // subject: the zone asked for
	CodeArchitecture Code = "ARCHITECTURE"       // subject: the architecture asked for
	CodeSelector     Code = "SELECTOR"           // subject: the selector
	CodeVCPUs        Code = "VCPUS"              //
	CodeMemory       Code = "MEMORY"             // bytes
	CodeDisk         Code = "DISK"               // bytes
	CodeCountable    Code = "COUNTABLE"          // subject: the label's key
	CodeNotReported  Code = "NOT_REPORTED"       // subject: the key of a countable that the node does not report
	CodeGroup        Code = "GROUP"              // subject: the level
	CodeGroupLevel   Code = "GROUP_LEVEL_ABSENT" // subject: the level, which the node does not declare
	CodeAvoided      Code = "AVOIDED"            // the operation asked not to use the node
	CodeCurrent      Code = "CURRENT"            // the instance is on the node already
	CodeGone         Code = "GONE"               // there is no such node any more; from Check only
)

// Shortfall is one constraint that a node does not meet. Need, Free and Total are
// set for room and countables; Free is negative on a node that is over-full.
type Shortfall struct {
	Code    Code
	Subject string
	Need    int64
	Free    int64
	Total   int64
}

// check calls miss for every constraint that v does not meet, until it says false.
func (q *query) check(v *view, miss func(Shortfall) bool) {
	_ = q.checkPlace(v, miss) && q.checkRoom(v, miss) && q.checkGroup(v, miss)
}

func (q *query) fits(v *view) bool {
	ok := true
	q.check(v, func(Shortfall) bool { ok = false; return false })
	return ok
}

// checkPlace looks at what does not depend on what is allocated.
func (q *query) checkPlace(v *view, miss func(Shortfall) bool) bool {
	refuse := func(bad bool, c Code, subject string) bool {
		return !bad || miss(Shortfall{Code: c, Subject: subject})
	}
	return refuse(!v.Role.RunsInstances(), CodeRole, string(v.Role)) &&
		refuse(v.State != compute.NodeReady, CodeState, string(v.State)) &&
		refuse(v.Liveness == compute.LivenessUnreachable, CodeUnreachable, "") &&
		refuse(!q.staying && q.From != nil && q.From.NodeID == v.ID, CodeCurrent, "") &&
		refuse(slices.Contains(q.Avoid, v.ID), CodeAvoided, "") &&
		refuse(q.Region != "" && q.Region != v.Region, CodeRegion, q.Region) &&
		refuse(q.Zone != "" && q.Zone != v.Zone, CodeZone, q.Zone) &&
		refuse(q.Architecture != "" && q.Architecture != v.Architecture, CodeArchitecture, q.Architecture) &&
		q.checkSelectors(v, miss)
}

func (q *query) checkSelectors(v *view, miss func(Shortfall) bool) bool {
	for i := range q.Selectors {
		if !q.Selectors[i].Matches(v.Labels) && !miss(Shortfall{Code: CodeSelector, Subject: q.selector(i)}) {
			return false
		}
	}
	return true
}

// selector is the text of a selector, written once.
func (q *query) selector(i int) string {
	if q.texts == nil {
		q.texts = make([]string, len(q.Selectors))
	}
	if q.texts[i] == "" {
		q.texts[i] = q.Selectors[i].String()
	}
	return q.texts[i]
}

// checkRoom refuses only growth: what a node has too much of is in nobody's way
// who does not ask for more of it (lesson 13).
func (q *query) checkRoom(v *view, miss func(Shortfall) bool) bool {
	var has Allocation
	if q.From != nil && q.From.NodeID == v.ID {
		has = *q.From
	}
	room := func(c Code, subject string, need, has, used, total int64) bool {
		if need <= max(0, has) {
			return true
		}
		free := less(total, less(max(0, used), max(0, has)))
		return need <= free || miss(Shortfall{c, subject, need, free, total})
	}
	if !room(CodeVCPUs, "", q.need.VCPUs, has.Usage.VCPUs, v.Used.VCPUs, v.Committable.VCPUs) ||
		!room(CodeMemory, "", q.need.MemoryBytes, has.Usage.MemoryBytes, v.Used.MemoryBytes, v.Committable.MemoryBytes) ||
		!room(CodeDisk, "", q.need.DiskBytes, has.Usage.DiskBytes, v.Used.DiskBytes, v.Committable.DiskBytes) {
		return false
	}
	for _, k := range q.keys {
		total, reported := v.Countables[k]
		need, has := q.Countables[k], has.Countables[k]
		if !reported && need > has {
			if !miss(Shortfall{Code: CodeNotReported, Subject: k, Need: need}) {
				return false
			}
		} else if !room(CodeCountable, k, need, has, v.Held[k], total) {
			return false
		}
	}
	return true
}

// less is a − b, held within int64; b is not negative.
func less(a, b int64) int64 {
	if a < math.MinInt64+b {
		return math.MinInt64
	}
	return a - b
}

func (q *query) checkGroup(v *view, miss func(Shortfall) bool) bool {
	if q.level < 0 || q.staying && q.From != nil && q.From.NodeID == v.ID {
		return true
	}
	d := v.domains[q.level]
	if _, ok := q.ranks.cost(d); ok {
		return true
	}
	code := CodeGroup
	if !d.declared() {
		code = CodeGroupLevel
	}
	return miss(Shortfall{Code: code, Subject: string(levels[q.level])})
}

// everFits reports whether the request would fit if the whole fleet were empty
// and ready.
func (q *query) everFits(v *view) bool {
	ok := v.Role.RunsInstances() &&
		(q.Region == "" || q.Region == v.Region) &&
		(q.Zone == "" || q.Zone == v.Zone) &&
		(q.Architecture == "" || q.Architecture == v.Architecture) &&
		q.need.VCPUs <= v.Committable.VCPUs && q.need.MemoryBytes <= v.Committable.MemoryBytes &&
		q.need.DiskBytes <= v.Committable.DiskBytes &&
		(q.level < 0 || !q.Group.Rule.Strict || v.domains[q.level].declared()) &&
		q.checkSelectors(v, func(Shortfall) bool { return false })
	for _, k := range q.keys {
		ok = ok && q.Countables[k] <= v.Countables[k]
	}
	return ok
}

// standing is where v stands among the nodes that fit.
func (q *query) standing(v *view) standing {
	s := standing{suspect: v.Liveness == compute.LivenessSuspect, stranded: stranded(v.free, q.keys), load: v.load, id: v.ID}
	if q.level >= 0 {
		s.cost, _ = q.ranks.cost(v.domains[q.level])
	}
	if q.Strategy == Pack {
		s.load = -s.load
	}
	return s
}

// stranded counts the free countables that were not asked for: an instance on
// such a node may keep one from it that needs them.
func stranded(free, asked []string) int {
	n := len(free)
	for _, k := range asked {
		if _, ok := slices.BinarySearch(free, k); ok {
			n--
		}
	}
	return n
}
