package control

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// benchFleet is a control plane with n nodes in racks of 40 and 6 zones, of which
// every tenth has GPUs.
func benchFleet(b *testing.B, o store.Options, n int) *Control {
	b.Helper()
	db := storetest.Open(b, o)
	c, err := New(Options{DB: db, Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	failed := make(chan error, 64)
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < n; i += 64 {
				beat := &store.Beat{NodeID: benchNode(i), Facts: benchFacts(i)}
				if err := db.Heartbeat(b.Context(), beat); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		b.Fatal(err)
	}
	for from := 0; from < n; from += 1000 {
		if err := db.Write(b.Context(), func(tx *store.Tx) error { return benchRacks(tx, from, min(from+1000, n)) }); err != nil {
			b.Fatal(err)
		}
	}
	c.nodes.Store(int64(n))
	return c
}

func benchNode(i int) string { return fmt.Sprintf("node-%06d", i) }

// benchRacks declares where nodes stand, 40 to a rack.
func benchRacks(tx *store.Tx, from, to int) error {
	for i := from; i < to; i++ {
		n, err := tx.NodeToChange(benchNode(i))
		if err != nil {
			return err
		}
		n.Spec.DeclaredCapabilities = map[string]string{compute.LabelRack: fmt.Sprintf("rack-%d", i/40)}
		if err := tx.UpdateNode(&n); err != nil {
			return err
		}
	}
	return nil
}

func benchFacts(i int) compute.NodeFacts {
	f := compute.NodeFacts{
		Hostname: fmt.Sprintf("host-%06d", i), Role: compute.RoleHypervisor, Region: "here", AvailabilityZone: fmt.Sprintf("zone-%d", i/40%6), Architecture: "amd64",
		Capacity:     compute.Capacity{TotalVCPUs: 64, VCPUOvercommitRatio: 4, TotalMemoryBytes: 512 << 30, MemoryOvercommitRatio: 1, TotalDiskBytes: 8000 << 30},
		Capabilities: map[string]string{"capability.cpu.model": "Xeon", "capability.cpu.cores": "64", "capability.sec.tpm": "true"},
	}
	if i%10 == 3 {
		f.Capabilities["capability.gpu.nvidia-l40s"] = "4"
	}
	return f
}

// benchWaiting makes n waiting instances, twenty to a group that spreads over racks.
func benchWaiting(b *testing.B, c *Control, image string, round, n int) (ids []string) {
	b.Helper()
	const some = 500
	for from := 0; from < n; from += some {
		err := c.db.Write(b.Context(), func(tx *store.Tx) error {
			for i := from; i < min(n, from+some); i++ {
				g := compute.PlacementGroup{ID: fmt.Sprintf("pg-%d-%d", round, i/20), ProjectID: "default", Name: fmt.Sprintf("g-%d-%d", round, i/20),
					Rule: compute.GroupRule{Kind: compute.GroupSpread, Level: compute.LevelRack, Strict: true}, CreatedAt: tx.Now}
				if i%20 == 0 {
					if err := tx.InsertPlacementGroup(&g); err != nil {
						return err
					}
				}
				out, err := c.insertInstance(tx, iam.System, "default", compute.InstanceSpec{
					Name: "vm", ImageID: image, Shape: compute.Shape{VCPUs: 2, MemoryBytes: 4 << 30}, PlacementGroupID: g.ID,
				}, &api.CreateInstance{}, nil)
				if err != nil {
					return err
				}
				ids = append(ids, out.ID)
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	return ids
}

func benchImage(b *testing.B, c *Control) string {
	b.Helper()
	img := compute.Image{ID: "img-aaaaaaaaaa", ProjectID: "default", Name: "disk", SHA256: "00", Format: "raw", SizeBytes: 1 << 20, VirtualSize: 1 << 20, State: compute.ImageAvailable}
	if err := c.db.Write(b.Context(), func(tx *store.Tx) error {
		img.CreatedAt = tx.Now
		return tx.InsertImage(&img)
	}); err != nil {
		b.Fatal(err)
	}
	return img.ID
}

// bareWrites is the least that a durable decision can do: one small row for each,
// in transactions of as many.
func bareWrites(b *testing.B, c *Control, ids []string) time.Duration {
	b.Helper()
	begun := time.Now()
	for some := range slices.Chunk(ids, placeBatch) {
		if err := c.db.Write(b.Context(), func(tx *store.Tx) error {
			for _, id := range some {
				if err := tx.AddEvent(store.Event{InstanceID: id, Actor: "bench", Event: "bare", State: compute.StateCreating}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(begun)
}

// BenchmarkPlaceDurable measures launches that are given a node under a group's
// rule, decision and every row committed. decisions/s is the median of rounds of
// 2,000; x-bare is its part of the rate at which one small row for each is written,
// measured in turns; cpu-us is the processor time of one decision, which other load
// on the machine lengthens less than the time on the clock.
func BenchmarkPlaceDurable(b *testing.B) {
	const round = 2000
	for _, kind := range storetest.Kinds {
		for _, nodes := range []int{1_000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/nodes=%d", kind, nodes), func(b *testing.B) {
				c := benchFleet(b, storetest.Options(b, kind), nodes)
				image := benchImage(b, c)
				var took, bare, busy []time.Duration
				for i := range max(3, b.N/round) + 1 {
					ids := benchWaiting(b, c, image, i, round)
					least := bareWrites(b, c, ids)
					begun, cpu := time.Now(), cpuTime()
					if err := c.placeWaiting(b.Context()); err != nil {
						b.Fatal(err)
					}
					if d := time.Since(begun); i > 0 { // the first builds the index
						took, bare, busy = append(took, d), append(bare, least), append(busy, cpuTime()-cpu)
					}
					benchEnd(b, c, ids)
				}
				per := middle(took) / round
				b.ReportMetric(float64(time.Second)/float64(per), "decisions/s")
				b.ReportMetric(float64(middle(bare))/float64(middle(took)), "x-bare")
				b.ReportMetric(float64(middle(busy).Microseconds())/round, "cpu-us")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// cpuTime is the processor time that this process took so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for the process itself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchEnd checks that every instance got a node, and takes them away.
func benchEnd(b *testing.B, c *Control, ids []string) {
	b.Helper()
	for some := range slices.Chunk(ids, 500) {
		if err := c.db.Write(b.Context(), func(tx *store.Tx) error {
			for _, id := range some {
				i, err := tx.InstanceByID(id)
				if err != nil {
					return err
				}
				if i.NodeID == "" {
					b.Fatalf("%s has no node: %s", id, i.Message)
				}
				i.State, i.TerminatedAt = compute.StateTerminated, tx.Now
				if err := c.save(tx, &i, "bench", "end", ""); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
}

func middle(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
