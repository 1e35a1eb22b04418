package libvirt

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// findings of the probe guests.
type findings struct {
	acceleration hypervisor.Acceleration
	limits       limits
	sandbox      bool // QEMU gets a seccomp sandbox
}

// kvmTime is what a guest has for the firmware and half a thousand million
// loops. Hardware needs a fraction of a second, emulation 3 to 4 seconds; a
// /dev/kvm that is slower than emulation is worse than none.
const kvmTime = 3 * time.Second

// bootSector counts down from 2^29 in 32-bit mode, then tells the panic device:
// a guest that died on the way could not. (In Intel syntax, loaded at 0x7c00:)
var bootSector = []byte{
	0xfa,       // cli
	0x31, 0xc0, // xor ax, ax
	0x8e, 0xd8, // mov ds, ax
	0x66, 0x0f, 0x01, 0x16, 0x3c, 0x7c, // lgdt [0x7c3c]
	0x0f, 0x20, 0xc0, // mov eax, cr0
	0x0c, 0x01, // or al, 1
	0x0f, 0x22, 0xc0, // mov cr0, eax
	0xea, 0x18, 0x7c, 0x08, 0x00, // jmp 8:0x7c18
	0xb9, 0x00, 0x00, 0x00, 0x20, // 0x18: mov ecx, 0x20000000
	0x49, 0x75, 0xfd, // dec ecx; jnz -3
	0x66, 0xba, 0x05, 0x05, // mov dx, 0x505 (pvpanic)
	0xb0, 0x01, // mov al, 1 (panicked)
	0xee,             // out dx, al
	0xf4, 0xeb, 0xfd, // hlt; jmp -3
	0x66, 0x90, // padding
	0, 0, 0, 0, 0, 0, 0, 0, // 0x2c: the null descriptor
	0xff, 0xff, 0, 0, 0, 0x9a, 0xcf, 0, // 0x34: flat 32-bit code
	15, 0, 0x2c, 0x7c, 0, 0, // 0x3c: limit and address of the table
}

// probeDiskSize is the least that SeaBIOS takes for a hard disk, rounded up.
const probeDiskSize = 1 << 20

// probe starts throw-away guests to see what really works here. An answer that was
// kept under the key saves the wait for a guest to arrive.
func (d *Driver) probe(ctx context.Context, key string) (findings, error) {
	path, err := writeProbeDisk(d.dir)
	if err != nil {
		return findings{}, err
	}
	defer os.Remove(path)
	try := func(kind hypervisor.Acceleration, mustArrive bool) (findings, error) {
		return query(ctx, d, func(c *conn) (findings, error) { return trial(ctx, c, kind, path, mustArrive) })
	}
	if kind, ok := d.recall(key); ok {
		f, err := try(kind, false)
		if err == nil || errors.Is(err, hypervisor.ErrUnavailable) {
			return f, err
		}
	}
	kinds := []hypervisor.Acceleration{hypervisor.KVM, hypervisor.TCG}
	if d.forced != "" {
		kinds = []hypervisor.Acceleration{d.forced}
	}
	var last error
	for _, kind := range kinds {
		f, err := try(kind, kind == hypervisor.KVM && d.forced == "")
		if err == nil && f.acceleration == kind {
			d.keep(key, kind)
			return f, nil
		}
		if errors.Is(err, hypervisor.ErrUnavailable) {
			return findings{}, err // says nothing about the machine
		}
		last = err
	}
	return findings{}, fmt.Errorf("no probe guest could be started: %w", last)
}

// probeDisks matches the boot sectors of probes.
const probeDisks = "outcrop-probe-*.img"

// probeOver is when a probe has ended for certain, if need be by its agent's death.
const probeOver = 10 * time.Minute

// sweepProbeDisks removes what agents left that were killed in a probe.
func sweepProbeDisks(dir string, now time.Time) {
	old, _ := filepath.Glob(filepath.Join(dir, probeDisks))
	for _, path := range old {
		if info, err := os.Lstat(path); err == nil && now.Sub(info.ModTime()) > probeOver {
			_ = os.Remove(path)
		}
	}
}

