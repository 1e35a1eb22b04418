package libvirt

import (
	"context"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

func TestProbe(t *testing.T) {
	daemon := libvirtdtest.Start(t)
	d, err := Open(daemon.URI, WithDir(daemon.Dir))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	info, err := d.Info(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", info)
	if info.Acceleration != hypervisor.KVM && info.Acceleration != hypervisor.TCG {
		t.Errorf("acceleration %q", info.Acceleration)
	}
	// The same guest under emulation has to arrive: else the boot sector is wrong.
	disk, err := writeProbeDisk(daemon.Dir)
	if err != nil {
		t.Fatal(err)
	}
	ok, err := query(t.Context(), d, func(c *conn) (bool, error) {
		events, err := c.LifecycleEvents(t.Context())
		if err != nil {
			return false, err
		}
		text, err := probeXML(hypervisor.TCG, disk).Marshal()
		if err != nil {
			return false, err
		}
		dom, err := c.DomainCreateXML(text, 2)
		if err != nil {
			return false, err
		}
		defer c.close()
		return arrived(t.Context(), events, dom, nil), nil
	})
	if err != nil || !ok {
		t.Errorf("under emulation the probe guest did not arrive: %v", err)
	}
}
