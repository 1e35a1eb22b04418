package schedule

import (
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Bounds of what an Index learns of labels, and with them of its memory.
const (
	maxDividing = 8  // keys that divide the pools
	maxValues   = 16 // of a key for it to divide the pools
	maxListed   = 64 // keys with lists
)

// postings are what an Index knows of labels. A key is learnt when a request first
// asks for it, which takes a look at every node: one with few values, as the name
// of a pool of machines, divides the pools, so that each holds one value of it;
// of any other key, as a serial number, there are lists by value.
type postings struct {
	nodes    map[string]int // nodes with the key, of every key
	dividing []string
	lists    map[string]map[string]set // by key and value
}

type set map[*entry]struct{}

func newPostings() postings {
	return postings{nodes: make(map[string]int), lists: make(map[string]map[string]set)}
}

func (p *postings) add(e *entry) {
	e.divided = p.divide(e)
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

// divide writes e's values of the dividing keys.
func (p *postings) divide(e *entry) string {
	var b []byte
	for _, k := range p.dividing {
		if v, ok := e.Labels[k]; ok {
			b = strconv.AppendQuote(b, v)
		} else {
			b = append(b, '-')
		}
	}
	return string(b)
}

func post(values map[string]set, v string, e *entry) {
	if values[v] == nil {
		values[v] = make(set)
	}
	values[v][e] = struct{}{}
}

// learn takes in the keys that a request asks for.
func (ix *Index) learn(selectors []compute.Selector) {
	p := &ix.labels
	for i := range selectors {
		key := selectors[i].Key
		if p.nodes[key] == 0 || p.lists[key] != nil || slices.Contains(p.dividing, key) || len(p.lists) == maxListed {
			continue
		}
		values := make(map[string]set)
		for _, e := range ix.nodes {
			if v, ok := e.Labels[key]; ok {
				post(values, v, e)
			}
		}
		if len(values) > ix.maxValues || len(p.dividing) == maxDividing {
			p.lists[key] = values
			continue
		}
		p.dividing = append(p.dividing, key)
		for _, e := range ix.nodes {
			e.divided = p.divide(e)
			if ix.leavePool(e) {
				ix.joinPool(e)
			}
		}
	}
}

// narrow returns lists of every node that can meet the selector with the fewest
// such nodes, and their number: the largest int when no selector tells.
func (ix *Index) narrow(selectors []compute.Selector) (least []iter.Seq[*entry], fewest int) {
	ix.learn(selectors)
	fewest = math.MaxInt
	for i := range selectors {
		s := &selectors[i]
		values := ix.labels.lists[s.Key]
		switch {
		case s.Op == compute.OpNotIn || s.Op == compute.OpMissing:
			continue
		case ix.labels.nodes[s.Key] == 0:
			return nil, 0
		case values == nil || s.Op != compute.OpIn && ix.labels.nodes[s.Key]*few > len(ix.nodes):
			continue
		}
		wanted := s.Values
		if s.Op != compute.OpIn {
			wanted = slices.Collect(maps.Keys(values))
		}
		n := 0
		for _, v := range wanted {
			n += len(values[v])
		}
		if n < fewest {
			least, fewest = nil, n
			for _, v := range wanted {
				least = append(least, maps.Keys(values[v]))
			}
		}
	}
	return least, fewest
}
