package control

import (
	"context"
	"errors"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// Page is which part of a list a caller wants.
type Page struct {
	Limit  int    // 0: 100
	Cursor string // empty: from the start
}

// Bounds of Page.Limit.
const (
	defaultLimit = 100
	MaxLimit     = 1000
)

func (p Page) limit() int {
	if p.Limit <= 0 {
		return defaultLimit
	}
	return min(p.Limit, MaxLimit)
}

func badCursor() error {
	return fault.InvalidFields([]fault.Field{{Path: "cursor", Message: "is not one that this list gave; leave it out to begin anew"}})
}

// pageByAge reads one page of a list ordered by (created_at, id). It asks for
// one row more than the page, to know whether there is a next one.
func pageByAge[R, V any](ctx context.Context, c *Control, p Page,
	read func(*store.Tx, store.Cursor, int) ([]R, error), view func(*R) (V, store.Cursor)) (api.List[V], error) {
	out := api.List[V]{Items: []V{}}
	after, ok := store.ParseCursor(p.Cursor)
	if !ok {
		return out, badCursor()
	}
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		rows, err := read(tx, after, p.limit()+1)
		if err != nil {
			return err
		}
		for i := range rows {
			if i == p.limit() {
				break
			}
			v, cursor := view(&rows[i])
			out.Items = append(out.Items, v)
			if i == p.limit()-1 && len(rows) > p.limit() {
				out.NextCursor = cursor.String()
			}
		}
		return nil
	})
	return out, err
}

// notFound turns the store's ErrNotFound into an answer; other errors pass.
func notFound(err error, format string, args ...any) error {
	if errors.Is(err, store.ErrNotFound) {
		return fault.New(fault.NotFound, format, args...)
	}
	return err
}
