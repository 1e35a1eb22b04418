package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

func TestWriteAnswersEachCallerAlone(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db := storetest.Open(t, o)
		boom := errors.New("boom")
		var wg sync.WaitGroup
		errs := make([]error, 60)
		for i := range errs {
			wg.Go(func() {
				errs[i] = db.Write(t.Context(), func(tx *store.Tx) error {
					if err := tx.InsertProject(compute.Project{ID: fmt.Sprintf("p%02d", i), CreatedAt: tx.Now}); err != nil {
						return err
					}
					switch i % 3 {
					case 1:
						return boom
					case 2:
						panic("a verb that panics")
					}
					return nil
				})
			})
		}
		wg.Wait()
		var have []compute.Project
		if err := db.Read(t.Context(), func(tx *store.Tx) (err error) { have, err = tx.Projects("", 100); return err }); err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, p := range have {
			found[p.ID] = true
		}
		for i, err := range errs {
			id := fmt.Sprintf("p%02d", i)
			switch i % 3 {
			case 0:
				if err != nil || !found[id] {
					t.Errorf("%s: err %v, there %v; want a committed row", id, err, found[id])
				}
			case 1:
				if !errors.Is(err, boom) || found[id] {
					t.Errorf("%s: err %v, there %v; want boom and no row", id, err, found[id])
				}
			case 2:
				if err == nil || !strings.Contains(err.Error(), "a verb that panics") || found[id] {
					t.Errorf("%s: err %v, there %v; want the panic as an error and no row", id, err, found[id])
				}
			}
		}
		if !found["default"] {
			t.Error("the default project is missing")
		}
	})
}

func TestASQLErrorOfOneCallerHarmsNoOther(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db := storetest.Open(t, o)
		var wg sync.WaitGroup
		errs := make([]error, 40)
		for i := range errs {
			wg.Go(func() {
				errs[i] = db.Write(t.Context(), func(tx *store.Tx) error {
					img := compute.Image{ID: fmt.Sprintf("img-%d", i), ProjectID: "default", CreatedAt: tx.Now}
					if i%2 == 1 {
						img.ProjectID = "nobody" // breaks a foreign key
					}
					return tx.InsertImage(&img)
				})
			})
		}
		wg.Wait()
		for i, err := range errs {
			if (err != nil) != (i%2 == 1) {
				t.Errorf("write %d: %v", i, err)
			}
		}
	})
}

func TestNewerDatabaseIsRefused(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db, err := store.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		db.Close()
		storetest.SetSchemaVersion(t, o, 9999)
		if _, err = store.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "newer outcrop") {
			t.Fatalf("opening a newer database: %v", err)
		}
	})
}

func beat(id string) *store.Beat {
	return &store.Beat{NodeID: id, BootID: "b1", Facts: compute.NodeFacts{
		Hostname: id, Role: compute.RoleHypervisor, Architecture: "amd64",
		Capacity:     compute.Capacity{TotalVCPUs: 8, VCPUOvercommitRatio: 1, MemoryOvercommitRatio: 1, TotalMemoryBytes: 1 << 40},
		Capabilities: map[string]string{"a": "b"},
	}}
}

