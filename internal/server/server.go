// Package server is the HTTP side: routes, authentication, envelopes, OpenAPI.
//
// Every route is one entry in routes.go: who may call it (an action), what goes
// in, which verb it calls. What a verb refuses is rendered in errors.go.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/outcrop-cloud/outcrop/internal/control"
)

// Server answers the public API.
type Server struct {
	control *control.Control
	log     *slog.Logger
	mux     *http.ServeMux
	api     huma.API
	metrics *metrics
	routes  []Route
	// stopping is closed when the server begins to stop, so that held answers
	// come back early.
	stopping chan struct{}
	stopOnce sync.Once
}

// schemas is the registry of the server that is being built; nothing else reads it.
var (
	building sync.Mutex
	schemas  huma.Registry
)

// New builds the routes. version goes into the OpenAPI document and a header.
func New(c *control.Control, log *slog.Logger, version string) *Server {
	s := &Server{control: c, log: log, mux: http.NewServeMux(), stopping: make(chan struct{})}
	s.metrics = newMetrics(&nodeCollector{c, log})
	s.api = humago.New(s.mux, openAPIConfig(version))
	building.Lock()
	defer building.Unlock()
	schemas = s.api.OpenAPI().Components.Schemas
	s.computeRoutes()
	s.operationalRoutes()
	return s
}

// Route is one route of the API, for the test that walks them all.
type Route struct {
	Method, Path string
	Action       string // empty: open to all
}

// Routes lists all routes that were registered.
func (s *Server) Routes() []Route { return s.routes }

// OpenAPI is the document of the whole API.
func (s *Server) OpenAPI() *huma.OpenAPI { return s.api.OpenAPI() }

// Handler is the whole server as a handler.
func (s *Server) Handler() http.Handler { return s.withRequest(s.dispatch) }

// Limits of a connection. Bodies have their own, in the routes that take them.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	shutdownGrace     = 30 * time.Second
)

// Serve answers on l until ctx ends, then lets accepted requests finish. cert is
// nil for plain HTTP.
func (s *Server) Serve(ctx context.Context, l net.Listener, cert *tls.Certificate) error {
	srv := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if cert != nil {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}})
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	s.stopOnce.Do(func() { close(s.stopping) })
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		return fmt.Errorf("some requests did not finish within %s: %w", shutdownGrace, errors.Join(err, srv.Close()))
	}
	return nil
}
