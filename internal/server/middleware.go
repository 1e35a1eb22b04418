package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

type contextKey uint8

const (
	keyRequestID contextKey = iota
	keyCaller
)

func requestID(ctx context.Context) string {
	id, _ := ctx.Value(keyRequestID).(string)
	return id
}

func callerOf(ctx context.Context) iam.Caller {
	c, _ := ctx.Value(keyCaller).(iam.Caller)
	return c
}

// recorder remembers the status for the log and the metrics.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// withRequest gives every request an id, a log line, its metrics, and an answer
// when its handler panics.
func (s *Server) withRequest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		id := r.Header.Get("X-Request-Id")
		if !validRequestID(id) {
			id = rand.Text()[:16]
		}
		w.Header().Set("X-Request-Id", id)
		rec := &recorder{ResponseWriter: w}
		r = r.WithContext(context.WithValue(r.Context(), keyRequestID, id))
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				err := fmt.Errorf("panic: %v\n%s", p, debug.Stack())
				if rec.status == 0 {
					fail(rec, r, refuse(r.Context(), s.log, err))
				} else {
					refuse(r.Context(), s.log, err)
				}
			}
			s.done(r, rec.status, time.Since(begun))
		}()
		next.ServeHTTP(rec, r)
	})
}

func validRequestID(id string) bool {
	return id != "" && len(id) <= 64 && strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.") == ""
}

// dispatch runs the route, or answers in the envelope where there is none.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	h, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r) // again, as only this sets the path values
		return
	}
	probe := &headersOnly{header: http.Header{}}
	h.ServeHTTP(probe, r)
	switch {
	case probe.status == http.StatusMethodNotAllowed:
		w.Header().Set("Allow", probe.header.Get("Allow"))
		e := render(fault.New(fault.Invalid, "%s is not for %s; it takes %s", r.Method, r.URL.Path, probe.header.Get("Allow")))
		e.status, e.Code = http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED"
		fail(w, r, e)
	case probe.status >= 300 && probe.status < 400:
		h.ServeHTTP(w, r)
	default:
		fail(w, r, render(fault.New(fault.NotFound, "there is no %s in this API; see /openapi.json", r.URL.Path)))
	}
}

// headersOnly takes what the mux would answer.
type headersOnly struct {
	header http.Header
	status int
}

func (h *headersOnly) Header() http.Header         { return h.header }
func (h *headersOnly) WriteHeader(status int)      { h.status = status }
func (h *headersOnly) Write(b []byte) (int, error) { return len(b), nil }

// authorize finds the caller and checks that the action is allowed on what the
// path names. The verb checks again; here it comes before the body is looked at.
func (s *Server) authorize(r *http.Request, a iam.Action) (*http.Request, error) {
	token, ok := bearer(r.Header.Get("Authorization"))
	if !ok {
		return r, fault.New(fault.Unauthenticated, "a token is needed: send Authorization: Bearer TOKEN")
	}
	who, err := s.control.Authenticate(r.Context(), token)
	if err != nil {
		return r, err
	}
	if err := iam.Allow(who, a, iam.Scope{ProjectID: r.PathValue("projectId"), NodeID: r.PathValue("nodeId")}); err != nil {
		return r, err
	}
	return r.WithContext(context.WithValue(r.Context(), keyCaller, who)), nil
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
		r2, err := s.authorize(r, a)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		next(huma.WithContext(ctx, r2.Context()))
	}
}

// refuse answers an error of a request.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	e := refuse(r.Context(), s.log, err)
	if e.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="outcrop"`)
	}
	writeError(w, e)
}
