package schedule

import (
	"maps"
	"slices"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// maxPosted bounds the keys that have lists, and with it their memory.
const maxPosted = 64

// set is a set of entries.
type set map[*entry]struct{}

// postings find the nodes of a label that few nodes have. Only keys that a
// request has asked for get lists.
type postings struct {
	nodes map[string]int            // nodes with the key, of every key
	lists map[string]map[string]set // by key and value
}

func newPostings() postings {
	return postings{nodes: make(map[string]int), lists: make(map[string]map[string]set)}
}

func (p *postings) add(e *entry) {
	for k, v := range e.Labels {
		p.nodes[k]++
		if values, ok := p.lists[k]; ok {
			post(values, v, e)
		}
	}
}

func (p *postings) remove(e *entry) {
	for k, v := range e.Labels {
		if p.nodes[k]--; p.nodes[k] == 0 {
			delete(p.nodes, k)
			delete(p.lists, k)
		} else if of := p.lists[k][v]; of != nil {
			delete(of, e)
			if len(of) == 0 {
				delete(p.lists[k], v)
			}
		}
	}
}

func post(values map[string]set, v string, e *entry) {
	if values[v] == nil {
		values[v] = make(set)
	}
	values[v][e] = struct{}{}
}

// narrow returns sets that together hold every node that meets the selector with
// the fewest nodes; false when no selector is met by few.
func (ix *Index) narrow(selectors []compute.Selector) ([]set, bool) {
	var least []set
	most := len(ix.nodes) / ix.rare
	fewest := most + 1
	for i := range selectors {
		sets, ok := ix.sets(&selectors[i], most)
		if !ok {
			continue
		}
		n := 0
		for _, s := range sets {
			n += len(s)
		}
		if n < fewest {
			least, fewest = sets, n
		}
	}
	return least, fewest <= most
}

// sets are the nodes that meet the selector by having its label; false when it
// does not ask for the label to be there, or when surely more than most do.
func (ix *Index) sets(s *compute.Selector, most int) ([]set, bool) {
	n := ix.labels.nodes[s.Key]
	switch {
	case s.Op == compute.OpNotIn || s.Op == compute.OpMissing:
		return nil, false
	case n == 0:
		return nil, true
	case s.Op != compute.OpIn && n > most:
		return nil, false
	}
	values := ix.list(s.Key)
	if values == nil {
		return nil, false
	}
	if s.Op != compute.OpIn {
		return slices.Collect(maps.Values(values)), true
	}
	var sets []set
	for _, v := range s.Values {
		sets = append(sets, values[v])
	}
	return sets, true
}

// list is the key's list, made at its first use.
func (ix *Index) list(key string) map[string]set {
	if values, ok := ix.labels.lists[key]; ok || len(ix.labels.lists) == maxPosted {
		return values
	}
	values := make(map[string]set)
	for _, e := range ix.nodes {
		if v, ok := e.Labels[key]; ok {
			post(values, v, e)
		}
	}
	ix.labels.lists[key] = values
	return values
}
