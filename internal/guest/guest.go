// Package guest is the agent inside an instance. It talks to the metadata address
// only, so it needs no route out and no credentials: the node knows who asks by the
// network port. It reports that the guest lives, and what this boot made of its
// user-data.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// DefaultURL is where each guest finds its metadata service.
const DefaultURL = "http://169.254.169.254"

// DefaultStateDir is where the install command leaves its one-time code.
const DefaultStateDir = "/var/lib/outcrop-guest"

// The two ways that an agent came into the guest (contract U-09).
const (
	Automatic      = "automatic"       // with the image: dormant while it is not wanted
	InstallCommand = "install-command" // by the one-time command: removes itself when it is not wanted
)

// Config is what an agent needs to know. Zero fields have defaults.
type Config struct {
	URL        string // of the metadata service
	Activation string // Automatic or InstallCommand
	Version    string
	Root       fs.FS  // the guest's file system; default /
	StateDir   string // holds "code" until the enrollment is through
	// Uninstall removes the agent from the guest; default is what undoes the install
	// script.
	Uninstall func() error
	Log       *slog.Logger // default: discards
}

func (c *Config) check() error {
	if c.Activation == "" {
		c.Activation = Automatic
	}
	if c.Activation != Automatic && c.Activation != InstallCommand {
		return fmt.Errorf("activation %q: want %s or %s", c.Activation, Automatic, InstallCommand)
	}
	if c.URL == "" {
		c.URL = DefaultURL
	}
	if c.StateDir == "" {
		c.StateDir = DefaultStateDir
	}
	if c.Root == nil {
		c.Root = os.DirFS("/")
	}
	if c.Uninstall == nil {
		c.Uninstall = func() error { return uninstall(c.StateDir) }
	}
	if c.Version == "" {
		c.Version = "devel"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Run reports until ctx ends or the agent is not wanted. An agent of the image then
// just returns: whatever starts it again and again makes it follow the flag. One that
// was installed removes itself first.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	a := &agent{cfg: cfg, log: cfg.Log, imds: newIMDS(cfg.URL)}
	for failures := 0; ; {
		wanted, err := a.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			a.result = "error"
			failures++
			a.note(err.Error())
		case !wanted && cfg.Activation == InstallCommand:
			a.log.Info("the agent was disabled and removes itself")
			return cfg.Uninstall()
		case !wanted:
			a.log.Debug("the agent is not enabled") // said again and again, as often as it is started
			return nil
		default:
			failures = 0
			a.note("")
		}
		if !sleep(ctx, a.delay(failures)) {
			return nil
		}
	}
}

type agent struct {
	cfg      Config
	log      *slog.Logger
	imds     *imds
	interval time.Duration // as the node says; zero before it did
	result   string        // of the latest pass: ok, error, or empty before one
	shown    int           // heartbeats that were answered and showed the code
	enabled  bool          // it was wanted once: from then on the flag alone decides
	said     string        // what was last logged as wrong
}

// pass does what the agent is there for, once, and says whether it is wanted.
func (a *agent) pass(ctx context.Context) (wanted bool, err error) {
	code, err := a.code()
	if err != nil {
		return true, err
	}
	s, err := a.imds.settings(ctx)
	if err != nil {
		return true, err
	}
	a.take(s)
	if !a.wanted(s) && (code == "" || a.enabled) {
		return false, nil
	}
	boot, bootErr := readBoot(a.cfg.Root)
	if bootErr == nil {
		a.result = "ok"
	} else {
		a.result = "error"
	}
	h := api.AgentHeartbeat{Version: a.cfg.Version, ReconcileResult: a.result, InstallCode: code, Boot: boot}
	if s, err = a.imds.heartbeat(ctx, h); err != nil {
		return true, err
	}
	a.take(s)
	if code != "" {
		a.shown++
	}
	if a.shown >= showings {
		if err := a.forgetCode(); err != nil {
			return true, err
		}
	}
	return a.wanted(s) || code != "" && !a.enabled && a.shown < showings, bootErr
}

// showings is how many answered heartbeats show the code: the node may be restarted
// before it has passed one on, and the flag may come later than the code.
const showings = 5

func (a *agent) take(s api.AgentSettings) {
	a.enabled = a.enabled || a.wanted(s)
	if s.IntervalSeconds > 0 {
		a.interval = time.Duration(s.IntervalSeconds) * time.Second
	}
}

// wanted: an agent of the image is no longer when a forced enabling asked for an
// installed one in its place.
func (a *agent) wanted(s api.AgentSettings) bool {
	return s.Enabled && s.Activation == a.cfg.Activation
}

func (a *agent) codeFile() string { return filepath.Join(a.cfg.StateDir, "code") }

// code is the one-time code while there is one to be shown.
func (a *agent) code() (string, error) {
	if a.cfg.Activation != InstallCommand {
		return "", nil
	}
	b, err := os.ReadFile(a.codeFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

func (a *agent) forgetCode() error {
	err := os.Remove(a.codeFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

const (
	retryFirst = time.Second
	retryMost  = 30 * time.Second
)

// delay spreads the agents of many guests. After a failure it begins short: most
// often the network is not up yet.
func (a *agent) delay(failures int) time.Duration {
	d := a.interval
	if d <= 0 {
		d = api.AgentInterval
	}
	if failures > 0 {
		d = min(retryFirst<<min(failures-1, 5), retryMost)
	}
	return d - d/10 + rand.N(d/5+1)
}

// note logs each change of what is wrong once.
func (a *agent) note(wrong string) {
	if wrong == a.said {
		return
	}
	a.said = wrong
	if wrong == "" {
		a.log.Info("works again")
	} else {
		a.log.Warn("failed; it is tried again", "error", wrong)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
