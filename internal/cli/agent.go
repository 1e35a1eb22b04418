package cli

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt"
	nodeagent "github.com/outcrop-cloud/outcrop/internal/node"
)

// agentOptions are what `outcrop node` is told.
type agentOptions struct {
	server, id, data    string
	libvirt, hypervisor string
	acceleration        string
	role, region, zone  string
	reserveVCPUs        int64
	reserveMemory       string
	vcpuRatio, memRatio float64
	interval            time.Duration
	log                 logOptions
	tokenFile           string
	changed             func(flag string) bool
}

// agentFlags turns the group `outcrop node` into the agent when it is called
// with flags and no further command.
func (a *app) agentFlags(c *cobra.Command) {
	o := agentOptions{changed: func(flag string) bool { return c.Flags().Changed(flag) }}
	f := c.Flags()
	f.StringVar(&o.server, "server", api.DefaultURL, "the server's address")
	f.StringVar(&o.id, "id", "", "id of this node: 1-63 of A-Z a-z 0-9 . _ - (required)")
	f.StringVar(&o.data, "data", "", "folder for images and instances (required)")
	f.StringVar(&o.libvirt, "libvirt", "qemu:///system", "libvirt to drive")
	f.StringVar(&o.hypervisor, "hypervisor", "libvirt", "libvirt, or fake for tests of load")
	f.StringVar(&o.acceleration, "acceleration", "auto", "auto (a probe guest decides, which takes some seconds), kvm or tcg (software emulation)")
	f.StringVar(&o.role, "role", string(compute.RoleHypervisor), "hybrid, hypervisor, control-plane or storage")
	f.StringVar(&o.region, "region", "", "region (the server's default when empty)")
	f.StringVar(&o.zone, "zone", "", "availability zone (the server's default when empty)")
	f.Int64Var(&o.reserveVCPUs, "reserve-vcpus", 0, "vCPUs that the node keeps for itself (default half of max(2, 6 %), at most half)")
	f.StringVar(&o.reserveMemory, "reserve-memory", "", "memory that the node keeps for itself, e.g. 2GiB (default half of max(6 GiB, 10 %), at most half)")
	f.Float64Var(&o.vcpuRatio, "vcpu-ratio", 4, "vCPU overcommit ratio")
	f.Float64Var(&o.memRatio, "memory-ratio", 1, "memory overcommit ratio")
	f.DurationVar(&o.interval, "interval", 0, "how often to report (the server's word when 0)")
	o.log.addFlags(c)
	help := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().NFlag() == 0 {
			return help(cmd, args)
		}
		if err := need(cmd, "id", "data", "token-file"); err != nil {
			return err
		}
		o.tokenFile = a.flags.tokenFile
		return a.runAgent(cmd.Context(), o)
	}
}

func (a *app) runAgent(ctx context.Context, o agentOptions) error {
	log, err := o.log.logger(a.stderr)
	if err != nil {
		return err
	}
	h, err := o.open(log)
	if err != nil {
		return err
	}
	defer h.Close()
	cfg := nodeagent.Config{
		ServerURL: o.server, TokenFile: o.tokenFile, ID: o.id, DataDir: o.data, Hypervisor: h, Role: compute.Role(o.role),
		Region: o.region, Zone: o.zone, VCPURatio: &o.vcpuRatio, MemoryRatio: &o.memRatio, Interval: o.interval,
		Version: buildVersion().Version, Log: log,
	}
	if at := a.getenv("OUTCROP_CRASH_AT"); at != "" { // tests of crashes; see node.CrashAt
		once := cmp.Or(a.getenv("OUTCROP_CRASH_ONCE"), filepath.Join(o.data, "crashed"))
		if cfg.StepHook, err = nodeagent.CrashAt(at, once); err != nil {
			return err
		}
	}
	if o.changed("reserve-vcpus") {
		cfg.ReservedVCPUs = &o.reserveVCPUs
	}
	if o.reserveMemory != "" {
		n, err := parseSize(o.reserveMemory)
		if err != nil {
			return err
		}
		cfg.ReservedMemoryBytes = &n
	}
	return nodeagent.Run(ctx, cfg)
}

func (o *agentOptions) open(log *slog.Logger) (hypervisor.Hypervisor, error) {
	switch o.hypervisor {
	case "libvirt":
		options := []libvirt.Option{libvirt.WithLogger(log)}
		switch o.acceleration {
		case "", "auto":
		case string(hypervisor.KVM), string(hypervisor.TCG):
			options = append(options, libvirt.WithAcceleration(hypervisor.Acceleration(o.acceleration)))
		default:
			return nil, usagef("--acceleration is auto, kvm or tcg, not %q", o.acceleration)
		}
		return libvirt.Open(o.libvirt, options...)
	case "fake":
		if err := os.MkdirAll(o.data, 0o711); err != nil {
			return nil, err
		}
		return fake.New(fake.Options{Dir: filepath.Join(o.data, "fake")})
	}
	return nil, usagef("--hypervisor is libvirt or fake, not %q", o.hypervisor)
}
