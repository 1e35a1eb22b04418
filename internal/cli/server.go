package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/server"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// defaultListen is the documents' local gateway address (contract E-09).
const defaultListen = "127.0.0.1:9418"

// operatorTokenFile is where the first start leaves the operator's token.
const operatorTokenFile = "operator.token"

// serverOptions are what `outcrop server` is told.
type serverOptions struct {
	data, listen, database string
	region, zone           string
	interval               time.Duration
	drainParallel          int
	tlsCert, tlsKey        string
	tlsNames               []string
	plain                  bool // plain HTTP beyond loopback
	log                    logOptions
	gateway                gatewayOptions

	single bool             // by `outcrop up`
	first  compute.NodeSpec // reservation chosen at install
}

func newServer(a *app) *cobra.Command {
	var o serverOptions
	c := command("server", text{"Run the control plane: API, database, placement",
		`Runs the control plane until SIGTERM, which lets accepted requests finish. The
database is embedded (SQLite in --data) or PostgreSQL (--database). The first
start writes the operator's token to DIR/operator.token (mode 0600).

On loopback it speaks plain HTTP. On any other address it speaks HTTPS, with
--tls-cert and --tls-key or with a CA that it makes for itself: tokens that it
makes then carry the CA's fingerprint, so agents and CLI know the server.

Back up DIR as a whole, or the PostgreSQL database together with DIR/token.key,
DIR/gateway.key, DIR/tls and DIR/images: without token.key every token is void,
without gateway.key every API key.`,
		`  outcrop server --data /var/lib/outcrop
  outcrop server --data /var/lib/outcrop --listen 0.0.0.0:9418
  outcrop server --data /var/lib/outcrop --database postgres://outcrop@db/outcrop`},
		nil, nil, func(cmd *cobra.Command, _ []string) error {
			if err := need(cmd, "data"); err != nil {
				return err
			}
			return a.runServer(cmd.Context(), o, nil)
		})
	f := c.Flags()
	f.StringVar(&o.data, "data", "", "folder of the server's files (required)")
	f.StringVar(&o.listen, "listen", defaultListen, "address and port")
	f.StringVar(&o.database, "database", "", "postgres://… instead of the embedded database")
	f.StringVar(&o.region, "region", "local", "region of nodes that name none")
	f.StringVar(&o.zone, "zone", "", "availability zone of nodes that name none (default REGION-a)")
	f.DurationVar(&o.interval, "heartbeat-interval", time.Minute, "how often nodes report; three missed make one unreachable")
	f.IntVar(&o.drainParallel, "drain-parallel", 2, "how many instances of a node a drain has on their way at a time")
	f.StringVar(&o.tlsCert, "tls-cert", "", "certificate chain, PEM")
	f.StringVar(&o.tlsKey, "tls-key", "", "its private key, PEM")
	f.StringSliceVar(&o.tlsNames, "tls-name", nil, "further names or addresses for the self-made certificate")
	f.BoolVar(&o.plain, "insecure-http", false, "speak plain HTTP beyond loopback, e.g. behind a TLS proxy")
	o.gateway.addFlags(c)
	o.log.addFlags(c)
	return c
}

// logOptions choose what the log of a long-running command looks like.
type logOptions struct{ level, format string }

func (l *logOptions) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&l.level, "log-level", "info", "debug, info, warn or error")
	c.Flags().StringVar(&l.format, "log-format", "text", "text or json")
}

func (l *logOptions) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, usagef("--log-level is debug, info, warn or error, not %q", l.level)
	}
	h := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, h)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, h)), nil
	}
	return nil, usagef("--log-format is text or json, not %q", l.format)
}

