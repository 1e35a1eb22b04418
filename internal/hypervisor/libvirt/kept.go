package libvirt

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// keptFor bounds the age of an answer that is used again. What it depends on is
// compared; the bound is for what cannot be: a machine that is itself a guest and
// moved to other hardware, or one that was too busy when it was asked.
const keptFor = 24 * time.Hour

// verdict is the answer of a probe as it is kept over a restart of the agent: the
// slow part, whether KVM is worth having. Whether a guest of the kind starts at
// all, and with which limits, is tried every time.
type verdict struct {
	Key          string                  `json:"key"` // of what it depends on
	Acceleration hypervisor.Acceleration `json:"acceleration"`
	At           time.Time               `json:"at"`
}

// holds says whether the verdict may be used for a host of this key.
func (v verdict) holds(key string, now time.Time) bool {
	age := now.Sub(v.At)
	return key != "" && v.Key == key && 0 <= age && age < keptFor &&
		(v.Acceleration == hypervisor.KVM || v.Acceleration == hypervisor.TCG)
}

// recall is the kept answer, where there is one that holds.
func (d *Driver) recall(key string) (hypervisor.Acceleration, bool) {
	if d.kept == "" || d.forced != "" {
		return "", false
	}
	b, err := os.ReadFile(d.kept)
	if err != nil {
		return "", false
	}
	var v verdict
	if err := json.Unmarshal(b, &v); err != nil || !v.holds(key, time.Now()) {
		return "", false
	}
	return v.Acceleration, true
}

// keep remembers an answer. Without it the next agent asks again, so a failure
// costs time only.
func (d *Driver) keep(key string, a hypervisor.Acceleration) {
	if d.kept == "" || d.forced != "" || key == "" {
		return
	}
	b, err := json.Marshal(verdict{key, a, time.Now()})
	if err == nil {
		tmp := d.kept + ".new"
		if err = os.WriteFile(tmp, b, 0o600); err == nil {
			err = os.Rename(tmp, d.kept)
		}
	}
	if err != nil {
		d.log.Warn("the probe's answer could not be kept; it is asked again after a restart", "error", err)
	}
}

// dependencies is what the answer of a probe follows from.
type dependencies struct {
	boot         string // of the kernel: its modules, and what the firmware allows
	versions     string // of QEMU and libvirt
	capabilities string // libvirt's whole document: the CPU with its microcode, QEMU's programs, the user who runs them
	kvm          string // the device; it is another one after its module was loaded again
	settings     string // of libvirt's QEMU driver
}

const (
	bootIDFile   = "/proc/sys/kernel/random/boot_id"
	kvmDevice    = "/dev/kvm"
	qemuSettings = "/etc/libvirt/qemu.conf"
)

func dependenciesOf(versions, capabilities string) dependencies {
	boot, _ := os.ReadFile(bootIDFile)
	return dependencies{string(boot), versions, capabilities, fileState(kvmDevice), fileState(qemuSettings)}
}

// key is empty where the boot cannot be told: nothing is kept then.
func (d dependencies) key() string {
	if d.boot == "" {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", d))
	return hex.EncodeToString(sum[:])
}

// fileState changes with the file: another one, other bytes, other permissions. A
// change and back is another state, too.
func fileState(path string) string {
	var s syscall.Stat_t
	if err := syscall.Stat(path, &s); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %d:%d %o %d:%d %x %d %d.%d", filepath.Base(path), s.Dev, s.Ino, s.Mode, s.Uid, s.Gid, s.Rdev, s.Size, s.Ctim.Sec, s.Ctim.Nsec)
}
