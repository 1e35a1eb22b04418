package libvirt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

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

func TestProbeDisksOfTheDeadAreSwept(t *testing.T) {
	dir := t.TempDir()
	touch := func(name string, age time.Duration) string {
		path := filepath.Join(dir, name)
		at := time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	dead := touch("outcrop-probe-1.img", time.Hour)
	alive, foreign := touch("outcrop-probe-2.img", time.Minute), touch("other.img", time.Hour)
	mine, err := writeProbeDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a dead agent left: %v", err)
	}
	for _, path := range []string{alive, foreign, mine} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}