func TestHeartbeats(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db := storetest.Open(t, o)
		for round := range 3 {
			var wg sync.WaitGroup
			for i := range 300 {
				wg.Go(func() {
					b := beat(fmt.Sprintf("n%03d", i%200)) // some beat twice at once
					if round == 2 {
						b.Facts.Hostname = "renamed"
					}
					if err := db.Heartbeat(t.Context(), b); err != nil {
						t.Errorf("round %d, beat %d: %v", round, i, err)
						return
					}
					if b.Node.ID != b.NodeID || b.Node.Facts.Hostname != b.Facts.Hostname || b.SeenAt.IsZero() {
						t.Errorf("round %d: answer %+v for beat %+v", round, b.Node, b)
					}
				})
			}
			wg.Wait()
		}
		err := db.Read(t.Context(), func(tx *store.Tx) error {
			n, err := tx.CountNodes()
			if err != nil || n != 200 {
				return fmt.Errorf("nodes %d, %w", n, err)
			}
			node, err := tx.Node("n007")
			if err == nil && (node.Revision != node.CreatedAt.UnixMicro()+1 || node.Facts.Hostname != "renamed" || node.State() != compute.NodeReady || node.Liveness.BootID != "b1") {
				err = fmt.Errorf("node %+v", node)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestHeartbeatSeesOthersChanges(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db := storetest.Open(t, o)
		other := storetest.Open(t, o) // a second server on the same database
		if err := db.Heartbeat(t.Context(), beat("n1")); err != nil {
			t.Fatal(err)
		}
		err := other.Write(t.Context(), func(tx *store.Tx) error {
			n, err := tx.Node("n1")
			if err != nil {
				return err
			}
			n.Spec.DisplayName = "rack-1"
			return tx.UpdateNode(&n)
		})
		if err != nil {
			t.Fatal(err)
		}
		b := beat("n1")
		if err := db.Heartbeat(t.Context(), b); err != nil || b.Node.Spec.DisplayName != "rack-1" {
			t.Fatalf("display name %q after another server set it (%v)", b.Node.Spec.DisplayName, err)
		}
		if err := other.Write(t.Context(), func(tx *store.Tx) error { return tx.DeleteNode("n1") }); err != nil {
			t.Fatal(err)
		}
		b = beat("n1")
		if err := db.Heartbeat(t.Context(), b); err != nil || !b.Registered || b.Node.Spec.DisplayName != "" {
			t.Fatalf("a deleted node's beat: %v, registered %v, %+v", err, b.Registered, b.Node)
		}
		// Deleted and registered again by the other: what is remembered is of another life.
		if err := other.Write(t.Context(), func(tx *store.Tx) error { return tx.DeleteNode("n1") }); err != nil {
			t.Fatal(err)
		}
		b = beat("n1")
		b.Facts.Hostname, b.First = "other", &compute.NodeSpec{DisplayName: "second life"}
		if err := other.Heartbeat(t.Context(), b); err != nil || !b.Registered {
			t.Fatalf("the other's beat: %v, %+v", err, b)
		}
		b = beat("n1")
		if err := db.Heartbeat(t.Context(), b); err != nil || b.Registered || b.Node.Spec.DisplayName != "second life" || b.Node.Facts.Hostname != "n1" {
			t.Fatalf("a beat after that: %v, %+v", err, b.Node)
		}
	})
}

func TestBlobs(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db := storetest.Open(t, o)
		payload := []byte{0, 1, 0xff, 0xfe, '\r', '\n', 0}
		var hash string
		write := func(fn func(tx *store.Tx) error) {
			t.Helper()
			if err := db.Write(t.Context(), fn); err != nil {
				t.Fatal(err)
			}
		}
		write(func(tx *store.Tx) (err error) { hash, err = tx.PutBlob(payload); return err })
		write(func(tx *store.Tx) error { _, err := tx.PutBlob(payload); return err })
		write(func(tx *store.Tx) error { return tx.DropBlob(hash) })
		_ = db.Read(t.Context(), func(tx *store.Tx) error {
			b, err := tx.Blob(hash)
			if err != nil || !bytes.Equal(b, payload) {
				t.Errorf("blob %q, %v", b, err)
			}
			return nil
		})
		write(func(tx *store.Tx) error { return tx.DropBlob(hash) })
		_ = db.Read(t.Context(), func(tx *store.Tx) error {
			if _, err := tx.Blob(hash); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("a blob without references: %v", err)
			}
			return nil
		})
		if err := db.Write(t.Context(), func(tx *store.Tx) error { return tx.DropBlob(hash) }); err == nil {
			t.Error("dropping a blob that is not there went through")
		}
	})
}

func TestAuthGenerationSeesOtherServers(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db, other := storetest.Open(t, o), storetest.Open(t, o)
		before, err := db.AuthGeneration(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tok := store.Token{Caller: iam.Caller{TokenID: "t1", Role: iam.Operator}, MAC: []byte("m"), CreatedAt: time.Now()}
		if err := other.Write(t.Context(), func(tx *store.Tx) error { return tx.InsertToken(&tok) }); err != nil {
			t.Fatal(err)
		}
		after, err := db.AuthGeneration(t.Context())
		if err != nil || after == before {
			t.Fatalf("generation %d then %d, %v", before, after, err)
		}
	})
}

func TestWritesAfterClose(t *testing.T) {
	db := storetest.Open(t, storetest.Options(t, "sqlite"))
	db.Close()
	if err := db.Write(t.Context(), func(*store.Tx) error { return nil }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
	if _, err := db.AuthGeneration(t.Context()); err == nil {
		t.Error("read after close went through")
	}
}

func TestPasswordStaysOutOfErrors(t *testing.T) {
	_, err := store.Open(t.Context(), store.Options{URL: "postgres://u:s3cretpw@127.0.0.1:1/x?sslmode=disable"})
	if err == nil || strings.Contains(err.Error(), "s3cretpw") {
		t.Errorf("error: %v", err)
	}
}
