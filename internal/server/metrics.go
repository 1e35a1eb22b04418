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

	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// metrics are those of this process, which are for everybody who reaches it, and
// those of the fleet, which name nodes and need a token.
type metrics struct {
	process, fleet *prometheus.Registry
	requests       *prometheus.HistogramVec
}

func newMetrics(nodes prometheus.Collector) *metrics {
	m := &metrics{process: prometheus.NewRegistry(), fleet: prometheus.NewRegistry(), requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "outcrop_http_request_duration_seconds", Help: "Duration of requests by route and status.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60},
	}, []string{"route", "status"})}
	m.fleet.MustRegister(nodes)
	m.process.MustRegister(m.requests, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// metricsRoute answers the process's metrics, and with a token that may read them
// the fleet's as well. A token that may not is refused, so that a scrape which lost
// its rights does not look like a fleet without nodes.
func (s *Server) metricsRoute() {
	open := promhttp.HandlerFor(s.metrics.process, promhttp.HandlerOpts{})
	all := promhttp.HandlerFor(prometheus.Gatherers{s.metrics.process, s.metrics.fleet}, promhttp.HandlerOpts{})
	s.mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			open.ServeHTTP(w, r)
			return
		}
		if err := s.authorize(r, iam.ReadMetrics); err != nil {
			s.refuse(w, r, err)
			return
		}
		all.ServeHTTP(w, r)
	})
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
