package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// largeFleet is n nodes in racks of 40 and 6 zones, half full at random, every
// tenth with GPUs and every hundredth in the pool "own".
func largeFleet(n int) []Node {
	rnd := rand.New(rand.NewPCG(1, 2))
	nodes := make([]Node, n)
	for i := range nodes {
		rack := i / 40
		labels := map[string]string{
			compute.LabelRack: fmt.Sprintf("rack-%d", rack), compute.LabelZone: fmt.Sprintf("zone-%d", rack%6),
			"capability.cpu.model": "Xeon", "capability.cpu.cores": "64", "capability.sec.tpm": "true", "pool": "shared",
		}
		if i%10 == 3 {
			labels[gpu] = "4"
		}
		if i%100 == 7 {
			labels["pool"] = "own"
		}
		nodes[i] = Node{
			ID: fmt.Sprintf("node-%06d", i), Role: compute.RoleHypervisor, State: compute.NodeReady, Liveness: compute.LivenessOK,
			Region: "here", Zone: labels[compute.LabelZone], Architecture: "amd64", Labels: labels, Countables: compute.Countables(labels),
			Committable: compute.Usage{VCPUs: 256, MemoryBytes: 512 * gib, DiskBytes: 8000 * gib},
			Used:        compute.Usage{VCPUs: rnd.Int64N(256), MemoryBytes: rnd.Int64N(512) * gib, DiskBytes: rnd.Int64N(4000) * gib},
		}
	}
	return nodes
}

// bare is the least that a decision without an index must do: one look at the
// room of every node.
func bare(nodes []Node, r *Request) int {
	best, least := -1, 2.0
	for i := range nodes {
		n := &nodes[i]
		if n.State != compute.NodeReady || n.Used.VCPUs+r.Shape.VCPUs > n.Committable.VCPUs ||
			n.Used.MemoryBytes+r.Shape.MemoryBytes > n.Committable.MemoryBytes {
			continue
		}
		if l := load(n); l < least {
			best, least = i, l
		}
	}
	return best
}

var benchRequests = []struct {
	name string
	make func(i int) Request
}{
	{"plain", func(int) Request { return small() }},
	{"pack", func(int) Request { r := small(); r.Strategy = Pack; return r }},
	{"spread-rack", func(i int) Request { // groups of 20
		r := small()
		r.Group = &Group{ID: fmt.Sprint("g", i/20), Rule: compute.GroupRule{Kind: compute.GroupSpread, Level: compute.LevelRack, Strict: true}}
		return r
	}},
	{"spread-zone", func(i int) Request { // best effort, more members than zones
		r := small()
		r.Group = &Group{ID: fmt.Sprint("g", i/20), Rule: compute.GroupRule{Kind: compute.GroupSpread, Level: compute.LevelZone}}
		return r
	}},
	{"partition", func(i int) Request {
		r := small()
		r.Group = &Group{ID: fmt.Sprint("g", i/20), Rule: compute.GroupRule{Kind: compute.GroupPartition, Level: compute.LevelRack, Strict: true, Partitions: 3}}
		return r
	}},
	{"cluster", func(i int) Request {
		r := small()
		r.Group = &Group{ID: fmt.Sprint("g", i/20), Rule: compute.GroupRule{Kind: compute.GroupCluster, Level: compute.LevelRack, Strict: true}}
		return r
	}},
	{"selector", func(int) Request {
		r := small()
		r.Selectors = []compute.Selector{{Key: "pool", Op: compute.OpIn, Values: []string{"own"}}}
		return r
	}},
	{"selector-rack", func(i int) Request { // of many values
		r := small()
		r.Selectors = []compute.Selector{{Key: compute.LabelRack, Op: compute.OpIn, Values: []string{fmt.Sprintf("rack-%d", i%20)}}}
		return r
	}},
	{"gpu", func(int) Request { r := small(); r.Countables = map[string]int64{gpu: 1}; return r }},
}

// BenchmarkDecide measures decision and commit, with as many instances leaving as
// coming once 10 per thousand nodes have come. x-bare is how many times as long the
// bare look at every node takes in the same run.
func BenchmarkDecide(b *testing.B) {
	for _, req := range benchRequests {
		for _, n := range []int{1_000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/nodes=%d", req.name, n), func(b *testing.B) {
				nodes := largeFleet(n)
				ix := NewIndex(nodes)
				var live []Allocation
				step := func(i int) {
					r := req.make(i)
					d := ix.Pick(r)
					if d.NodeID == "" {
						b.Fatal("no place")
					}
					a := r.Allocation(d)
					ix.Commit(a)
					if live = append(live, a); len(live) > 200 {
						ix.Release(live[0])
						live = live[1:]
					}
				}
				for i := range 400 { // warm
					step(i)
				}
				b.ResetTimer()
				for i := range b.N {
					step(400 + i)
				}
				b.StopTimer()
				per := b.Elapsed() / time.Duration(b.N)
				r := small()
				start, rounds := time.Now(), 2_000_000/n
				for range rounds {
					bare(nodes, &r)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
				b.ReportMetric(float64(time.Since(start)/time.Duration(rounds))/float64(per), "x-bare")
			})
		}
	}
}

// BenchmarkExplain measures the reasons of a request that fits nowhere.
func BenchmarkExplain(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			ix := NewIndex(largeFleet(n))
			r := small()
			r.Shape.VCPUs = 300
			for b.Loop() {
				if ix.Place(r).NodeID != "" {
					b.Fatal("300 vCPUs fit")
				}
			}
		})
	}
}
