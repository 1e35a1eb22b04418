package store_test

import (
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// One server runs a loop, until its lease is over. A lease that was taken while a clock
// was wrong keeps nobody from it; a clock that is a little ahead gives nothing away.
// contract: U-16 // lesson 5
func TestLead(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		now := start
		o.Now = func() time.Time { return now }
		db := storetest.Open(t, o)
		for _, c := range []struct {
			at     time.Duration
			holder string
			leads  bool
		}{
			{0, "a", true}, {0, "b", false}, {20 * time.Second, "a", true}, {40 * time.Second, "b", false}, {51 * time.Second, "b", true},
			{-5 * time.Minute, "a", false},                                                               // a's clock is behind b's
			{1000 * time.Hour, "a", true}, {2 * time.Minute, "b", true}, {2*time.Minute + 1, "a", false}, // a's was ahead
		} {
			now = start.Add(c.at)
			var leads bool
			if err := db.Write(t.Context(), func(tx *store.Tx) (err error) {
				leads, err = tx.Lead("loop", c.holder, tx.Now.Add(30*time.Second))
				return err
			}); err != nil || leads != c.leads {
				t.Errorf("at %v %s leads: %v, %v", c.at, c.holder, leads, err)
			}
		}
	})
}
