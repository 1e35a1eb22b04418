package libvirt

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

func example() hypervisor.Spec {
	return hypervisor.Spec{
		ID: "i-Abc123xyz", UUID: "ec2f8a6e-0000-4000-8000-0123456789ab", VCPUs: 4, MemoryBytes: 2 << 30,
		Disks: []hypervisor.Disk{
			{Path: "/vm/root.qcow2", Format: "qcow2", Serial: "vol-root",
				Backing: []hypervisor.Image{{Path: "/img/base.qcow2", Format: "qcow2"}}},
			{Path: "/vm/data.raw", Format: "raw", Serial: "vol-data"},
			{Path: "/vm/cidata.iso", Format: "raw", ReadOnly: true},
		},
		NICs:          []hypervisor.NIC{{Tap: "tap-1", MAC: "52:54:00:00:00:01", MTU: 1450}},
		ConsoleLog:    "/vm/console.log",
		ConsoleSocket: "/vm/console.sock",
	}
}

// TestDomainXML compares with what a reviewer has read; UPDATE=1 rewrites it.
func TestDomainXML(t *testing.T) {
	for name, h := range map[string]*host{
		"tcg": {info: hypervisor.Info{Acceleration: hypervisor.TCG}},
		"kvm": {info: hypervisor.Info{Acceleration: hypervisor.KVM}, limits: limits{cpu: true, memory: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := domainXML(example(), h)
			if err != nil {
				t.Fatal(err)
			}
			again, err := domainXML(example(), h)
			if err != nil || again != got {
				t.Error("the same spec gives another definition")
			}
			path := filepath.Join("testdata", name+".xml")
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(path, []byte(got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got+"\n" != string(want) {
				t.Errorf("differs from %s; look at it with UPDATE=1 and git diff\n%s", path, got)
			}
		})
	}
}

func TestLetters(t *testing.T) { // contract: U-11
	for i, want := range map[int]string{0: "a", 1: "b", 25: "z", 26: "aa", 27: "ab", 51: "az", 52: "ba", 701: "zz", 702: "aaa"} {
		if got := letters(i); got != want {
			t.Errorf("disk %d is vd%s, want vd%s", i, got, want)
		}
	}
}

func TestTBCache(t *testing.T) {
	for memory, want := range map[int64]int64{128 << 20: 64, 256 << 20: 64, 257 << 20: 256, 64 << 30: 256} {
		if got := tbCacheMiB(memory); got != want {
			t.Errorf("%d bytes: %d MiB, want %d", memory, got, want)
		}
	}
}

// TestCacheMode: a file system without O_DIRECT, as procfs, falls back.
func TestCacheMode(t *testing.T) {
	if got := cacheMode("/proc/self/stat"); got != "writeback" {
		t.Errorf("without O_DIRECT: %s", got)
	}
}

func TestTranslate(t *testing.T) {
	// Numbers as in libvirt-domain.h, states then reasons.
	for in, want := range map[[2]int32]hypervisor.State{
		{1, 1}:  hypervisor.Running,
		{2, 0}:  hypervisor.Running, // blocked on something
		{3, 1}:  hypervisor.Paused,
		{3, 5}:  hypervisor.Paused,
		{3, 11}: hypervisor.Running, // starting up
		{3, 2}:  hypervisor.Running, // migrating
		{4, 0}:  hypervisor.Running, // shutting down
		{5, 0}:  hypervisor.Off,
		{5, 1}:  hypervisor.Off,
		{5, 2}:  hypervisor.Off, // destroyed
		{5, 3}:  hypervisor.Crashed,
		{5, 6}:  hypervisor.Crashed,
		{5, 8}:  hypervisor.Crashed,
		{6, 1}:  hypervisor.Crashed,
	} {
		got, reason := translate(in[0], in[1])
		if got != want {
			t.Errorf("state %d reason %d is %s, want %s", in[0], in[1], got, want)
		}
		if needs := got == hypervisor.Paused || got == hypervisor.Crashed; needs != (reason != "") {
			t.Errorf("state %d reason %d says %q", in[0], in[1], reason)
		}
	}
}

func TestSocketPath(t *testing.T) {
	for uri, want := range map[string]string{
		"qemu:///system":                  defaultSocket,
		"qemu:///system?socket=/run/x":    "/run/x",
		"qemu:///session":                 "",
		"qemu+ssh://host/system":          "",
		"qemu://host/system":              "",
		"":                                "",
		"qemu:///system?socket=%zz":       defaultSocket, // Query drops what it cannot read
		"http:///system?socket=/run/x":    "",
		"qemu:///system?socket=/run/a%20": "/run/a ",
	} {
		got, err := socketPath(uri)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", uri, got, err, want)
		}
	}
}

func TestHost(t *testing.T) {
	caps := func(models string) (c libvirtxml.Caps) {
		if err := c.Unmarshal("<capabilities><host>" + models + "</host></capabilities>"); err != nil {
			t.Fatal(err)
		}
		return c
	}
	const (
		dac      = "<secmodel><model>dac</model><doi>0</doi><baselabel type='kvm'>+%d:+%d</baselabel><baselabel type='qemu'>+9:+9</baselabel></secmodel>"
		apparmor = "<secmodel><model>apparmor</model><doi>0</doi></secmodel>"
	)
	for _, test := range []struct {
		models   string
		owner    owner
		findings []string
	}{
		{fmt.Sprintf(apparmor+dac, 64055, 107), owner{64055, 107}, nil},
		{fmt.Sprintf(dac, 64055, 107), owner{64055, 107}, []string{"AppArmor"}},
		{fmt.Sprintf(apparmor+dac, 0, 0), owner{}, []string{"root"}},
		{"", owner{}, []string{"root", "AppArmor"}},
	} {
		c := caps(test.models)
		if got := qemuOwner(c); got != test.owner {
			t.Errorf("%s: owner %v, want %v", test.models, got, test.owner)
		}
		got := separation(c)
		if len(got) != len(test.findings) {
			t.Fatalf("%s: findings %q", test.models, got)
		}
		for i, want := range test.findings {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: finding %q does not speak of %s", test.models, got[i], want)
			}
		}
	}
	if got := version(7002022); got != "7.2.22" {
		t.Errorf("version %s", got)
	}
}
