package store_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

func joinOf(id string, state compute.JoinState, at time.Time, expires time.Time) *compute.NodeJoin {
	seed := bytes.Repeat([]byte{0}, ed25519.SeedSize)
	copy(seed, id)
	return &compute.NodeJoin{NodeID: id, Key: ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey), State: state, TokenID: "tok-1", MachineID: "m-" + id,
		BootID: "b", Hostname: "h", NodeRole: "storage", NodeZone: "z", CreatedAt: at, SeenAt: at, ExpiresAt: expires}
}

// A join is written once for an id and a key, is changed only as it was read, and is
// forgotten when nobody waits for it: a refusal, a wait that is over, a key whose
// node never reported.
//
// contract: N-21 N-22
// lesson 8
func TestJoins(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db := storetest.Open(t, o)
		write := func(want error, fn func(*store.Tx) error) {
			t.Helper()
			if err := db.Write(t.Context(), fn); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Fatalf("%v, want %v", err, want)
			}
		}
		now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
		day := 24 * time.Hour
		pending, admitted := joinOf("p", compute.JoinPending, now, now.Add(100*365*day)), joinOf("a", compute.JoinAdmitted, now, time.Time{})
		write(nil, func(tx *store.Tx) error { return errors.Join(tx.InsertJoin(pending), tx.InsertJoin(admitted)) })
		var got compute.NodeJoin
		write(nil, func(tx *store.Tx) (err error) { got, err = tx.NodeJoin("p"); return err })
		if !reflect.DeepEqual(&got, pending) {
			t.Errorf("read %+v, wrote %+v", got, pending)
		}
		otherKey := joinOf("q", compute.JoinAdmitted, now, time.Time{})
		otherKey.NodeID = "p"
		write(store.ErrStale, func(tx *store.Tx) error { return tx.InsertJoin(otherKey) })
		sameKey := *pending
		sameKey.NodeID = "other"
		write(store.ErrStale, func(tx *store.Tx) error { return tx.InsertJoin(&sameKey) })
		write(store.ErrStale, func(tx *store.Tx) error { return tx.UpdateJoin(otherKey, compute.JoinPending) })
		write(store.ErrStale, func(tx *store.Tx) error { return tx.UpdateJoin(pending, compute.JoinRefused) })
		write(store.ErrStale, func(tx *store.Tx) error { return tx.DropJoin("a") })
		write(nil, func(tx *store.Tx) error {
			n, err := tx.CountPendingJoins()
			if n != 1 {
				t.Errorf("%d are pending", n)
			}
			return err
		})

		for i, j := range []*compute.NodeJoin{
			joinOf("refused-over", compute.JoinRefused, now, now.Add(day)), joinOf("refused", compute.JoinRefused, now, now.Add(day+time.Second)),
			joinOf("pending-over", compute.JoinPending, now, now.Add(day)), joinOf("silent", compute.JoinAdmitted, now.Add(-time.Second), time.Time{}),
			joinOf("reported", compute.JoinAdmitted, now.Add(-time.Second), time.Time{}),
		} {
			write(nil, func(tx *store.Tx) error { return tx.InsertJoin(j) })
			if i == 4 {
				if err := db.Heartbeat(t.Context(), &store.Beat{NodeID: j.NodeID, Facts: compute.NodeFacts{MachineID: j.MachineID}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		write(nil, func(tx *store.Tx) error {
			n, err := tx.ForgetJoins(now.Add(day), now.Add(-time.Second))
			if n != 3 {
				t.Errorf("%d were forgotten", n)
			}
			return err
		})
		var left []string
		for _, id := range []string{"p", "a", "refused-over", "refused", "pending-over", "silent", "reported"} {
			write(nil, func(tx *store.Tx) error {
				_, err := tx.NodeJoin(id)
				if err == nil {
					left = append(left, id)
				} else if errors.Is(err, store.ErrNotFound) {
					err = nil
				}
				return err
			})
		}
		if !slices.Equal(left, []string{"p", "a", "refused", "reported"}) {
			t.Errorf("left: %v", left)
		}
	})
}

// A node has two credentials at most, and a new one alone makes no server read all
// tokens anew.
//
// contract: N-24
func TestCredentials(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db := storetest.Open(t, o)
		n := 0
		issue := func(life time.Duration) (generation int64) {
			t.Helper()
			n++
			if err := db.Write(t.Context(), func(tx *store.Tx) error {
				c := store.Token{MAC: []byte(fmt.Sprint("mac", n)), CreatedAt: tx.Now, ExpiresAt: tx.Now.Add(life), KeyID: "SHA256:x"}
				c.Caller = iam.Caller{TokenID: fmt.Sprint("tok-", n), Role: iam.Node, NodeID: "n1"}
				return tx.InsertCredential(&c)
			}); err != nil {
				t.Fatal(err)
			}
			generation, err := db.AuthGeneration(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return generation
		}
		ids := func() (out []string) {
			t.Helper()
			if err := db.Read(t.Context(), func(tx *store.Tx) error {
				rows, err := tx.Tokens(store.Cursor{}, 10)
				for _, r := range rows {
					out = append(out, r.TokenID)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return out
		}
		if err := db.Write(t.Context(), func(tx *store.Tx) error { // an operator's, which stays
			c := store.Token{MAC: []byte("mac"), CreatedAt: tx.Now}
			c.Caller = iam.Caller{TokenID: "tok-own", Role: iam.Node, NodeID: "n1"}
			return tx.InsertToken(&c)
		}); err != nil {
			t.Fatal(err)
		}
		begun := issue(-time.Second) // one that has ended makes way without a word
		if again := issue(time.Hour); again != begun {
			t.Error("a credential beside none that stands is news")
		}
		if again := issue(time.Hour); again != begun || !slices.Equal(ids(), []string{"tok-own", "tok-2", "tok-3"}) {
			t.Errorf("news: %v; there are %v", again != begun, ids())
		}
		if again := issue(time.Hour); again == begun || !slices.Equal(ids(), []string{"tok-own", "tok-3", "tok-4"}) {
			t.Errorf("one that stood has ended, news: %v; there are %v", again != begun, ids())
		}
	})
}
