package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/runner"
)

// runnerOptions are what `outcrop runner` is told.
type runnerOptions struct {
	data                   string
	slots                  int
	poll, grace            time.Duration
	slotMemory, diskNeeded string
	credentials            []string
	command                string
	image                  string
	vcpus                  int64
	compute                string
	kvm                    string
	child                  bool
	visible                []string
	log                    logOptions
}

func newRunner(a *app) *cobra.Command {
	var o runnerOptions
	c := group("runner", "Run the runner of this host, or enrol it",
		`A runner host asks the gateway for work and runs it. It reports by signed heartbeat,
so that "outcrop host list" shows which hosts are fit.

With flags and no command it runs the runner until SIGTERM; then it takes no new
work, lets jobs end for --stop-grace, and hands the rest back. Each job runs in an
instance of its own, booted from --image through the compute API with the token in
--token-file (--role project). With --allow-child-process, and as root, jobs run on
this machine instead: each under its own user, with its own mounts, processes,
network and limits, but on this machine's kernel.

The log goes to DIR/runner.log, too, which is bounded and written on a full disk.`,
		`  outcrop runner enroll --data /var/lib/outcrop-runner --server https://cloud:9418 --app APP --token-file once.key
  outcrop runner --data /var/lib/outcrop-runner --image micro --token-file project.token --slots 2
  outcrop runner --data /var/lib/outcrop-runner --allow-child-process --credential ANTHROPIC_API_KEY=/etc/agent.key`,
		[]string{"runners"}, newRunnerEnroll(a), newJobInit())
	f := c.Flags()
	f.StringVar(&o.data, "data", "", "folder of the runner, as enrolment left it (required)")
	f.IntVar(&o.slots, "slots", 1, "how many jobs run at once")
	f.DurationVar(&o.poll, "poll", runner.DefaultPoll, "how often to report and to ask for work")
	f.DurationVar(&o.grace, "stop-grace", time.Minute, "what running jobs get when the runner is told to stop")
	f.StringVar(&o.slotMemory, "slot-memory", formatSize(runner.DefaultSlotMemory), "memory that one job may need")
	f.StringVar(&o.diskNeeded, "disk-needed", formatSize(runner.DefaultDiskNeeded), "free disk below which no new work is taken")
	f.StringArrayVar(&o.credentials, "credential", nil, "VARIABLE=FILE: give each job the file's content; no work without it (repeatable)")
	f.StringVar(&o.command, "command", "", "launcher in front of each job's command, split at spaces")
	f.StringVar(&o.image, "image", "", "runner image for jobs that name none, by id or name")
	f.Int64Var(&o.vcpus, "vcpus", 1, "vCPUs of a job's instance")
	f.StringVar(&o.compute, "compute", "", "address of the compute API (the gateway's when empty)")
	f.StringVar(&o.kvm, "kvm", "auto", "required, optional, or auto: required unless jobs are child processes")
	f.BoolVar(&o.child, "allow-child-process", false, "run jobs as processes of this machine")
	f.StringArrayVar(&o.visible, "visible", nil, "file or folder that child processes can read, beside the system's (repeatable)")
	o.log.addFlags(c)
	help := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().NFlag() == 0 {
			return help(cmd, args)
		}
		if err := need(cmd, "data"); err != nil {
			return err
		}
		return a.runRunner(cmd.Context(), &o)
	}
	return c
}

func (a *app) runRunner(ctx context.Context, o *runnerOptions) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	log, err := o.log.logger(a.stderr)
	if err != nil {
		return err
	}
	cfg.Log = log.Handler()
	if cfg.Engine, err = a.runnerEngine(o); err != nil {
		return err
	}
	if c, ok := cfg.Engine.(io.Closer); ok {
		defer c.Close()
	}
	return runner.Run(ctx, cfg)
}

// config reads the flags that are words.
func (o *runnerOptions) config() (cfg runner.Config, err error) {
	cfg = runner.Config{Dir: o.data, Version: buildVersion().Version, Slots: o.slots, Poll: o.poll, StopGrace: o.grace,
		Command: strings.Fields(o.command), Credentials: map[string]string{}}
	if cfg.SlotMemory, err = parseSize(o.slotMemory); err != nil {
		return cfg, usagef("--slot-memory: %s", err)
	}
	if cfg.DiskNeeded, err = parseSize(o.diskNeeded); err != nil {
		return cfg, usagef("--disk-needed: %s", err)
	}
	for _, c := range o.credentials {
		name, path, ok := strings.Cut(c, "=")
		if !ok || name == "" || path == "" {
			return cfg, usagef("--credential is VARIABLE=FILE, not %q", c)
		}
		cfg.Credentials[name] = path
	}
	switch o.kvm {
	case "auto":
		cfg.RequireKVM = !o.child
	case "required", "optional":
		cfg.RequireKVM = o.kvm == "required"
	default:
		return cfg, usagef("--kvm is required, optional or auto, not %q", o.kvm)
	}
	return cfg, nil
}

