package store

import (
	"encoding/base64"
	"encoding/json"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

func scanProject(scan scanFunc) (p compute.Project, err error) {
	var created int64
	err = scan(&p.ID, &p.Name, &created)
	p.CreatedAt = time.UnixMicro(created).UTC() // the default project's is 1970
	return p, err
}

// Project reads one project; ErrNotFound.
func (tx *Tx) Project(id string) (compute.Project, error) {
	return one(tx, `SELECT id, name, created_at FROM projects WHERE id = $1`, []any{id}, scanProject)
}

// Projects reads a page of projects in id order.
func (tx *Tx) Projects(after string, limit int) ([]compute.Project, error) {
	return list(tx, `SELECT id, name, created_at FROM projects WHERE id > $1 ORDER BY id LIMIT $2`, []any{after, limit}, scanProject)
}

// InsertProject writes a new project; ErrExists when the id is taken.
func (tx *Tx) InsertProject(p compute.Project) error {
	return tx.must(ErrExists, `INSERT INTO projects (id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING`,
		p.ID, p.Name, micros(p.CreatedAt))
}

// DeleteProject removes an empty project, with what is left of its terminated
// instances.
func (tx *Tx) DeleteProject(id string) error {
	if _, err := tx.exec(`DELETE FROM instances WHERE project_id = $1 AND state = 'terminated'`, id); err != nil {
		return err
	}
	return tx.must(ErrNotFound, `DELETE FROM projects WHERE id = $1`, id)
}

// Cursor is the place in a list ordered by (created_at, id) after which the next
// page begins. The zero Cursor is the start.
type Cursor struct {
	At int64  `json:"a"`
	ID string `json:"i"`
}

// After is the cursor behind a row.
func After(createdAt time.Time, id string) Cursor { return Cursor{micros(createdAt), id} }

// String is the opaque text of the cursor.
func (c Cursor) String() string {
	b, _ := json.Marshal(c)
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseCursor reads what String wrote; empty text is the start.
func ParseCursor(s string) (c Cursor, ok bool) {
	if s == "" {
		return c, true
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || json.Unmarshal(b, &c) != nil {
		return Cursor{}, false
	}
	return c, true
}
