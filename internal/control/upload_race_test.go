package control_test

import (
	"errors"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// An upload that one server ends while another notes what has arrived of it is over: it
// is not written again.
// contract: U-21
func TestUploadEndsMeanwhile(t *testing.T) {
	s := apptest.Start(t, apptest.Options{Kind: "postgres"})
	other := storetest.Open(t, s.Database())
	a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
	i := launched(t, s, a, b, api.CreateInstance{})[0]
	migrate(s, i.ID, api.MigrateInstance{}).Want(202)
	a.sync()
	a.act()
	a.sync()
	id := a.told.Uploads[0].ID
	ended := make(chan error, 1)
	err := s.DB.Write(t.Context(), func(tx *store.Tx) error {
		u, err := tx.UploadToChange("n1", id)
		if err != nil {
			return err
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			ended <- other.Write(t.Context(), func(tx *store.Tx) error { return tx.DeleteUpload(id) })
		}()
		select {
		case <-done: // nothing held it
		case <-time.After(300 * time.Millisecond):
		}
		u.Arrived[0].SHA256 = "x"
		return tx.PutUpload(&u)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := s.DB.Read(t.Context(), func(tx *store.Tx) error { _, err := tx.UploadByID(id); return err }); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("it is there again: %v", err)
	}
}
