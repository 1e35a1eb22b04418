package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

func newApp(t *testing.T, db *store.DB) string {
	t.Helper()
	a := fleet.App{ID: fleet.NewID(), Name: "a", Update: fleet.UpdateSetting{Mode: fleet.UpdateFollow}, CreatedAt: time.Now()}
	if err := db.Write(t.Context(), func(tx *store.Tx) error { return tx.InsertApp(&a) }); err != nil {
		t.Fatal(err)
	}
	return a.ID
}

func hostBeat(app, host string) *store.HostBeat {
	return &store.HostBeat{AppID: app, Heartbeat: fleet.Heartbeat{Host: host, HostReport: fleet.HostReport{CLIVersion: "1", Protocol: 1, PollSeconds: 30, SlotsTotal: 1}}}
}

// TestHostBeatsByModel sends random beats, many at once, and holds the database's
// one statement to fleet's rule.
//
// contract: R-01 R-04 R-05 R-06
func TestHostBeatsByModel(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db := storetest.Open(t, o)
		apps := []string{newApp(t, db), newApp(t, db)}
		r := rand.New(rand.NewPCG(1, 2))
		model := map[string]*fleet.Host{}
		for range 40 {
			var wg sync.WaitGroup
			beats := map[string]*store.HostBeat{}
			for range 30 {
				app, host := apps[r.IntN(2)], fmt.Sprintf("h%d", r.IntN(40))
				b := hostBeat(app, host)
				b.SlotsUsed = r.Int64N(5)
				if b.Asked = r.IntN(2) == 0; b.Asked && r.IntN(2) == 0 {
					b.Error = &fleet.HostError{Code: "c", Message: fmt.Sprint("m", r.IntN(9))}
				}
				if r.IntN(4) == 0 {
					reason := "ü'\x00"
					b.LastUpdate = &fleet.Update{From: "1", To: fmt.Sprint(r.IntN(9)), Outcome: "retrying", Reason: &reason}
				}
				if r.IntN(4) == 0 {
					b.LowDisk = &fleet.LowDisk{Free: r.Int64N(9), Needed: 9}
				}
				if r.IntN(4) == 0 {
					b.Blocked = "b"
				}
				beats[app+host] = b // one at a time for each host, so that the order is known
			}
			for _, b := range beats {
				wg.Go(func() {
					if err := db.HostHeartbeat(t.Context(), b); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for k, b := range beats {
				h := model[k]
				if h == nil {
					h = &fleet.Host{AppID: b.AppID}
					model[k] = h
				}
				h.Apply(&b.Heartbeat, b.Result.SeenAt)
				if !reflect.DeepEqual(*h, b.Result) {
					t.Fatalf("answer %+v\nwant   %+v", b.Result, *h)
				}
			}
		}
		err := db.Read(t.Context(), func(tx *store.Tx) error {
			for _, app := range apps {
				hosts, err := tx.Hosts(app, store.HostPage{Limit: 1000})
				if err != nil {
					return err
				}
				n, err := tx.CountHosts(app, store.HostPage{})
				if err != nil || n != int64(len(hosts)) {
					return fmt.Errorf("counted %d of %d hosts, %w", n, len(hosts), err)
				}
				for _, h := range hosts {
					if !reflect.DeepEqual(h, *model[app+h.Name]) {
						t.Errorf("stored %+v\nwant   %+v", h, *model[app+h.Name])
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestStatusFilterAgreesWithTheRule: the SQL of a filter and the pure function
// are two texts of one rule.
//
// contract: R-08 R-10
func TestStatusFilterAgreesWithTheRule(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		var mu sync.Mutex
		clk := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		now := func() time.Time { mu.Lock(); defer mu.Unlock(); return clk }
		o.Now = now
		db := storetest.Open(t, o)
		app := newApp(t, db)
		r := rand.New(rand.NewPCG(3, 4))
		for i := range 300 {
			b := hostBeat(app, fmt.Sprintf("h%03d", i))
			b.PollSeconds, b.Protocol = []int64{1, 19, 20, 21, 30, 86400}[r.IntN(6)], r.Int64N(4)
			if b.Asked = r.IntN(2) == 0; r.IntN(3) == 0 {
				b.Asked, b.Error = true, &fleet.HostError{Code: "c", Message: "m"}
			}
			if r.IntN(6) == 0 {
				b.Blocked = "b"
			}
			if r.IntN(6) == 0 {
				b.LowDisk = &fleet.LowDisk{}
			}
			for range 1 + r.IntN(2) {
				if err := db.HostHeartbeat(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				b.Error = nil
				mu.Lock()
				clk = clk.Add(time.Duration(r.IntN(3)) * 500 * time.Millisecond)
				mu.Unlock()
			}
		}
		p := fleet.Protocol{Current: 3, Minimum: 1, Next: 2, From: now()}
		for step := range 80 {
			at := now().Add(time.Duration(step-40) * time.Second)
			seen := 0
			err := db.Read(t.Context(), func(tx *store.Tx) error {
				for _, status := range fleet.HostStatuses {
					page := store.HostPage{Limit: 1000, Status: status, Protocol: p, Now: at}
					hosts, err := tx.Hosts(app, page)
					if err != nil {
						return err
					}
					n, err := tx.CountHosts(app, page)
					if err != nil || n != int64(len(hosts)) {
						return fmt.Errorf("counted %d of %d, %w", n, len(hosts), err)
					}
					for _, h := range hosts {
						if got := h.Status(p, at); got != status {
							t.Errorf("%s at %s: %s in the list of the %s", h.Name, at, got, status)
						}
					}
					seen += len(hosts)
				}
				return nil
			})
			if err != nil || seen != 300 {
				t.Fatalf("%d of 300 hosts have a status, %v", seen, err)
			}
		}
	})
}

// TestNonceStandsAndFallsWithItsTransaction.
//
// contract: R-24
// lesson 35
func TestNonceStandsAndFallsWithItsTransaction(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		var mu sync.Mutex
		clk := time.Unix(1_800_000_000, 0)
		step := func(d time.Duration) { mu.Lock(); clk = clk.Add(d); mu.Unlock() }
		o.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return clk }
		db := storetest.Open(t, o)
		app := newApp(t, db)
		n := &store.Nonce{KeyID: "k", Nonce: "n", KeepUntil: clk.Add(10 * time.Second)}
		boom := errors.New("boom")
		take := func(err error) error {
			return db.Write(t.Context(), func(tx *store.Tx) error {
				if err := tx.InsertNonce(n); err != nil {
					return err
				}
				return err
			})
		}
		if err := take(boom); !errors.Is(err, boom) {
			t.Fatal(err)
		}
		b := hostBeat("no such app", "h")
		b.Nonce = n
		if err := db.HostHeartbeat(t.Context(), b); err == nil {
			t.Fatal("a heartbeat of no app went through")
		}
		b = hostBeat(app, "h")
		b.Nonce = n
		if err := db.HostHeartbeat(t.Context(), b); err != nil {
			t.Fatalf("the nonce of two refused requests: %v", err)
		}
		if err := db.HostHeartbeat(t.Context(), b); !errors.Is(err, store.ErrReplayed) {
			t.Fatalf("again: %v", err)
		}
		if err := take(nil); !errors.Is(err, store.ErrReplayed) {
			t.Fatalf("again, elsewhere: %v", err)
		}
		forget := func() (n int64) {
			_ = db.Write(t.Context(), func(tx *store.Tx) (err error) { n, err = tx.ForgetNonces(10); return err })
			return n
		}
		step(10*time.Second - 1)
		if err := take(nil); !errors.Is(err, store.ErrReplayed) || forget() != 0 {
			t.Fatalf("a moment before its end: %v", err)
		}
		step(1)
		if err := take(boom); !errors.Is(err, boom) { // free, though the row is still there
			t.Fatalf("at its end: %v", err)
		}
		if n := forget(); n != 1 {
			t.Errorf("forgot %d", n)
		}
	})
}

// TestReplaysInOneBatch: of many with one nonce in one transaction, one counts;
// those beside them are not harmed.
//
// contract: R-24
func TestReplaysInOneBatch(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db := storetest.Open(t, o)
		app := newApp(t, db)
		hold := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { _ = db.Write(t.Context(), func(*store.Tx) error { <-hold; return nil }) }) // gathers the others
		errs := make([]error, 200)
		for i := range errs {
			wg.Go(func() {
				b := hostBeat(app, fmt.Sprintf("h%d", i%40))
				b.Nonce = &store.Nonce{KeyID: b.Host, Nonce: "n", KeepUntil: time.Now().Add(time.Hour)}
				if i%40 == 7 {
					b.AppID = "no such app"
				}
				errs[i] = db.HostHeartbeat(t.Context(), b)
			})
		}
		close(hold)
		wg.Wait()
		taken := map[int]int{}
		for i, err := range errs {
			switch {
			case i%40 == 7:
				if err == nil || errors.Is(err, store.ErrReplayed) {
					t.Errorf("a beat of no app: %v", err)
				}
			case err == nil:
				taken[i%40]++
			case !errors.Is(err, store.ErrReplayed):
				t.Errorf("beat %d: %v", i, err)
			}
		}
		if len(taken) != 39 {
			t.Errorf("%d hosts were heard", len(taken))
		}
		for h, n := range taken {
			if n != 1 {
				t.Errorf("host %d was heard %d times", h, n)
			}
		}
	})
}

// TestTwoServersBeatTheSameHosts in opposite order, registering all the while:
// nobody waits for ever and the count is right.
func TestTwoServersBeatTheSameHosts(t *testing.T) {
	url := storetest.Postgres(t)
	servers := []*store.DB{storetest.Open(t, store.Options{URL: url}), storetest.Open(t, store.Options{URL: url})}
	app := newApp(t, servers[0])
	var wg sync.WaitGroup
	for s, db := range servers {
		for i := range 60 {
			wg.Go(func() {
				for round := range 10 {
					n := (i*7 + round*13) % 100
					if s == 1 {
						n = 99 - n
					}
					err := db.HostHeartbeat(t.Context(), hostBeat(app, fmt.Sprintf("h%02d", n)))
					if store.Conflict(err) {
						err = db.HostHeartbeat(t.Context(), hostBeat(app, fmt.Sprintf("h%02d", n)))
					}
					if err != nil {
						t.Errorf("server %d: %v", s, err)
					}
				}
			})
		}
	}
	wg.Wait()
	_ = servers[0].Read(t.Context(), func(tx *store.Tx) error {
		hosts, err := tx.Hosts(app, store.HostPage{Limit: 1000})
		n, _ := tx.CountHosts(app, store.HostPage{})
		if err != nil || n != int64(len(hosts)) || n == 0 {
			t.Errorf("%d hosts, counted %d, %v", len(hosts), n, err)
		}
		return nil
	})
}

func queue(t *testing.T, db *store.DB, app, creator, name string, memory int64) {
	t.Helper()
	j := fleet.Job{ID: fleet.NewID(), AppID: app, Creator: creator, Spec: fleet.JobSpec{Name: name, Command: []string{"x"}, MemoryBytes: memory, TimeoutSeconds: 60, MaxAttempts: 3}, CreatedAt: time.Now()}
	if err := db.Write(t.Context(), func(tx *store.Tx) error { return tx.InsertJob(&j) }); err != nil {
		t.Fatal(err)
	}
}

// TestTurns: creators take turns, whoever comes anew goes to the end, and a job
// that does not fit blocks nobody.
func TestTurns(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		db := storetest.Open(t, o)
		app := newApp(t, db)
		queue(t, db, app, "a", "huge", 100)
		for i := range 3 {
			queue(t, db, app, "a", fmt.Sprint("a", i), 1)
		}
		queue(t, db, app, "b", "b0", 1)
		queue(t, db, app, "b", "b1", 1)
		queue(t, db, newApp(t, db), "a", "of another app", 1)
		var got []string
		next := func(memory int64) error {
			return db.Write(t.Context(), func(tx *store.Tx) error {
				j, err := tx.NextJob(app, memory, 0)
				if err != nil {
					return err
				}
				got = append(got, j.Spec.Name)
				j.Claim("h", tx.Now)
				if err := tx.UpdateJob(&j); err != nil {
					return err
				}
				return tx.Served(&j)
			})
		}
		for i := range 5 {
			if i == 2 {
				queue(t, db, app, "c", "c0", 1)
			}
			if err := next(50); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := next(50); err != nil && !errors.Is(err, store.ErrNotFound) {
				t.Fatal(err)
			}
		}
		if err := next(100); err != nil {
			t.Fatal(err)
		}
		if want := []string{"a0", "b0", "a1", "b1", "c0", "a2", "huge"}; !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
		if err := next(100); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("an empty queue: %v", err)
		}
	})
}
