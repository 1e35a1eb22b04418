package server

import (
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec
}

func newMetrics(r *prometheus.Registry) *metrics {
	m := &metrics{registry: r, requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "outcrop_http_request_duration_seconds", Help: "Duration of requests by route and status.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60},
	}, []string{"route", "status"})}
	r.MustRegister(m.requests, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// done counts and logs a finished request. Agents' own routes are many and dull:
// they are logged only at debug level, unless they fail; so are requests that their
// callers gave up.
func (s *Server) done(r *http.Request, status int, took time.Duration) {
	route := r.Pattern
	if route == "" {
		route = "none"
	}
	s.metrics.requests.WithLabelValues(route, strconv.Itoa(status)).Observe(took.Seconds())
	level := slog.LevelInfo
	if status == statusGone || status < 400 && (r.Method == http.MethodGet || strings.HasSuffix(route, "/heartbeat") || strings.HasSuffix(route, "/sync")) {
		level = slog.LevelDebug
	}
	if !s.log.Enabled(r.Context(), level) {
		return
	}
	s.log.LogAttrs(r.Context(), level, "request", slog.String("method", r.Method), slog.String("path", r.URL.Path),
		slog.Int("status", status), slog.Duration("took", took), slog.String("requestId", requestID(r.Context())))
}
