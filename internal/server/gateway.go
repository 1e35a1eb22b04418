package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/limit"
)

// The gateway speaks plain net/http: its signatures cover the request as it was
// received, and its order of checks (contract E-07) puts the body last, where
// huma would read it first. Its operations stand in the one OpenAPI document all
// the same; see gateway_doc.go.

// gatewayCall is one request on its way into a verb.
type gatewayCall struct {
	*http.Request
	who  gateway.Caller
	body []byte
}

func (c *gatewayCall) idempotencyKey() string { return c.Header.Get("Idempotency-Key") }

// gatewayVerb answers what goes into the envelope, whole.
type gatewayVerb func(c *gatewayCall) (any, error)

// data puts a verb's answer into the envelope (contract E-06).
func data[T any](v T, err error) (any, error) { return api.Data[T]{Data: v}, err }

// whole is for answers that are an envelope themselves.
func whole[T any](v T, err error) (any, error) { return v, err }

// deleted answers what is gone.
func deleted(id string, err error) (any, error) { return data(api.Deleted{ID: id}, err) }

// healthTimeout is how long a database may take and still count as answering.
const healthTimeout = 5 * time.Second

// AddGateway adds the gateway's routes. Call it once, before the server answers.
func (s *Server) AddGateway(g *gateway.Gateway) {
	s.gatewayDocument()
	s.mux.HandleFunc("GET /v1/capabilities", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, api.Data[api.Capabilities]{Data: g.Capabilities()})
	})
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
		defer cancel()
		if err := s.control.Ready(ctx); err != nil {
			s.log.ErrorContext(ctx, "not healthy", "err", err)
			writeJSON(w, http.StatusServiceUnavailable, api.GatewayError{Error: api.GatewayErrorBody{Code: "unhealthy", Message: "the database does not answer; see the server's log"}})
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	for _, o := range gatewayOperations(g) {
		s.routes = append(s.routes, Route{o.method, o.path, o.needs()})
		s.api.OpenAPI().AddOperation(o.document())
		s.mux.HandleFunc(o.method+" "+o.path, func(w http.ResponseWriter, r *http.Request) {
			out, err := s.callGateway(g, &o, w, r)
			if err != nil {
				s.failGateway(w, r, err)
				return
			}
			writeJSON(w, o.status, out)
		})
	}
}

func (s *Server) callGateway(g *gateway.Gateway, o *gatewayOperation, w http.ResponseWriter, r *http.Request) (any, error) {
	c := &gatewayCall{Request: r}
	var err error
	c.who, c.body, err = g.Admit(r.Context(), &gateway.Request{
		Authorization: r.Header.Get("Authorization"), AppID: r.Header.Get("X-Outerlayer-App-Id"),
		Source: source(r.RemoteAddr), NoApp: o.noApp, Message: httpsig.FromRequest(r),
		Body: func() ([]byte, error) { return gatewayBody(w, r) },
	})
	if err != nil {
		return nil, err
	}
	return o.verb(c)
}

// gatewayBody reads a body of at most 1 MiB (contract E-07).
func gatewayBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	b, over, err := readBody(w, r, gateway.MaxBody)
	if over {
		return nil, fault.Coded(fault.TooLarge, "request_body_too_large", "a request body has at most %d bytes", gateway.MaxBody)
	}
	if err != nil {
		return nil, fault.Coded(fault.Invalid, fleet.CodeInvalidBody, "the body broke off before its end; send it again")
	}
	return b, nil
}

// source is who is at the other end of the connection: an address, or the network
// that one IPv6 customer has. No header is asked, as anybody can write one.
func source(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	a, err := netip.ParseAddr(host)
	if err != nil || a.Unmap().Is4() {
		return host
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return host
	}
	return p.String()
}

// isGateway reports whether a path belongs to the gateway, whose envelope is
// another one (contract E-06).
func isGateway(path string) bool {
	for _, area := range []string{"hosts", "apps", "api-keys", "work", "capabilities"} {
		rest, ok := strings.CutPrefix(path, "/v1/"+area)
		if ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// failGateway answers what a verb refused, in the gateway's envelope.
func (s *Server) failGateway(w http.ResponseWriter, r *http.Request, err error) {
	e := fault.From(err)
	body := api.GatewayErrorBody{Code: strings.ToLower(e.Code), Message: e.Message, Details: e.Details}
	if len(e.Fields) > 0 {
		body.Details = problemsByPath(e.Fields)
	}
	h := w.Header()
	status := e.Kind.Status()
	var wait limit.TooSoon
	switch {
	case e.Kind == fault.Unauthenticated:
		h.Set("WWW-Authenticate", `Bearer realm="outcrop"`)
	case errors.As(err, &wait):
		h.Set("Retry-After", strconv.FormatInt(wait.RetryAfter(), 10))
	case e.Kind == fault.Internal:
		rendered := refuse(r.Context(), s.log, err)
		status, body.RequestID = rendered.status, requestID(r.Context())
	}
	writeJSON(w, status, api.GatewayError{Error: body})
}

// problemsByPath is details as contract E-07 has it.
func problemsByPath(fields []fault.Field) map[string]string {
	out := make(map[string]string, len(fields))
	for _, f := range fields {
		if have := out[f.Path]; have != "" {
			f.Message = have + "; " + f.Message
		}
		out[f.Path] = f.Message
	}
	return out
}

// fail answers an error that no verb made, in the envelope of the API that the
// path belongs to.
func fail(w http.ResponseWriter, r *http.Request, e *ComputeError) {
	if !isGateway(r.URL.Path) {
		writeError(w, e)
		return
	}
	writeJSON(w, e.status, api.GatewayError{Error: api.GatewayErrorBody{Code: strings.ToLower(e.Code), Message: e.Message}})
}
