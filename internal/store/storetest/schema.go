package storetest

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/store"
)

// SetSchemaVersion makes a closed database look as if another binary had
// migrated it to the version.
func SetSchemaVersion(t testing.TB, o store.Options, version int64) {
	t.Helper()
	driver, dsn := "pgx", o.URL
	if dsn == "" {
		driver, dsn = "sqlite", "file:"+filepath.Join(o.Dir, "outcrop.db")
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, true)", version); err != nil {
		t.Fatal(err)
	}
}
