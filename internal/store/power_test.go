package store_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// While a node's beats, each with other facts, come in at one server, an operator
// acts on it at another one: nothing of that is lost.
// contract: N-05 N-18
func TestBeatLosesNoPowerAction(t *testing.T) {
	o := storetest.Options(t, "postgres")
	var servers [2]*store.DB
	for i := range servers {
		db, err := store.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		servers[i] = db
	}
	beat := func(n int64) error {
		return servers[0].Heartbeat(t.Context(), &store.Beat{NodeID: "n1", BootID: "one", Facts: compute.NodeFacts{Capacity: compute.Capacity{TotalVCPUs: n}}})
	}
	if err := beat(0); err != nil {
		t.Fatal(err)
	}
	const actions = 200
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := int64(1); ; n++ {
			if err := beat(n); err != nil {
				ended <- err
				return
			}
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
		}
	}()
	for range actions {
		if err := servers[1].Write(t.Context(), func(tx *store.Tx) error {
			n, err := tx.NodeToChange("n1")
			if err != nil {
				return err
			}
			n.BeginPower(compute.PowerReboot, tx.Now, 0, 0, false)
			return tx.UpdateNode(&n)
		}); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := servers[0].Read(t.Context(), func(tx *store.Tx) error {
		n, err := tx.Node("n1")
		if err == nil && n.Power.Generation != actions {
			t.Errorf("of %d actions %d are known", actions, n.Power.Generation)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// Nodes that are down are found by the column that their state writes.
func TestDownNodes(t *testing.T) {
	for _, kind := range storetest.Kinds {
		t.Run(kind, func(t *testing.T) {
			db, err := store.Open(t.Context(), storetest.Options(t, kind))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			for _, id := range []string{"n1", "n2", "n3"} {
				if err := db.Heartbeat(t.Context(), &store.Beat{NodeID: id, BootID: "one"}); err != nil {
					t.Fatal(err)
				}
			}
			down := func() (ids []string) {
				if err := db.Read(t.Context(), func(tx *store.Tx) error {
					all, err := tx.DownNodes()
					for _, n := range all {
						ids = append(ids, n.ID)
					}
					return err
				}); err != nil {
					t.Fatal(err)
				}
				return ids
			}
			change := func(id string, fn func(n *compute.Node, now time.Time)) {
				if err := db.Write(t.Context(), func(tx *store.Tx) error {
					n, err := tx.Node(id)
					if err != nil {
						return err
					}
					fn(&n, tx.Now)
					return tx.UpdateNode(&n)
				}); err != nil {
					t.Fatal(err)
				}
			}
			change("n1", func(n *compute.Node, now time.Time) { n.BeginPower(compute.PowerReboot, now, 0, 0, false) })
			change("n3", func(n *compute.Node, now time.Time) { n.Maintenance.DeclaredOff = now })
			if got := down(); !slices.Equal(got, []string{"n1", "n3"}) {
				t.Errorf("down: %v", got)
			}
			for _, id := range []string{"n1", "n3"} {
				if err := db.Heartbeat(t.Context(), &store.Beat{NodeID: id, BootID: "two"}); err != nil {
					t.Fatal(err)
				}
			}
			if got := down(); len(got) != 0 {
				t.Errorf("up again: %v", got)
			}
		})
	}
}

// A packet to send is told to its sender until it was sent, or is too late.
func TestWakes(t *testing.T) {
	for _, kind := range storetest.Kinds {
		t.Run(kind, func(t *testing.T) {
			o := storetest.Options(t, kind)
			now := time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)
			o.Now = func() time.Time { return now }
			db, err := store.Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			for _, id := range []string{"n1", "n2"} {
				if err := db.Heartbeat(t.Context(), &store.Beat{NodeID: id}); err != nil {
					t.Fatal(err)
				}
			}
			do := func(fn func(tx *store.Tx) error) {
				t.Helper()
				if err := db.Write(t.Context(), fn); err != nil {
					t.Fatal(err)
				}
			}
			w := store.Wake{ID: "w", NodeID: "n1", Via: "n2", MAC: "3c:fd:fe:00:00:01", Expires: now.Add(time.Minute)}
			do(func(tx *store.Tx) error { return tx.InsertWake(&w) })
			wakes := func(node string) (out []store.Wake) {
				do(func(tx *store.Tx) (err error) { out, err = tx.WakesVia(node); return err })
				return out
			}
			if got := wakes("n2"); !slices.Equal(got, []store.Wake{w}) || len(wakes("n1")) != 0 {
				t.Errorf("%+v", got)
			}
			do(func(tx *store.Tx) error {
				if got, err := tx.WakeOf("n1"); err != nil || got != w {
					t.Errorf("%+v, %v", got, err)
				}
				if _, err := tx.TakeWake("n1", "w"); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("another node takes it: %v", err)
				}
				return nil
			})
			now = now.Add(time.Minute)
			if got := wakes("n2"); len(got) != 0 {
				t.Errorf("too late: %+v", got)
			}
			do(func(tx *store.Tx) error {
				if got, err := tx.TakeWake("n2", "w"); err != nil || got != w {
					t.Errorf("%+v, %v", got, err)
				}
				return tx.InsertWake(&w)
			})
			do(func(tx *store.Tx) error { return tx.ForgetWakes() })
			do(func(tx *store.Tx) error {
				if _, err := tx.TakeWake("n2", "w"); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("forgotten: %v", err)
				}
				return nil
			})
		})
	}
}
