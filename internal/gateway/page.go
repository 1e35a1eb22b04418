package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// CodeInvalidQuery is the code of a query that is refused.
const CodeInvalidQuery = "invalid_request_query"

const (
	defaultLimit = 50
	maxLimit     = 1000
	maxOffset    = 1 << 40
)

// listPage is which part of a list a caller wants.
type listPage struct{ Limit, Offset int64 }

// parsePage reads limit and offset, and refuses what is not in them or in others.
func parsePage(q url.Values, others ...string) (listPage, error) {
	p := listPage{Limit: defaultLimit}
	var problems []fault.Field
	number := func(name string, dest *int64, min, max int64) {
		if !q.Has(name) {
			return
		}
		n, err := strconv.ParseInt(q.Get(name), 10, 64)
		if err != nil || n < min || n > max {
			problems = append(problems, fault.Field{Path: name, Message: "must be a whole number from " + strconv.FormatInt(min, 10) + " to " + strconv.FormatInt(max, 10)})
			return
		}
		*dest = n
	}
	number("limit", &p.Limit, 1, maxLimit)
	number("offset", &p.Offset, 0, maxOffset)
	return p, invalidQuery(problems)
}

func invalidQuery(problems []fault.Field) error {
	if len(problems) == 0 {
		return nil
	}
	return &fault.Error{Kind: fault.Invalid, Code: CodeInvalidQuery, Fields: problems, Message: "the query is not valid; details names each parameter and what it must be"}
}

// oneOf reads a parameter that takes one of some words, or none.
func oneOf[T ~string](q url.Values, name string, words []T) (T, error) {
	text := q.Get(name)
	for _, w := range words {
		if text == string(w) {
			return w, nil
		}
	}
	if text == "" {
		return "", nil
	}
	names := make([]string, len(words))
	for i, w := range words {
		names[i] = string(w)
	}
	return "", invalidQuery([]fault.Field{{Path: name, Message: "must be one of " + strings.Join(names, ", ")}})
}

// page reads a page and its total in one transaction.
func page[R, V any](ctx context.Context, g *Gateway, who *Caller, p listPage, read func(*store.Tx) ([]R, int64, error), view func(*R) V) (api.DataList[V], error) {
	out := api.DataList[V]{Data: []V{}, Pagination: api.Pagination{Limit: p.Limit, Offset: p.Offset}}
	err := g.read(ctx, who, func(tx *store.Tx) error {
		rows, total, err := read(tx)
		out.Data = make([]V, len(rows))
		for i := range rows {
			out.Data[i] = view(&rows[i])
		}
		out.Pagination.Total = total
		return err
	})
	return out, err
}

// notFound turns the store's ErrNotFound into an answer; other errors pass.
func notFound(err error, format string, args ...any) error {
	if errors.Is(err, store.ErrNotFound) {
		return fault.Coded(fault.NotFound, "not_found", format, args...)
	}
	return err
}

// rememberFor is how long a create answers the same key with its first answer.
const rememberFor = 24 * time.Hour

// maxIdempotencyKey bounds the header, in bytes.
const maxIdempotencyKey = 255

// once runs a create, which sets *out, or sets *out to what it was when the same
// caller made the same create with the same key before (contract E-10).
func once[T any](tx *store.Tx, who *Caller, what, key string, body []byte, out *T, create func() error) error {
	if key == "" {
		return create()
	}
	if len(key) > maxIdempotencyKey || strings.ContainsRune(key, 0) {
		return fault.Coded(fault.Invalid, "invalid_idempotency_key", "Idempotency-Key has at most %d characters", maxIdempotencyKey)
	}
	scope := "gateway/" + who.appID + "/" + who.id() + "/" + what
	sum := sha256.Sum256(body)
	r, err := tx.Recall(scope, key, tx.Now.Add(-rememberFor))
	switch {
	case err == nil && !bytes.Equal(r.Request, sum[:]):
		return fault.Coded(fault.Conflict, "idempotency_conflict", "this Idempotency-Key came with another request before; use a new key for a new request")
	case err == nil:
		return json.Unmarshal([]byte(r.Answer), out)
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	// An answer that is too old to be given may still hold the key.
	if _, err := tx.ForgetAnswers(tx.Now.Add(-rememberFor)); err != nil {
		return err
	}
	if err := create(); err != nil {
		return err
	}
	answer, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return tx.Remember(scope, key, store.Remembered{Request: sum[:], Answer: string(answer)}, tx.Now.Add(-rememberFor))
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// orNil is nil for an empty text.
func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
