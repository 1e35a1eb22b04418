package libvirt

import (
	"context"
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// host is what definitions depend on and Info reports.
type host struct {
	info   hypervisor.Info
	limits limits
	owner  owner
	key    string // of what the probe's answer depends on
}

// owner is the user and group that run QEMU.
type owner struct{ uid, gid int }

// inquiry is one attempt to learn about the host, shared by all who wait for it.
type inquiry struct {
	done chan struct{}
	host *host
	err  error
}

// hostFacts returns the host as it was found once by probing. The probe runs on
// its own time: a caller with a short deadline gets ErrUnavailable and finds
// the answer later. A failed one is not remembered.
func (d *Driver) hostFacts(ctx context.Context) (*host, error) {
	ctx, cancel := context.WithTimeout(ctx, hypervisor.CallTimeout)
	defer cancel()
	q := d.ask()
	select {
	case <-q.done:
		return q.host, q.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: the probe has not ended: %w", hypervisor.ErrUnavailable, ctx.Err())
	}
}

func (d *Driver) ask() *inquiry {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inquiry == nil {
		q := &inquiry{done: make(chan struct{})}
		d.inquiry = q
		d.work.Go(func() {
			q.host, q.err = d.examine(d.ctx)
			if q.err != nil {
				d.mu.Lock()
				d.inquiry = nil
				d.mu.Unlock()
			}
			close(q.done)
		})
	}
	return d.inquiry
}

// examine asks libvirtd for its versions and settings and runs the probe guests.
func (d *Driver) examine(ctx context.Context) (*host, error) {
	h, err := query(ctx, d, describeHost)
	if err != nil {
		return nil, err
	}
	p, err := d.probe(ctx, h.key)
	if err != nil {
		return nil, err
	}
	h.limits = p.limits
	h.info.Acceleration, h.info.Limits = p.acceleration, p.limits.cpu && p.limits.memory
	if !p.sandbox {
		h.info.Findings = append(h.info.Findings,
			"QEMU runs without its seccomp sandbox; set seccomp_sandbox = 1 in /etc/libvirt/qemu.conf")
	}
	return h, nil
}

func describeHost(c *conn) (*host, error) {
	qemu, err := c.ConnectGetVersion()
	if err != nil {
		return nil, err
	}
	lib, err := c.ConnectGetLibVersion()
	if err != nil {
		return nil, err
	}
	text, err := c.ConnectGetCapabilities()
	if err != nil {
		return nil, err
	}
	var caps libvirtxml.Caps
	if err := caps.Unmarshal(text); err != nil {
		return nil, fmt.Errorf("read capabilities: %w", err)
	}
	h := &host{owner: qemuOwner(caps), info: hypervisor.Info{
		Name:     "libvirt",
		Version:  fmt.Sprintf("QEMU %s, libvirt %s", version(qemu), version(lib)),
		Findings: separation(caps),
	}}
	h.key = dependenciesOf(h.info.Version, text).key()
	return h, nil
}

// version reads libvirt's number: major × 1,000,000 + minor × 1,000 + release.
func version(n uint64) string {
	return fmt.Sprintf("%d.%d.%d", n/1_000_000, n/1_000%1_000, n%1_000)
}

// qemuOwner reads the base label of libvirt's DAC driver, "+uid:+gid". Without
// that driver QEMU runs as libvirtd does, as root.
func qemuOwner(caps libvirtxml.Caps) (o owner) {
	for _, m := range caps.Host.SecModel {
		for _, l := range m.Labels {
			if m.Name == "dac" && l.Type == "kvm" {
				_, _ = fmt.Sscanf(l.Value, "+%d:+%d", &o.uid, &o.gid)
			}
		}
	}
	return o
}

// separation says what stands between a guest that takes over its QEMU and the
// rest of the machine, where that is too little.
func separation(caps libvirtxml.Caps) (findings []string) {
	if qemuOwner(caps).uid == 0 {
		findings = append(findings,
			"QEMU runs as root, so a guest that breaks out owns this machine; remove user = \"root\" from /etc/libvirt/qemu.conf")
	}
	if !slices.ContainsFunc(caps.Host.SecModel, func(m libvirtxml.CapsHostSecModel) bool {
		return m.Name == "apparmor" || m.Name == "selinux"
	}) {
		findings = append(findings,
			"neither AppArmor nor SELinux keeps one VM's QEMU from the disks of another; install apparmor and restart libvirtd")
	}
	return findings
}
