package store

import "github.com/outcrop-cloud/outcrop/internal/fleet"

const appSelect = `SELECT id, name, update_mode, update_version, hosts, created_at FROM apps `

func scanApp(scan scanFunc) (a fleet.App, err error) {
	var created int64
	err = scan(&a.ID, &a.Name, &a.Update.Mode, &a.Update.Version, &a.Hosts, &created)
	a.CreatedAt = fromMicros(created)
	return a, err
}

// App reads one app; ErrNotFound.
func (tx *Tx) App(id string) (fleet.App, error) {
	return one(tx, appSelect+`WHERE id = $1`, []any{id}, scanApp)
}

// Apps reads a page of apps, oldest first.
func (tx *Tx) Apps(limit, offset int64) ([]fleet.App, error) {
	return list(tx, appSelect+`ORDER BY created_at, id LIMIT $1 OFFSET $2`, []any{limit, offset}, scanApp)
}

// CountApps is how many apps there are.
func (tx *Tx) CountApps() (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM apps`, nil, &n)
}

// InsertApp writes a new app.
func (tx *Tx) InsertApp(a *fleet.App) error {
	_, err := tx.exec(`INSERT INTO apps (id, name, update_mode, update_version, hosts, created_at) VALUES ($1, $2, $3, $4, 0, $5)`,
		a.ID, a.Name, string(a.Update.Mode), a.Update.Version, micros(a.CreatedAt))
	return err
}

// RenameApp gives an app another name; ErrNotFound.
func (tx *Tx) RenameApp(id, name string) error {
	return tx.must(ErrNotFound, `UPDATE apps SET name = $2 WHERE id = $1`, id, name)
}

// SetUpdate writes an app's update setting; ErrNotFound. Servers keep the setting
// beside the keys, so it counts as a change of those.
func (tx *Tx) SetUpdate(id string, s fleet.UpdateSetting) error {
	if err := tx.must(ErrNotFound, `UPDATE apps SET update_mode = $2, update_version = $3 WHERE id = $1`, id, string(s.Mode), s.Version); err != nil {
		return err
	}
	return tx.bumpAuth()
}

// DeleteApp removes an app with its keys and all that is left of its work;
// ErrNotFound.
func (tx *Tx) DeleteApp(id string) error {
	if err := tx.must(ErrNotFound, `DELETE FROM apps WHERE id = $1`, id); err != nil {
		return err
	}
	return tx.bumpAuth()
}
