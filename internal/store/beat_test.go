package store_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// After a start of the server, and while another one changes nodes, all nodes beat
// at once; some have changed, some were deleted, some are new.
// contract: N-05
func TestManyBeatsAtOnce(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		const n = 300
		name := func(i int) string { return fmt.Sprintf("n%03d", i) }
		sized := func(i int, vcpus int64) *store.Beat {
			b := beat(name(i))
			b.Facts.Capacity.TotalVCPUs = vcpus
			return b
		}
		beatAll := func(db *store.DB, make func(i int) *store.Beat) []*store.Beat {
			t.Helper()
			beats, errs := []*store.Beat{}, [n]error{}
			var wg sync.WaitGroup
			for i := range n {
				b := make(i)
				beats = append(beats, b)
				wg.Go(func() { errs[i] = db.Heartbeat(t.Context(), b) })
			}
			wg.Wait()
			for i, err := range errs {
				if err != nil || beats[i].Node == nil || beats[i].Node.ID != name(i) {
					t.Fatalf("%s: %v, %+v", name(i), err, beats[i].Node)
				}
			}
			return beats
		}
		first := storetest.Open(t, o)
		for i := range n - 50 {
			if err := first.Heartbeat(t.Context(), sized(i, 8)); err != nil {
				t.Fatal(err)
			}
		}

		second := storetest.Open(t, o)
		for i, b := range beatAll(second, func(i int) *store.Beat {
			if i%7 == 0 {
				return sized(i, 16)
			}
			return sized(i, 8)
		}) {
			want := int64(8)
			if i%7 == 0 {
				want = 16
			}
			if b.Registered != (i >= n-50) || b.Node.Facts.Capacity.TotalVCPUs != want {
				t.Errorf("%s: registered %v, %d vCPUs", name(i), b.Registered, b.Node.Facts.Capacity.TotalVCPUs)
			}
		}

		if err := first.Write(t.Context(), func(tx *store.Tx) error {
			for i := range n {
				node, err := tx.Node(name(i))
				if err != nil {
					return err
				}
				switch i % 10 {
				case 0:
					node.Spec.DisplayName = "changed"
					err = tx.UpdateNode(&node)
				case 1:
					err = tx.DeleteNode(node.ID)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for i, b := range beatAll(second, func(i int) *store.Beat { return sized(i, 8) }) {
			if b.Registered != (i%10 == 1) || (b.Node.Spec.DisplayName == "changed") != (i%10 == 0) || b.Node.Facts.Capacity.TotalVCPUs != 8 {
				t.Errorf("%s: registered %v, %+v", name(i), b.Registered, b.Node)
			}
		}
	})
}
