package control

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// BenchmarkListNodes measures pages of 100 nodes all through the list, beside the
// same rows read from the database and left as they are.
func BenchmarkListNodes(b *testing.B) {
	benchReads(b, func(b *testing.B, f *benchedFleet) (read, bare func(i int) error) {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(f.dir, "outcrop.db")+"?_pragma=query_only(1)")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { db.Close() })
		after := func(i int) string { return fmt.Sprintf("node-%06d", i*7919%(f.nodes-100)) }
		return func(i int) error {
				out, err := f.c.ListNodes(b.Context(), iam.System, Page{Limit: 100, Cursor: after(i)})
				if err == nil && len(out.Items) != 100 {
					err = fmt.Errorf("a page of %d", len(out.Items))
				}
				return err
			}, func(i int) error {
				return readRaw(db, `SELECT * FROM nodes n JOIN node_liveness l ON l.node_id = n.id WHERE n.id > $1 ORDER BY n.id LIMIT 100`, after(i))
			}
	})
}

// readRaw takes every column of every row as the bytes that it is.
func readRaw(db *sql.DB, query string, args ...any) error {
	rows, err := db.Query(query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	row := make([]any, len(columns))
	for i := range row {
		row[i] = new(sql.RawBytes)
	}
	for rows.Next() {
		if err := rows.Scan(row...); err != nil {
			return err
		}
	}
	return rows.Err()
}

// BenchmarkExplainPlacement measures the reasons of a create that fits nowhere,
// beside one look at the room of every node.
func BenchmarkExplainPlacement(b *testing.B) {
	benchReads(b, func(b *testing.B, f *benchedFleet) (read, bare func(i int) error) {
		image := benchImage(b, f.c)
		rooms := make([]compute.Capacity, f.nodes)
		for i := range rooms {
			rooms[i] = benchFacts(i).Capacity
		}
		const vcpus, memory, disk = 500, 1 << 30, 8 << 30
		return func(int) error {
				out, err := f.c.ExplainPlacement(b.Context(), iam.System, "default", api.CreateInstance{Name: "vm", ImageID: image, VCPUs: vcpus, MemoryBytes: memory})
				if err == nil && (out.Fits || out.Nearest == nil) {
					err = fmt.Errorf("%d vCPUs fit", vcpus)
				}
				return err
			}, func(int) error {
				for i := range rooms {
					r := &rooms[i]
					if float64(r.TotalVCPUs)*r.VCPUOvercommitRatio >= vcpus && r.TotalMemoryBytes >= memory && r.TotalDiskBytes >= disk {
						return fmt.Errorf("%d vCPUs fit", vcpus)
					}
				}
				return nil
			}
	})
}

// BenchmarkCapacity measures the sum of the fleet, beside the same of the rooms in
// memory.
func BenchmarkCapacity(b *testing.B) {
	benchReads(b, func(b *testing.B, f *benchedFleet) (read, bare func(i int) error) {
		rooms := make([]compute.Capacity, f.nodes)
		for i := range rooms {
			rooms[i] = benchFacts(i).Capacity
		}
		return func(int) error {
				_, err := f.c.GetCapacity(b.Context(), iam.System)
				return err
			}, func(int) error {
				var sum int64
				for i := range rooms {
					sum += rooms[i].TotalVCPUs
				}
				if sum == 0 {
					return fmt.Errorf("no room")
				}
				return nil
			}
	})
}

// benchedFleet is a control plane that knows its nodes.
type benchedFleet struct {
	c     *Control
	dir   string // of the database
	nodes int
}

// benchReads measures a read of inventories of several sizes in turns with its
// reference: p50 and p99 of both, in ms.
func benchReads(b *testing.B, pair func(*testing.B, *benchedFleet) (read, bare func(i int) error)) {
	for _, nodes := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("sqlite/nodes=%d", nodes), func(b *testing.B) {
			o := storetest.Options(b, "sqlite")
			f := &benchedFleet{benchFleet(b, o, nodes), o.Dir, nodes}
			read, bare := pair(b, f)
			if err := f.c.lookAtFleet(b.Context(), func(*store.Tx, *schedule.Index) error { return nil }); err != nil {
				b.Fatal(err)
			}
			took := map[string][]time.Duration{}
			for i := range max(400, b.N) {
				for name, do := range map[string]func(int) error{"": read, "bare-": bare} {
					begun := time.Now()
					if err := do(i); err != nil {
						b.Fatal(err)
					}
					took[name] = append(took[name], time.Since(begun))
				}
			}
			for name, t := range took {
				slices.Sort(t)
				b.ReportMetric(float64(t[len(t)/2].Nanoseconds())/1e6, name+"p50-ms")
				b.ReportMetric(float64(t[len(t)*99/100].Nanoseconds())/1e6, name+"p99-ms")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
