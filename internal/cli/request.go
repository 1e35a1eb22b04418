package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// item is a thing as the server sent it. -o json prints exactly that, so that
// fields of a newer server are not lost.
type item[T any] struct {
	value T
	raw   json.RawMessage
}

func (i *item[T]) UnmarshalJSON(b []byte) error {
	i.raw = append(i.raw[:0], b...)
	var v T
	err := json.Unmarshal(b, &v)
	i.value = v
	return err
}

// newItem is an item that no server sent.
func newItem[T any](v T) (item[T], error) {
	raw, err := json.Marshal(v)
	return item[T]{value: v, raw: raw}, err
}

func (i item[T]) MarshalJSON() ([]byte, error) { return i.raw, nil }

// client makes the API client that the settings ask for, once.
func (a *app) client() (*api.Client, error) {
	if a.api != nil {
		return a.api, nil
	}
	s := a.settings()
	if s.err != nil {
		return nil, &failure{code: codeFailed, message: s.err.Error(), cause: s.err}
	}
	c, err := api.NewClient(s.url, s.token, "outcrop/"+buildVersion().Version)
	if err != nil {
		return nil, &failure{code: codeUsage, message: fmt.Sprintf("%s (it is from %s)", err, s.urlFrom)}
	}
	a.api = c
	return c, nil
}

// do sends one request; see api.Client.Do.
func (a *app) do(ctx context.Context, method, path string, in, out any, opts ...api.Option) error {
	return a.within(ctx, func(ctx context.Context, c *api.Client) error {
		return c.Do(ctx, method, path, in, out, opts...)
	})
}

// within runs send under --timeout.
func (a *app) within(ctx context.Context, send func(context.Context, *api.Client) error) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	limited := ctx
	if a.flags.timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, a.flags.timeout)
		defer cancel()
	}
	err = send(limited, c)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return &failure{code: codeTimeout, cause: err,
			message: fmt.Sprintf("no answer from %s within %s", a.settings().url, a.flags.timeout),
			hint:    "--timeout allows more time; what was asked for may still happen"}
	}
	return err
}

// retryDelays are the pauses before a create is sent again.
var retryDelays = []time.Duration{250 * time.Millisecond, time.Second, 2 * time.Second}

// create sends a create and sends it again when the connection broke before the
// answer came. The key is made once, so all of the tries make one thing (lesson
// 21, contract E-10). send gets the key and is called once for each try.
func (a *app) create(ctx context.Context, send func(ctx context.Context, key api.Option) error) error {
	key := api.IdempotencyKey(rand.Text())
	for try := 0; ; try++ {
		err := send(ctx, key)
		if err == nil || try == len(retryDelays) || !unanswered(err) {
			return err
		}
		a.notef("no answer; asking again (%d of %d)", try+1, len(retryDelays))
		select {
		case <-a.after(retryDelays[try]):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// post is create for a JSON body.
func (a *app) post(ctx context.Context, path string, in, out any) error {
	return a.create(ctx, func(ctx context.Context, key api.Option) error {
		return a.do(ctx, http.MethodPost, path, in, out, key)
	})
}

// unanswered reports whether err leaves open what the server did. A connection
// that was refused does not: nothing was sent, and a person wants to know at once.
func unanswered(err error) bool {
	for _, code := range []string{"HTTP_502", "HTTP_503", "HTTP_504"} { // a proxy's word
		if fault.HasCode(err, code) {
			return true
		}
	}
	u, ok := errors.AsType[*api.Unreachable](err)
	return ok && !dialFailed(u)
}

// dialFailed reports whether no connection was made, so that nothing was sent.
func dialFailed(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// list fetches all pages of a list. An empty list is not nil.
func list[T any](ctx context.Context, a *app, path string) ([]item[T], error) {
	items := []item[T]{}
	err := a.within(ctx, func(ctx context.Context, c *api.Client) error {
		items = items[:0]
		return api.Pages(ctx, c, path, func(i item[T]) error {
			items = append(items, i)
			return nil
		})
	})
	return items, err
}

// orDash stands for a value that is not there.
func orDash(s string) string { return cmp.Or(s, "-") }
