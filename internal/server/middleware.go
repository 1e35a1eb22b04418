package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/limit"
)

// exchange is a request on its way through the server and the writer of its
// answer: what the log and the metrics want to know of it, and who calls. It is
// the one value that goes into the context.
type exchange struct {
	http.ResponseWriter
	request *http.Request
	id      string
	caller  iam.Caller
	schemas huma.Registry // of the server that answers, for naming what was meant
	status  int
	// unrouted is the status with which the mux itself refused; what it wrote with
	// that is dropped, as dispatch answers in the envelope.
	unrouted int
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

func requestID(ctx context.Context) string {
	if x := exchangeOf(ctx); x != nil {
		return x.id
	}
	return ""
}

func callerOf(ctx context.Context) iam.Caller {
	if x := exchangeOf(ctx); x != nil {
		return x.caller
	}
	return iam.Caller{}
}

func (x *exchange) WriteHeader(status int) {
	if x.request.Pattern == "" && x.unrouted == 0 && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed) {
		x.unrouted = status
		return
	}
	if x.status == 0 {
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

func (x *exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		if x.unrouted != 0 {
			return len(b), nil
		}
		x.status = http.StatusOK
	}
	return x.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// withRequest gives every request an id, a log line, its metrics, and an answer
// when its handler panics.
func (s *Server) withRequest(next func(*exchange)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		id := r.Header.Get("X-Request-Id")
		if !validRequestID(id) {
			id = rand.Text()[:16]
		}
		w.Header().Set("X-Request-Id", id)
		x := &exchange{ResponseWriter: w, id: id, schemas: s.api.OpenAPI().Components.Schemas}
		r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
		x.request = r
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				err := fmt.Errorf("panic: %v\n%s", p, debug.Stack())
				e := refuse(r.Context(), s.log, err)
				if x.status == 0 {
					fail(x, r, e)
				}
			}
			s.done(r, x.status, time.Since(begun))
		}()
		next(x)
	})
}

func validRequestID(id string) bool {
	return id != "" && len(id) <= 64 && strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.") == ""
}

// dispatch runs the route, or answers in the envelope where there is none.
func (s *Server) dispatch(x *exchange) {
	r := x.request
	if err := plainURL(r.URL); err != nil {
		s.refuse(x, r, err)
		return
	}
	s.mux.ServeHTTP(x, r)
	switch x.unrouted {
	case http.StatusMethodNotAllowed:
		e := render(fault.New(fault.Invalid, "%s is not for %s; it takes %s", r.Method, r.URL.Path, x.Header().Get("Allow")))
		e.status, e.Code = http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED"
		fail(x, r, e)
	case http.StatusNotFound:
		fail(x, r, render(fault.New(fault.NotFound, "there is no %s in this API; see /openapi.json", r.URL.Path)))
	}
}

// plainURL refuses text that no name can have and that a database would choke on.
func plainURL(u *url.URL) error {
	if !plain(u.Path) {
		return fault.New(fault.Invalid, "the path has bytes that are no text; names have none such")
	}
	if u.RawQuery == "" {
		return nil
	}
	var bad []fault.Field
	for name, values := range u.Query() {
		if !plain(name) || !plain(strings.Join(values, "")) {
			bad = append(bad, fault.Field{Path: strings.ToValidUTF8(name, "?"), Message: "has bytes that are no text"})
		}
	}
	return fault.InvalidFields(bad)
}

// plain reports whether s is text: UTF-8 without the character NUL.
func plain(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// authorize finds the caller and checks that the action is allowed on what the
// path names. The verb checks again; here it comes before the body is looked at.
func (s *Server) authorize(r *http.Request, a iam.Action) error {
	token, ok := bearer(r.Header.Get("Authorization"))
	if !ok {
		return fault.New(fault.Unauthenticated, "a token is needed: send Authorization: Bearer TOKEN")
	}
	who, err := s.control.Authenticate(r.Context(), token)
	if err != nil {
		return err
	}
	if err := iam.Allow(who, a, iam.Scope{ProjectID: r.PathValue("projectId"), NodeID: r.PathValue("nodeId")}); err != nil {
		return err
	}
	exchangeOf(r.Context()).caller = who
	return nil
}

func bearer(header string) (token string, ok bool) {
	scheme, token, ok := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "Bearer") && token != ""
}

// authorized is authorize as a middleware of one huma operation.
func (s *Server) authorized(a iam.Action) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(ctx)
		if err := s.authorize(r, a); err != nil {
			s.refuse(w, r, err)
			return
		}
		bound(w, r, bodyTimeout, false)
		next(ctx)
	}
}

// refuse answers an error of a request.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	e := refuse(r.Context(), s.log, err)
	var wait limit.TooSoon
	switch {
	case e.status == http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="outcrop"`)
	case errors.As(err, &wait):
		w.Header().Set("Retry-After", strconv.FormatInt(wait.RetryAfter(), 10))
	}
	writeError(w, e)
}
