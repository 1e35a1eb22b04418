package libvirt

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// Define makes or replaces a definition; see hypervisor.Hypervisor.
func (d *Driver) Define(ctx context.Context, s hypervisor.Spec) error {
	if err := s.Validate(); err != nil {
		return fmt.Errorf("libvirt: define VM %s: %w", s.ID, err)
	}
	h, err := d.hostFacts(ctx)
	if err != nil {
		return fmt.Errorf("libvirt: define VM %s: %w", s.ID, err)
	}
	text, err := domainXML(s, h)
	if err != nil {
		return fmt.Errorf("libvirt: define VM %s: %w", s.ID, err)
	}
	return d.act(ctx, "define", s.ID, func(c *conn) error {
		if dom, err := c.DomainLookupByName(prefix + s.ID); err == nil {
			if _, ours, err := readMark(c, dom); err != nil || !ours {
				return foreign(dom, err)
			}
		} else if !golibvirt.IsNotFound(err) {
			return err
		}
		_, err := c.DomainDefineXMLFlags(text, golibvirt.DomainDefineValidate)
		return err
	})
}

func foreign(dom golibvirt.Domain, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: somebody else's domain is called %s; rename it", hypervisor.ErrRefused, dom.Name)
}

// Start boots a VM or lets a paused one go on; see hypervisor.Hypervisor.
func (d *Driver) Start(ctx context.Context, id string) error {
	h, err := d.hostFacts(ctx)
	if err != nil {
		return fmt.Errorf("libvirt: start VM %s: %w", id, err)
	}
	return d.act(ctx, "start", id, func(c *conn) error {
		dom, vm, err := find(c, id)
		if err != nil {
			return err
		}
		switch vm.State {
		case hypervisor.Running:
			return nil
		case hypervisor.Paused:
			return answered(c, dom, func() error { return c.DomainResume(dom) })
		}
		x, err := currentXML(c, dom)
		if err != nil {
			return err
		}
		if err := grant(x, h.owner); err != nil {
			return err
		}
		if err := writeMark(c, dom, mark{ID: id, Run: rand.Text()[:12]}); err != nil {
			return err
		}
		return c.DomainCreate(dom)
	})
}

// Shutdown presses the power button; see hypervisor.Hypervisor.
func (d *Driver) Shutdown(ctx context.Context, id string) error {
	return d.act(ctx, "shut down", id, func(c *conn) error {
		dom, vm, err := find(c, id)
		if err != nil || !alive(vm) {
			return err
		}
		return answered(c, dom, func() error {
			return c.DomainShutdownFlags(dom, golibvirt.DomainShutdownAcpiPowerBtn)
		})
	})
}

// Destroy pulls the plug; see hypervisor.Hypervisor. libvirt kills QEMU for it
// before it waits for anything, so a stuck VM can be destroyed.
func (d *Driver) Destroy(ctx context.Context, id string) error {
	return d.act(ctx, "destroy", id, func(c *conn) error {
		dom, vm, err := find(c, id)
		if err != nil || !alive(vm) {
			return err
		}
		err = c.DomainDestroyFlags(dom, golibvirt.DomainDestroyDefault)
		if code(err) == golibvirt.ErrOperationInvalid || golibvirt.IsNotFound(err) {
			return stillAlive(c, id, err) // it may have ended by itself just now
		}
		return err
	})
}

// stillAlive returns nil when the VM is down, else cause as a plain failure:
// just after its start libvirtd can say "not found" of a running domain.
func stillAlive(c *conn, id string, cause error) error {
	_, vm, err := find(c, id)
	if err != nil {
		return err
	}
	if alive(vm) {
		return fmt.Errorf("it is still running: %s", cause)
	}
	return nil
}

// Reset restarts the guest inside its process; see hypervisor.Hypervisor.
func (d *Driver) Reset(ctx context.Context, id string) error {
	return d.act(ctx, "reset", id, func(c *conn) error {
		dom, vm, err := find(c, id)
		if err != nil {
			return err
		}
		if !alive(vm) {
			return fmt.Errorf("%w: it is not running; start it", hypervisor.ErrRefused)
		}
		return answered(c, dom, func() error { return c.DomainReset(dom, 0) })
	})
}

// Undefine forgets a VM; see hypervisor.Hypervisor. Its files stay.
func (d *Driver) Undefine(ctx context.Context, id string) error {
	return d.act(ctx, "undefine", id, func(c *conn) error {
		dom, err := c.DomainLookupByName(prefix + id)
		if golibvirt.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, ours, err := readMark(c, dom); err != nil || !ours {
			return err
		}
		// Undefining a running domain would leave it running and nameless after.
		if active, err := c.DomainIsActive(dom); err != nil || active != 0 {
			return busy(err)
		}
		return c.DomainUndefineFlags(dom, golibvirt.DomainUndefineManagedSave|
			golibvirt.DomainUndefineSnapshotsMetadata|golibvirt.DomainUndefineCheckpointsMetadata|golibvirt.DomainUndefineNvram)
	})
}

func busy(err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: it is running; destroy it first", hypervisor.ErrRefused)
}

func alive(vm hypervisor.VM) bool {
	return vm.State == hypervisor.Running || vm.State == hypervisor.Paused
}

// owed is how long QEMU may take for an answer before it gets no further call.
const owed = time.Second

// answered calls fn unless QEMU still owes an answer to an earlier call. Each
// call to a QEMU that does not answer holds one of libvirtd's few workers for
// good, even after we have given up on it, so retries must not add to them.
func answered(c *conn, dom golibvirt.Domain, fn func() error) error {
	stuck, err := unanswered(c, dom)
	if err != nil {
		return err
	}
	if stuck > owed {
		return fmt.Errorf("%w: its QEMU has not answered for %v; destroying it helps", hypervisor.ErrUnavailable, stuck.Round(time.Second))
	}
	return fn()
}

// act runs a verb on one VM and names both in the error.
func (d *Driver) act(ctx context.Context, verb, id string, fn func(*conn) error) error {
	if err := exec(ctx, d, fn); err != nil {
		return fmt.Errorf("libvirt: %s VM %s: %w", verb, id, err)
	}
	return nil
}
