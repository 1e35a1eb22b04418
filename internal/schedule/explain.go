package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Decision is the answer to a request.
type Decision struct {
	NodeID    string // empty when no node fits
	Partition int64  // that was chosen; 0 outside partition groups
	// EverFits reports whether some node would fit if the whole fleet were empty
	// and ready. Where it is false, waiting does not help.
	EverFits bool
	Nodes    int      // how many were looked at; with Reasons only
	Reasons  []Reason // why nodes were refused; filled when NodeID is empty, and by Explain
	Nearest  *Nearest // the refused node that misses least; nil when there is none
}

// Reason is one constraint that refused nodes. A node counts in every reason that
// refuses it.
type Reason struct {
	Code    Code
	Subject string
	Text    string // counts only, fit for a tenant
	Nodes   int
	Alone   int      // nodes that nothing else refuses
	NodeIDs []string // for operators: sorted, at most MaxNamed
}

// MaxNamed bounds the node ids of a reason.
const MaxNamed = 100

// Nearest is the refused node that misses the fewest constraints.
type Nearest struct {
	NodeID string // for operators
	Misses []Shortfall
	Fix    string // what would make it fit; names no node
}

// ForTenant is d without the names of nodes.
func (d Decision) ForTenant() Decision {
	d.Reasons = slices.Clone(d.Reasons)
	for i := range d.Reasons {
		d.Reasons[i].NodeIDs = nil
	}
	if d.Nearest != nil {
		n := *d.Nearest
		n.NodeID = ""
		d.Nearest = &n
	}
	return d
}

// Explain is Place with the reasons of refused nodes in every case.
func Explain(s *Snapshot, r Request) Decision {
	d := Place(s, r)
	if d.NodeID == "" {
		return d
	}
	return explain(&r, d, s.census(r.Group), s.node(r.fromID()), s.views)
}

// Check says why the request may not go to the node; nil when it may. It looks at
// the node alone, so the commit of a decision calls it for the node as it is by
// then. Resizing an instance asks its own node through Request.From.
func Check(s *Snapshot, nodeID string, partition int64, r Request) []Shortfall {
	n := s.node(nodeID)
	if n == nil {
		return []Shortfall{{Code: CodeGone}}
	}
	q := newQuery(&r, s.census(r.Group), partition, s.node(r.fromID()))
	q.staying = true
	v := viewOf(n)
	return q.misses(&v, nil)
}

func (q *query) misses(v *view, buf []Shortfall) []Shortfall {
	q.check(v, func(s Shortfall) bool { buf = append(buf, s); return true })
	return buf
}

// explain adds to d why views are refused.
func explain(r *Request, d Decision, c census, from *Node, views func(func(*view) bool)) Decision {
	partition := d.Partition
	if d.NodeID == "" {
		partition = r.partitions(c)[0]
	}
	q := newQuery(r, c, partition, from)
	var t tally
	var buf []Shortfall
	for v := range views {
		d.Nodes++
		d.EverFits = d.EverFits || q.everFits(v)
		buf = q.misses(v, buf[:0])
		t.add(v.ID, buf)
	}
	d.Reasons = t.list()
	if t.id != "" {
		d.Nearest = &Nearest{t.id, t.nearest, Fix(t.nearest)}
	}
	return d
}

type tally struct {
	reasons []*tallied
	id      string // of the nearest miss
	nearest []Shortfall
}

type tallied struct {
	Reason
	most Shortfall // of the node that has the most free
}

func (t *tally) add(id string, misses []Shortfall) {
	for i := range misses {
		r := t.reason(&misses[i])
		if misses[i].Free > r.most.Free {
			r.most = misses[i]
		}
		r.Nodes++
		if len(misses) == 1 {
			r.Alone++
		}
		r.name(id)
	}
	if len(misses) > 0 && (t.id == "" || t.nearer(id, misses)) {
		t.id, t.nearest = id, slices.Clone(misses)
	}
}

// reason finds the reason of a miss. There are few, so looking at all of them is
// the fastest.
func (t *tally) reason(m *Shortfall) *tallied {
	for _, r := range t.reasons {
		if r.Code == m.Code && r.Subject == m.Subject {
			return r
		}
	}
	r := &tallied{Reason{Code: m.Code, Subject: m.Subject}, *m}
	t.reasons = append(t.reasons, r)
	return r
}

// name keeps the MaxNamed least ids in order, so that the list does not depend on
// the order in which nodes come by.
func (r *Reason) name(id string) {
	if len(r.NodeIDs) == MaxNamed && id > r.NodeIDs[MaxNamed-1] {
		return
	}
	i, _ := slices.BinarySearch(r.NodeIDs, id)
	r.NodeIDs = slices.Insert(r.NodeIDs, i, id)
	if len(r.NodeIDs) > MaxNamed {
		r.NodeIDs = r.NodeIDs[:MaxNamed]
	}
}

// nearer reports whether misses of node id are less than those of the nearest so
// far: fewer, then such that waiting may cure, then by the share that lacks.
func (t *tally) nearer(id string, misses []Shortfall) bool {
	return cmp.Or(
		cmp.Compare(len(misses), len(t.nearest)),
		cmp.Compare(severity(misses), severity(t.nearest)),
		cmp.Compare(lack(misses), lack(t.nearest)),
		cmp.Compare(id, t.id),
	) < 0
}

// severity is that of the worst miss.
func severity(misses []Shortfall) int {
	worst := 0
	for _, m := range misses {
		worst = max(worst, m.severity())
	}
	return worst
}