// runnerEngine is how the jobs run.
func (a *app) runnerEngine(o *runnerOptions) (runner.Engine, error) {
	if o.child {
		return runner.NewChildren(runner.ChildConfig{Dir: o.data, Slots: o.slots, Visible: o.visible, Init: []string{"/proc/self/exe", "runner", jobInitName}})
	}
	if o.image == "" {
		return nil, usagef("give --image, for jobs in instances, or --allow-child-process")
	}
	id, err := runner.LoadIdentity(o.data)
	if err != nil {
		return nil, err
	}
	s := a.settings()
	if s.err != nil {
		return nil, s.err
	}
	if s.token == "" {
		return nil, usagef("instances need a project's token: give --token-file, or OUTCROP_TOKEN")
	}
	client, err := api.NewClient(cmp.Or(o.compute, id.Server), s.token, "outcrop-runner/"+buildVersion().Version)
	if err != nil {
		return nil, err
	}
	return runner.NewInstances(runner.InstancesConfig{Client: client, Project: s.project, Host: id.Host, Image: o.image, VCPUs: o.vcpus}), nil
}

// newRunnerEnroll makes this host known to a gateway.
func newRunnerEnroll(a *app) *cobra.Command {
	var e runner.Enrollment
	var show bool
	c := command("enroll", text{"Make this host known to a gateway, once",
		`Makes the host's key, which never leaves it, has the gateway make a runner key that
only this host can use, and keeps both in --data for their owner only. It needs, this
once, an API key with api_key.insert, hosts.ingest and work.claim, or an operator's
token: from --token-file or OUTCROP_TOKEN. It is not kept.

Where nobody may have such a key here: --public-key prints the host's public key, an
operator makes the runner key with it, and --key-id with that key as the token takes
it over.`,
		`  outcrop runner enroll --data DIR --server https://cloud:9418 --app APP --token-file once.key
  outcrop runner enroll --data DIR --public-key
  OUTCROP_TOKEN=sk_outerlayer_… outcrop runner enroll --data DIR --server https://cloud:9418 --app APP --key-id ID`},
		[]string{"enrol"}, nil, func(cmd *cobra.Command, _ []string) error {
			if err := need(cmd, "data"); err != nil {
				return err
			}
			if show {
				_, public, err := runner.HostKey(e.Dir)
				if err == nil {
					_, err = fmt.Fprintln(a.stdout, public)
				}
				return err
			}
			if err := need(cmd, "app"); err != nil {
				return err
			}
			return a.enrollRunner(cmd.Context(), e)
		})
	f := c.Flags()
	f.StringVar(&e.Dir, "data", "", "folder of the runner (required)")
	f.StringVar(&e.Server, "server", "", "the gateway's address (as --url and OUTCROP_URL say when empty)")
	f.StringVar(&e.AppID, "app", "", "id of the app that the host works for (required)")
	f.StringVar(&e.Host, "host", "", "name of this host (its hostname when empty)")
	f.StringVar(&e.CAFingerprint, "ca-fingerprint", "", "hex sha256 of the gateway's own CA; an operator's token carries it")
	f.StringVar(&e.KeyID, "key-id", "", "id of a runner key that was made for this host already")
	f.BoolVar(&show, "public-key", false, "only make the host's key and print its public part")
	return c
}

func (a *app) enrollRunner(ctx context.Context, e runner.Enrollment) error {
	s := a.settings()
	if s.err != nil {
		return s.err
	}
	if s.token == "" {
		return &failure{code: codeUsage, message: "enrolment needs a token, this once", hint: "give --token-file, or OUTCROP_TOKEN"}
	}
	e.Server, e.Host, e.Token = cmp.Or(e.Server, s.url), cmp.Or(e.Host, runner.Hostname()), s.token
	if a.flags.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.flags.timeout)
		defer cancel()
	}
	id, err := runner.Enroll(ctx, e)
	if err != nil {
		return err
	}
	a.notef("host %s is enrolled with app %s; start it with: outcrop runner --data %s", id.Host, id.AppID, e.Dir)
	if a.flags.output != "table" {
		return a.encode(a.stdout, map[string]string{"host": id.Host, "appId": id.AppID, "keyId": id.KeyID, "server": id.Server})
	}
	_, err = fmt.Fprintln(a.stdout, id.KeyID)
	return err
}

const jobInitName = "job-init"

// newJobInit is process 1 of a job that runs as a child process.
func newJobInit() *cobra.Command {
	c := command(jobInitName, text{"Be process 1 of a job; for the runner itself",
		"The runner starts each child process by this command, in namespaces that it made. It is of no use to people.",
		"  outcrop runner job-init"},
		nil, nil, func(*cobra.Command, []string) error {
			runner.JobInit()
			return errors.New("unreachable")
		})
	c.Hidden = true
	return c
}
