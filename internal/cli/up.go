package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/node/detect"
	"github.com/outcrop-cloud/outcrop/internal/server"
)

// upOptions are what `outcrop up` is told.
type upOptions struct {
	data, listen        string
	libvirt, hypervisor string
	network, power      string
	log                 logOptions
}

func newUp(a *app) *cobra.Command {
	var o upOptions
	c := command("up", text{"Run server and node on this one machine",
		`Runs the control plane and the node agent on this machine, with an embedded
database, and writes the context file, so that the other commands work at once.
It runs until Ctrl-C or SIGTERM; instances go on running without it, and the next
"outcrop up" finds them.

It needs libvirt with QEMU (Debian: libvirt-daemon-system qemu-system-x86
qemu-utils) and a user who may use its socket, usually root.`,
		`  outcrop up
  outcrop up --data /srv/outcrop --listen 127.0.0.1:9500
  outcrop up --libvirt 'qemu:///system?socket=/run/libvirt/libvirt-sock'`},
		nil, nil, func(cmd *cobra.Command, _ []string) error { return a.runUp(cmd.Context(), o) })
	f := c.Flags()
	f.StringVar(&o.data, "data", "/var/lib/outcrop", "folder for everything")
	f.StringVar(&o.listen, "listen", defaultListen, "address and port")
	f.StringVar(&o.libvirt, "libvirt", "qemu:///system", "libvirt to drive")
	f.StringVar(&o.hypervisor, "hypervisor", "libvirt", "libvirt, or fake for a look around without VMs")
	f.StringVar(&o.network, "network", "", networkHelp)
	f.StringVar(&o.power, "power", "systemd", powerHelp)
	o.log.addFlags(c)
	c.Flags().Lookup("log-level").DefValue, o.log.level = "warn", "warn"
	return c
}

func (a *app) runUp(ctx context.Context, o upOptions) error {
	if err := os.MkdirAll(o.data, 0o711); err != nil {
		return fmt.Errorf("%w; run it as root, or name another folder with --data", err)
	}
	first, note := installReservation(detect.Machine(os.DirFS("/"), o.data))
	so := serverOptions{
		data: filepath.Join(o.data, "server"), listen: o.listen, region: "local", log: o.log, single: true, first: first,
		gateway: gatewayOptions{minimum: 1},
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	agent := make(chan error, 1)
	started := false
	err := a.runServer(ctx, so, func(url string, c *control.Control) {
		started = true
		go func() {
			err := a.upAgent(ctx, o, url, c, note)
			stop() // one without the other is of no use
			agent <- err
		}()
	})
	stop()
	if started {
		err = errors.Join(err, <-agent)
	}
	return err
}

// upAgent gives the agent and the CLI their tokens, says what runs, and runs the
// agent.
func (a *app) upAgent(ctx context.Context, o upOptions, url string, c *control.Control, note string) error {
	id := nodeName()
	tokenFile := filepath.Join(o.data, "node.token")
	if _, err := os.Stat(tokenFile); errors.Is(err, os.ErrNotExist) {
		t, err := c.CreateToken(ctx, iam.System, api.CreateToken{Name: "node " + id, Role: string(iam.Node), NodeID: id})
		if err != nil {
			return err
		}
		if err := writeSecret(tokenFile, t.Secret); err != nil {
			return err
		}
	}
	url = ownURL(url)
	operator, err := pinned(filepath.Join(o.data, "server", operatorTokenFile), url, o.data)
	if err != nil {
		return err
	}
	if _, err := pinned(tokenFile, url, o.data); err != nil {
		return err
	}
	context := ContextPath(a.getenv)
	if err := WriteContext(context, Context{URL: url, Token: operator, Project: compute.DefaultProject}); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, `Outcrop runs on this machine.

  server   %s
  node     %s (%s)
  data     %s
  context  %s (the other commands find the server by it)
%s
Next, in another terminal:
  outcrop node get %s
  outcrop image import --name debian FILE.qcow2
  outcrop instance create --name web --image debian --type m1.small --wait

Ctrl-C ends it; instances go on running.
`, url, id, o.hypervisor, o.data, context, note, id)
	return a.runAgent(ctx, agentOptions{
		server: url, id: id, data: filepath.Join(o.data, "node"), libvirt: o.libvirt, hypervisor: o.hypervisor, network: o.network, power: o.power,
		role: string(compute.RoleHybrid), vcpuRatio: 4, memRatio: 1, tokenFile: tokenFile, log: o.log,
		changed: func(string) bool { return false },
	})
}

// ownURL is the server's address as its own machine reaches it: one that listens
// on all addresses has no certificate for that.
func ownURL(url string) string {
	for _, all := range []string{"://[::]:", "://0.0.0.0:"} {
		url = strings.Replace(url, all, "://127.0.0.1:", 1)
	}
	return url
}

// pinned reads a token that may be from a time when the server spoke plain HTTP.
// One that is to go over HTTPS gets the fingerprint of the server's own CA, in its
// file as well.
func pinned(file, url, data string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if !strings.HasPrefix(url, "https:") {
		return token, nil
	}
	fingerprint, err := server.CAFingerprint(filepath.Join(data, "server"))
	if secret, have := api.SplitToken(token); err == nil && fingerprint != "" && have == "" {
		token = secret + "." + fingerprint
		err = writeSecret(file, token)
	}
	return token, err
}

// nodeName is the machine's hostname where it can be a node id.
func nodeName() string {
	h, _ := os.Hostname()
	if !compute.ValidNodeID(h) {
		return "node"
	}
	return h
}

// installReservation chooses a smaller reservation where the computed one would
// leave less than half of the machine, and says so (contract N-09).
func installReservation(f detect.Facts) (spec compute.NodeSpec, note string) {
	vcpus, memory := f.VCPUs, f.MemoryBytes
	computed := compute.ComputedReservation(vcpus, memory)
	if memory == 0 || !computed.LeavesTooLittle(vcpus, memory) {
		return spec, ""
	}
	chosen := compute.HalfReservation(vcpus, memory)
	spec.ReservedVCPUs, spec.ReservedMemoryBytes = &chosen.VCPUs, &chosen.MemoryBytes
	return spec, fmt.Sprintf(`
This machine is small: the usual reservation (%d vCPUs, %s) would leave less than
half of it, so %d vCPUs and %s are kept for the machine itself. To change that:
  outcrop node update %s --reserved-vcpus N --reserved-memory SIZE
`, computed.VCPUs, formatSize(computed.MemoryBytes), chosen.VCPUs, formatSize(chosen.MemoryBytes), nodeName())
}
