// Package apptest runs the whole control plane in a test's own process: the real
// server on a real listener, the real store on SQLite or PostgreSQL, a clock
// that the test moves, clients with tokens, and nodes that are a few lines of
// script (node.go) in place of machines.
//
// Everything that the system logs is kept, and a test fails when a secret that
// went through this package stands in it.
package apptest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/server"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// Options of a system; the zero value is a usual install on SQLite.
type Options struct {
	Kind       string // "sqlite" or "postgres"
	SingleNode bool
	FirstNode  compute.NodeSpec
	TLS        bool
}

// System is a running control plane.
type System struct {
	URL     string
	Clock   *Clock
	Control *control.Control
	Server  *server.Server
	DB      *store.DB
	// Operator calls with an operator's token.
	Operator *Client

	t       testing.TB
	o       Options
	db      store.Options
	dir     string
	log     *log
	roots   *x509.CertPool
	stop    func()
	stopped bool
}

// Each runs fn on a fresh system with either database.
func Each(t *testing.T, fn func(t *testing.T, s *System)) {
	for _, kind := range storetest.Kinds {
		t.Run(kind, func(t *testing.T) { fn(t, Start(t, Options{Kind: kind})) })
	}
}

// Start starts a system that ends with the test.
func Start(t testing.TB, o Options) *System {
	t.Helper()
	if o.Kind == "" {
		o.Kind = "sqlite"
	}
	s := &System{t: t, o: o, dir: t.TempDir(), log: &log{}, Clock: NewClock(), db: storetest.Options(t, o.Kind)}
	t.Cleanup(func() {
		s.Stop()
		s.log.check(t)
	})
	s.start()
	out, err := s.Control.CreateToken(t.Context(), iam.System, api.CreateToken{Role: string(iam.Operator)})
	if err != nil {
		t.Fatal(err)
	}
	s.Operator = s.As(out.Secret)
	return s
}

func (s *System) start() {
	s.t.Helper()
	logger := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s.db.Now, s.db.Log = s.Clock.Now, logger
	db, err := store.Open(context.WithoutCancel(s.t.Context()), s.db)
	if err != nil {
		s.t.Fatal(err)
	}
	s.DB = db
	s.Control, err = control.New(control.Options{
		DB: db, Dir: s.dir, Log: logger, Now: s.Clock.Now, SingleNode: s.o.SingleNode, FirstNode: s.o.FirstNode,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.URL = "http://" + l.Addr().String()
	cert := s.certificate(l)
	s.Server = server.New(s.Control, logger, "test")
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Server.Serve(ctx, l, cert); err != nil {
			s.t.Error(err)
		}
	})
	running.Go(func() {
		if err := s.Control.Run(ctx); err != nil && !errors.Is(err, store.ErrClosed) {
			s.t.Error(err)
		}
	})
	s.stopped = false
	s.stop = func() {
		cancel()
		running.Wait()
		if err := db.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *System) certificate(l net.Listener) *tls.Certificate {
	if !s.o.TLS {
		return nil
	}
	now := time.Now() // certificates are judged by the real clock
	ca, err := server.LoadOrMakeCA(s.dir, now)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Control.SetCA(ca.Fingerprint())
	pem, err := os.ReadFile(server.CAFile(s.dir))
	if err != nil {
		s.t.Fatal(err)
	}
	s.roots = x509.NewCertPool()
	s.roots.AppendCertsFromPEM(pem)
	cert, err := ca.Certificate(server.LocalNames(), now)
	if err != nil {
		s.t.Fatal(err)
	}
	s.URL = "https://" + l.Addr().String()
	return cert
}

// Database is the system's database, for another server on it.
func (s *System) Database() store.Options { return s.db }

// Stop ends the system as SIGTERM does.
func (s *System) Stop() {
	if !s.stopped {
		s.stopped = true
		s.stop()
	}
}

// LoseDatabase closes the database under the running server.
func (s *System) LoseDatabase() {
	s.t.Helper()
	if err := s.DB.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// Restart ends the system and starts it again on the same data. Clients that
// were made before speak to the new one.
func (s *System) Restart() {
	s.t.Helper()
	s.Stop()
	s.start()
}

// Token makes a token by the operator.
func (s *System) Token(in api.CreateToken) string {
	s.t.Helper()
	var out api.NewToken
	s.Operator.Do("POST", "/v1/tokens", in).Want(http.StatusCreated).Decode(&out)
	s.Secret(out.Secret)
	return out.Secret
}

// Member is a client of the project, which is made where it is not there.
func (s *System) Member(project string) *Client {
	s.t.Helper()
	if a := s.Operator.Do("POST", "/v1/projects", api.CreateProject{ID: project}); a.Status != http.StatusCreated && a.Status != http.StatusConflict {
		a.Want(http.StatusCreated)
	}
	return s.As(s.Token(api.CreateToken{Role: string(iam.Member), ProjectID: project}))
}

// Secret must never stand in a log.
func (s *System) Secret(text string) {
	secret, _ := api.SplitToken(text)
	s.log.secret(secret)
}

// Logged reports whether the text stands in what was logged.
func (s *System) Logged(text string) bool { return s.log.has(text) }

// Count is how often the text stands in what was logged.
func (s *System) Count(text string) int {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return strings.Count(s.log.text.String(), text)
}

// Image imports a small raw disk into the project and returns its id.
func (s *System) Image(project string) string {
	s.t.Helper()
	var m api.Image
	s.Operator.Do("POST", api.ImagePath(project, "")+"?name=disk", DiskImage()).Want(http.StatusCreated).Decode(&m)
	return m.ID
}

// DiskImage is a raw disk of 1 MiB.
func DiskImage() io.Reader {
	return bytes.NewReader(bytes.Repeat([]byte{0xfa, 0x33, 0xc0, 0x8e}, 1<<18))
}

// Clock is the platform's clock in the test's hand. Every look at it is a
// microsecond later than the last, so that nothing happens at the same moment.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock stands at a fixed moment.
func NewClock() *Clock { return &Clock{now: time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)} }

// Now is the clock's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(time.Microsecond)
	return c.now
}

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// log keeps what was logged.
type log struct {
	mu      sync.Mutex
	text    bytes.Buffer
	secrets []string
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) secret(s string) {
	if len(s) < 8 {
		return // such a text may stand there by chance
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.secrets = append(l.secrets, s)
}

func (l *log) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func (l *log) check(t testing.TB) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.secrets {
		if bytes.Contains(l.text.Bytes(), []byte(s)) {
			t.Errorf("a secret of %d bytes stands in the log", len(s))
		}
	}
	if bytes.Contains(l.text.Bytes(), []byte("level=ERROR")) && t.Failed() {
		t.Logf("the log:\n%s", l.text.Bytes())
	}
}