// runServer runs until ctx ends. ready, where set, is told the address and the
// control when requests are answered.
func (a *app) runServer(ctx context.Context, o serverOptions, ready func(url string, c *control.Control)) error {
	log, err := o.log.logger(a.stderr)
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, store.Options{Dir: o.data, URL: o.database, Log: log})
	if err != nil {
		return err
	}
	defer db.Close()
	if err := os.MkdirAll(o.data, 0o700); err != nil {
		return err
	}
	c, err := control.New(control.Options{
		DB: db, Dir: o.data, Log: log, Region: o.region, Zone: o.zone, HeartbeatInterval: o.interval, DrainParallel: o.drainParallel,
		SingleNode: o.single, FirstNode: o.first, Commit: buildVersion().clean(),
	})
	if err != nil {
		return err
	}
	g, err := o.newGateway(db, c, log)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("%w; choose another address with --listen", err)
	}
	defer l.Close()
	cert, err := o.certificate(l.Addr(), c)
	if err != nil {
		return err
	}
	if err := firstToken(ctx, c, o.data); err != nil {
		return err
	}
	url := "http://" + l.Addr().String()
	if cert != nil {
		url = "https://" + l.Addr().String()
	}
	log.Info("listening", "url", url, "data", o.data, "database", db.Dialect(), "version", buildVersion().Version)
	if ready != nil {
		ready(url, c)
	}
	s := server.New(c, log, buildVersion().Version)
	s.AddGateway(g)
	return serveUntilDone(ctx, s, l, cert, c.Run, g.Run)
}

// serveUntilDone runs the HTTP server and the loops; when one ends the other
// does. The loops outlive the last request, so that what it asked for is noted.
func serveUntilDone(ctx context.Context, s *server.Server, l net.Listener, cert *tls.Certificate, loops ...func(context.Context) error) error {
	looping, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLoops()
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	ran := make(chan error, len(loops))
	for _, run := range loops {
		go func() {
			err := run(looping)
			stopServing()
			ran <- err
		}()
	}
	err := s.Serve(serving, l, cert)
	stopLoops()
	for range loops {
		err = errors.Join(err, <-ran)
	}
	return err
}

// certificate is nil where plain HTTP is right: on loopback, or when asked for.
func (o *serverOptions) certificate(addr net.Addr, c *control.Control) (*tls.Certificate, error) {
	if o.tlsCert != "" || o.tlsKey != "" {
		pair, err := tls.LoadX509KeyPair(o.tlsCert, o.tlsKey)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
		}
		return &pair, nil
	}
	if o.plain || addr.(*net.TCPAddr).IP.IsLoopback() {
		return nil, nil
	}
	ca, err := server.LoadOrMakeCA(o.data, time.Now())
	if err != nil {
		return nil, err
	}
	c.SetCA(ca.Fingerprint())
	return ca.Certificate(server.LocalNames(o.tlsNames...), time.Now())
}

// firstToken writes the operator's token where there is none yet. A token whose
// file could not be written is of no use to anybody, so the file comes second
// and a start after a crash in between makes another.
func firstToken(ctx context.Context, c *control.Control, dir string) error {
	file := filepath.Join(dir, operatorTokenFile)
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	t, err := c.CreateToken(ctx, iam.System, api.CreateToken{Name: "operator", Role: string(iam.Operator)})
	if err != nil {
		return err
	}
	return writeSecret(file, t.Secret)
}

// writeSecret writes a 0600 file in one step.
func writeSecret(path, secret string) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(secret+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// createLocalToken makes a token without a server's help, in its own database.
func createLocalToken(ctx context.Context, dir, database string, in api.CreateToken) (api.NewToken, error) {
	if _, err := os.Stat(filepath.Join(dir, control.TokenKeyFile)); err != nil {
		return api.NewToken{}, fmt.Errorf("%s is no data folder of a server: %w", dir, err)
	}
	db, err := store.Open(ctx, store.Options{Dir: dir, URL: database, Reads: 1})
	if err != nil {
		return api.NewToken{}, err
	}
	defer db.Close()
	c, err := control.New(control.Options{DB: db, Dir: dir})
	if err != nil {
		return api.NewToken{}, err
	}
	fp, err := server.CAFingerprint(dir)
	if err != nil {
		return api.NewToken{}, err
	}
	c.SetCA(fp)
	return c.CreateToken(ctx, iam.System, in)
}