func (m Shortfall) severity() int {
	switch m.Code {
	case CodeVCPUs, CodeMemory, CodeDisk, CodeCountable:
		if m.Need > m.Total {
			return 2 // too small even when empty
		}
		return 0
	case CodeState, CodeUnreachable, CodeAvoided, CodeGroup, CodeGroupLevel, CodeCurrent, CodeGone:
		return 1
	case CodeRole:
		return 4
	}
	return 3 // another kind of machine or place than asked for
}

func lack(misses []Shortfall) float64 {
	sum := 0.0
	for _, m := range misses {
		if m.Need > 0 {
			sum += (float64(m.Need) - float64(m.Free)) / float64(m.Need)
		}
	}
	return sum
}

// list orders the reasons by how many nodes they refuse alone, then at all.
func (t *tally) list() []Reason {
	var list []Reason
	for _, r := range t.reasons {
		r.Text = r.text()
		list = append(list, r.Reason)
	}
	slices.SortFunc(list, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(b.Alone, a.Alone), cmp.Compare(b.Nodes, a.Nodes),
			cmp.Compare(a.Code, b.Code), cmp.Compare(a.Subject, b.Subject))
	})
	return list
}

// text says the reason in counts.
func (r *tallied) text() string {
	n, are, have := "1 node", "is", "has"
	do := "does"
	if r.Nodes != 1 {
		n, are, have, do = strconv.Itoa(r.Nodes)+" nodes", "are", "have", "do"
	}
	room := func(what string, format func(int64) string) string {
		return fmt.Sprintf("%s %s too %s free: %s needed, at most %s free", n, have, what, format(r.most.Need), format(max(0, r.most.Free)))
	}
	switch r.Code {
	case CodeRole:
		return fmt.Sprintf("%s %s of the role %s, which runs no instances", n, are, r.Subject)
	case CodeState:
		return fmt.Sprintf("%s %s in the state %s", n, are, r.Subject)
	case CodeUnreachable:
		return fmt.Sprintf("%s %s unreachable", n, are)
	case CodeRegion, CodeZone:
		return fmt.Sprintf("%s %s not in the %s %s", n, are, strings.ToLower(string(r.Code)), r.Subject)
	case CodeArchitecture:
		return fmt.Sprintf("%s %s of another architecture than %s", n, are, r.Subject)
	case CodeSelector:
		return fmt.Sprintf("%s %s not match %s", n, do, r.Subject)
	case CodeVCPUs:
		return room("few vCPUs", units)
	case CodeMemory:
		return room("little memory", size)
	case CodeDisk:
		return room("little disk", size)
	case CodeCountable:
		return room("few "+r.Subject, units)
	case CodeNotReported:
		return fmt.Sprintf("%s %s not report %s", n, do, r.Subject)
	case CodeGroup:
		return fmt.Sprintf("%s %s ruled out by the placement group, at the level of the %s", n, are, r.Subject)
	case CodeGroupLevel:
		return fmt.Sprintf("%s %s no declared %s, which the placement group asks for", n, have, r.Subject)
	case CodeAvoided:
		return fmt.Sprintf("%s %s to be avoided this time", n, are)
	default:
		return fmt.Sprintf("%s %s where the instance is now", n, are)
	}
}

// Fix says what would make a node with these misses fit.
func Fix(misses []Shortfall) string {
	var steps []string
	for _, m := range misses {
		steps = append(steps, m.fix())
	}
	return strings.Join(steps, "; and ")
}

func (m Shortfall) fix() string {
	room := func(what string, format func(int64) string) string {
		if m.Need > m.Total {
			return fmt.Sprintf("%s: ask for at most %s, all that it holds when empty", what, format(max(0, m.Total)))
		}
		lacks := m.Need - m.Free
		if lacks < 0 { // out of range
			lacks = math.MaxInt64
		}
		more := fmt.Sprintf("%s: free %s more", what, format(lacks))
		if m.Free > 0 {
			more += ", or ask for at most " + format(m.Free)
		}
		return more
	}
	switch m.Code {
	case CodeRole:
		return "give it a role that runs instances (" + string(compute.RoleHybrid) + " or " + string(compute.RoleHypervisor) + ")"
	case CodeState:
		return "bring it back from " + m.Subject + " to ready"
	case CodeUnreachable:
		return "bring its agent back in touch"
	case CodeRegion, CodeZone, CodeArchitecture:
		return "ask for another " + strings.ToLower(string(m.Code)) + " than " + m.Subject + ", or for any"
	case CodeSelector:
		return "drop the selector " + m.Subject + ", or label a node to match"
	case CodeVCPUs:
		return room("vCPUs", units)
	case CodeMemory:
		return room("memory", size)
	case CodeDisk:
		return room("disk", size)
	case CodeCountable:
		return room(m.Subject, units)
	case CodeNotReported:
		return "declare its " + m.Subject
	case CodeGroup:
		if m.Subject == string(compute.LevelNode) {
			return "add a node, or make the rule best effort"
		}
		return "add a node on a " + m.Subject + " that the group's rule allows, or make the rule best effort"
	case CodeGroupLevel:
		return "declare its " + m.Subject
	case CodeAvoided:
		return "do not avoid it"
	default:
		return "leave the instance where it is"
	}
}

func units(n int64) string { return strconv.FormatInt(n, 10) }

// size is n bytes in the largest unit that divides it, so that no rounding hides
// a small lack.
func size(n int64) string {
	names := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(names)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatInt(n, 10) + " " + names[i]
}