func writeProbeDisk(dir string) (string, error) {
	sweepProbeDisks(dir, time.Now())
	f, err := os.CreateTemp(dir, probeDisks)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sector := append(make([]byte, 0, 512), bootSector...)
	sector = append(sector[:510:512], 0x55, 0xaa)
	if _, err = f.Write(sector); err == nil {
		err = f.Truncate(probeDiskSize)
	}
	if err == nil {
		err = f.Chmod(0o644) // QEMU's user reads it; it holds no secret
	}
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// trial runs one probe guest. acceleration stays empty when the guest had to
// arrive and did not. Only KVM's has to: that emulation works once it starts is
// not in doubt. The connection is used up by it.
func trial(ctx context.Context, c *conn, kind hypervisor.Acceleration, disk string, mustArrive bool) (f findings, err error) {
	events, err := c.LifecycleEvents(ctx)
	if err != nil {
		return f, err
	}
	defer func() {
		c.close() // ends the guest, too
		for range events {
		}
	}()
	if f.sandbox, err = sandboxed(c, probeXML(kind, disk)); err != nil {
		return f, err
	}
	flags := golibvirt.DomainStartAutodestroy | golibvirt.DomainStartValidate
	if !mustArrive {
		flags |= golibvirt.DomainStartPaused // it costs no processor time then, and ends at once
	}
	dom, held, err := launch(c, kind, disk, flags)
	if err != nil {
		return f, err
	}
	f.limits = held
	if !mustArrive || arrived(ctx, events, dom, time.After(kvmTime)) {
		f.acceleration = kind
	}
	// Destroyed here and not only with the connection, so that it is gone when we
	// return and its disk may go.
	if err := c.DomainDestroyFlags(dom, golibvirt.DomainDestroyDefault); err != nil && !golibvirt.IsNotFound(err) {
		return f, err
	}
	return f, ctx.Err()
}

// arrived waits until the guest rings the panic device; every other end, and
// none in time, is a no.
func arrived(ctx context.Context, events <-chan golibvirt.DomainEventLifecycleMsg, dom golibvirt.Domain, timeUp <-chan time.Time) bool {
	for {
		select {
		case e, ok := <-events:
			switch {
			case !ok:
				return false
			case e.Dom.UUID != dom.UUID:
			case golibvirt.DomainEventType(e.Event) == golibvirt.DomainEventCrashed:
				return true
			case golibvirt.DomainEventType(e.Event) == golibvirt.DomainEventStopped:
				return golibvirt.DomainEventStoppedDetailType(e.Detail) == golibvirt.DomainEventStoppedCrashed
			}
		case <-timeUp:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// launch starts a probe guest with all limits that work here. libvirt refuses to
// start a guest with one that does not.
func launch(c *conn, kind hypervisor.Acceleration, disk string, flags golibvirt.DomainCreateFlags) (dom golibvirt.Domain, held limits, err error) {
	for _, held = range []limits{{cpu: true, memory: true}, {cpu: true}, {memory: true}, {}} {
		x := probeXML(kind, disk)
		held.apply(x, hypervisor.Spec{VCPUs: 1, MemoryBytes: probeMemory})
		var text string
		if text, err = x.Marshal(); err != nil {
			break
		}
		dom, err = c.DomainCreateXML(text, flags)
		if err == nil || code(err) < 0 {
			break // running, or the connection is gone
		}
	}
	return dom, held, err
}

// sandboxed looks for QEMU's seccomp sandbox in the command line that libvirt
// would run.
func sandboxed(c *conn, x *libvirtxml.Domain) (bool, error) {
	text, err := x.Marshal()
	if err != nil {
		return false, err
	}
	args, err := c.ConnectDomainXMLToNative("qemu-argv", text, 0)
	return strings.Contains(args, "-sandbox on"), err
}

// probeMemory is enough for the firmware.
const probeMemory = 32 << 20

func probeXML(kind hypervisor.Acceleration, disk string) *libvirtxml.Domain {
	return &libvirtxml.Domain{
		Type:   domainType(kind),
		Name:   "probe-of-outcrop-" + rand.Text(),
		Memory: &libvirtxml.DomainMemory{Value: probeMemory, Unit: "bytes"},
		VCPU:   &libvirtxml.DomainVCPU{Value: 1},
		OS: &libvirtxml.DomainOS{
			Type:        &libvirtxml.DomainOSType{Arch: "x86_64", Machine: "q35", Type: "hvm"},
			BootDevices: []libvirtxml.DomainBootDevice{{Dev: "hd"}},
		},
		Features:   features(hypervisor.Spec{}, kind),
		OnPoweroff: "destroy",
		OnReboot:   "destroy",
		OnCrash:    "destroy",
		Devices: &libvirtxml.DomainDeviceList{
			Controllers: []libvirtxml.DomainController{{Type: "usb", Model: "none"}},
			Disks: []libvirtxml.DomainDisk{{
				Device:   "disk",
				Driver:   &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
				Source:   &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: disk}},
				Target:   &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
				ReadOnly: &libvirtxml.DomainDiskReadOnly{},
			}},
			MemBalloon: &libvirtxml.DomainMemBalloon{Model: "none"},
			Panics:     []libvirtxml.DomainPanic{{Model: "isa"}},
		},
	}
}
