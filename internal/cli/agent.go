package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt"
	"github.com/outcrop-cloud/outcrop/internal/network"
	nodeagent "github.com/outcrop-cloud/outcrop/internal/node"
	"github.com/outcrop-cloud/outcrop/internal/node/host"
)

// agentOptions are what `outcrop node` is told.
type agentOptions struct {
	server, id, data    string
	libvirt, hypervisor string
	acceleration        string
	network, guestAgent string
	power, wakeMAC      string
	role, region, zone  string
	reserveVCPUs        int64
	reserveMemory       string
	vcpuRatio, memRatio float64
	interval            time.Duration
	log                 logOptions
	tokenFile           string
	joinTokenFile       string
	changed             func(flag string) bool
}

// agentFlags turns the group `outcrop node` into the agent when it is called
// with flags and no further command.
func (a *app) agentFlags(c *cobra.Command) {
	o := agentOptions{changed: func(flag string) bool { return c.Flags().Changed(flag) }}
	f := c.Flags()
	f.StringVar(&o.server, "server", api.DefaultURL, "the server's address")
	f.StringVar(&o.id, "id", "", "id of this node: 1-63 of A-Z a-z 0-9 . _ - (the hostname when it joins, then always that; required with --token-file)")
	f.StringVar(&o.joinTokenFile, "join-token-file", "", "file that holds a join token, needed once (or give the token itself as OUTCROP_JOIN_TOKEN)")
	f.StringVar(&o.data, "data", "", "folder for images and instances (required)")
	f.StringVar(&o.libvirt, "libvirt", "qemu:///system", "libvirt to drive")
	f.StringVar(&o.hypervisor, "hypervisor", "libvirt", "libvirt, or fake for tests of load")
	f.StringVar(&o.acceleration, "acceleration", "auto", "auto (a probe guest decides, which takes some seconds), kvm or tcg (software emulation)")
	f.StringVar(&o.network, "network", "", networkHelp)
	f.StringVar(&o.guestAgent, "guest-agent", "", "program that instances install as their agent (default outcrop-guest beside this one)")
	f.StringVar(&o.power, "power", "systemd", powerHelp)
	f.StringVar(&o.wakeMAC, "wake-mac", "", "address of the network card that wakes this machine (the likeliest one by default)")
	f.StringVar(&o.role, "role", string(compute.RoleHypervisor), "hybrid, hypervisor, control-plane or storage")
	f.StringVar(&o.region, "region", "", "region (the server's default when empty)")
	f.StringVar(&o.zone, "zone", "", "availability zone (the server's default when empty)")
	f.Int64Var(&o.reserveVCPUs, "reserve-vcpus", 0, "vCPUs that the node keeps for itself (default half of max(2, 6 %), at most half)")
	f.StringVar(&o.reserveMemory, "reserve-memory", "", "memory that the node keeps for itself, e.g. 2GiB (default half of max(6 GiB, 10 %), at most half)")
	f.Float64Var(&o.vcpuRatio, "vcpu-ratio", 4, "vCPU overcommit ratio")
	f.Float64Var(&o.memRatio, "memory-ratio", 1, "memory overcommit ratio")
	f.DurationVar(&o.interval, "interval", 0, "how often to report (the server's word when 0)")
	completeWords(c, "power", "systemd", "record", "none")
	o.log.addFlags(c)
	help := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().NFlag() == 0 {
			return help(cmd, args)
		}
		if err := need(cmd, "data"); err != nil {
			return err
		}
		if o.tokenFile = a.flags.tokenFile; o.tokenFile != "" {
			if err := need(cmd, "id"); err != nil {
				return err
			}
		} else if !o.changed("server") {
			o.server = "" // that of the join
		}
		if !o.changed("role") {
			o.role = "" // what the join token says
		}
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
		ServerURL: o.server, TokenFile: o.tokenFile, JoinTokenFile: o.joinTokenFile, JoinToken: a.getenv("OUTCROP_JOIN_TOKEN"), ID: o.id, DataDir: o.data, Hypervisor: h, Role: compute.Role(o.role),
		Region: o.region, Zone: o.zone, VCPURatio: &o.vcpuRatio, MemoryRatio: &o.memRatio, Interval: o.interval,
		Version: buildVersion().Version, Commit: buildVersion().clean(), Log: log, WakeMAC: o.wakeMAC, GuestAgent: cmp.Or(o.guestAgent, guestAgentBeside()),
	}
	if cfg.Network, err = o.openNetwork(log); err != nil {
		return err
	}
	if cfg.Host, err = host.Open(o.power, filepath.Join(o.data, "host.log")); err != nil {
		return usagef("--power: %s", err)
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

const powerHelp = "who powers this machine off and keeps its reservation: systemd (nobody, where it does not run), record (host.log in the data folder says what would have been done) or none"

const networkHelp = "host (bridges and routers of the instances' subnets on this machine; the default as root) or none (instances have no network)"

// openNetwork says how the node's network is made; nil where instances have none.
// A fake hypervisor opens no taps, so its network is a fake, too.
func (o *agentOptions) openNetwork(log *slog.Logger) (func(func(string, net.Listener)) (network.Network, error), error) {
	kind := o.network
	if kind == "" && os.Geteuid() == 0 {
		kind = "host"
	}
	switch {
	case kind == "" || kind == "none":
		return nil, nil
	case kind != "host":
		return nil, usagef("--network is host or none, not %q", kind)
	case o.hypervisor == "fake":
		return func(func(string, net.Listener)) (network.Network, error) { return &network.Fake{}, nil }, nil
	}
	return func(serve func(string, net.Listener)) (network.Network, error) {
		claim, err := claimNetwork()
		if err != nil {
			return nil, err
		}
		uid, gid := qemuUser()
		state, err := stateDir(o.data)
		if err != nil {
			return nil, err
		}
		n, err := network.New(network.Config{StateDir: state, TapUID: uid, TapGID: gid, Metadata: serve, Log: log})
		return claimed{n, claim}, err
	}, nil
}

// claimNetwork keeps two agents from taking each other's devices away: an abstract
// socket is one per network namespace, and ends with its process (unix(7)).
func claimNetwork() (io.Closer, error) {
	claim, err := net.Listen("unix", "@outcrop-network")
	if err != nil {
		return nil, fmt.Errorf("another node agent makes the networks of this machine (%w); stop it, or give this one --network none", err)
	}
	return claim, nil
}

// claimed is a network with the claim on it.
type claimed struct {
	network.Network
	claim io.Closer
}

func (c claimed) Close() error { return errors.Join(c.Network.Close(), c.claim.Close()) }

// stateDir is where the routers of this data directory's node are: on a file
// system that a boot empties.
func stateDir(data string) (string, error) {
	path, err := filepath.Abs(data)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(path))
	return filepath.Join("/run/outcrop", hex.EncodeToString(sum[:4]), "routers"), nil
}

// qemuUser is who runs QEMU and so opens the taps; root where Debian's user for it
// is missing.
func qemuUser() (uid, gid uint32) {
	u, err := user.Lookup("libvirt-qemu")
	if err != nil {
		return 0, 0
	}
	n, err1 := strconv.ParseUint(u.Uid, 10, 32)
	m, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		return 0, 0
	}
	return uint32(n), uint32(m)
}

// guestAgentBeside is the small guest agent that comes with this program.
func guestAgentBeside() string {
	exe, err := os.Executable()
	if err != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(exe), "outcrop-guest")
}

func (o *agentOptions) open(log *slog.Logger) (hypervisor.Hypervisor, error) {
	switch o.hypervisor {
	case "libvirt":
		options := []libvirt.Option{libvirt.WithLogger(log), libvirt.WithKeptProbe(filepath.Join(o.data, "probe.json"))}
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
