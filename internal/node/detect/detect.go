// Package detect finds out what a machine is, from procfs, sysfs and devices. It
// is cheap enough for every heartbeat.
//
// What cannot be found out stays absent and is never guessed: a scheduler can
// work with "not reported", it cannot with a wrong zero (contract N-14).
package detect

import (
	"io/fs"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Facts of a machine. A nil pointer or an empty string means that the machine
// does not say.
type Facts struct {
	Hostname     string
	Architecture string // amd64, arm64, or the kernel's own word for another
	MachineID    string // machine-id(5)
	BootID       string // new with each boot of the machine

	VCPUs       int64 // CPUs online; 0 when not found out
	MemoryBytes int64 // what the kernel has to give; 0 when not found out
	DiskBytes   int64 // size of the file system for VM disks; 0 when not found out

	CPUModel string
	Sockets  *int64
	Cores    *int64 // of all sockets
	Threads  *int64 // of all cores

	ECC        *bool
	GPU        *bool // a display of a management controller or of a hypervisor is none
	NestedVirt *bool // guests may run VMs
	SecureBoot *bool
	TPM        *bool

	Hugepages1G *int64 // pages of 1 GiB in the pool, used or not
	SRIOVVFs    *int64 // virtual functions that the network cards offer in all

	KVM        bool   // /dev/kvm exists, which does not mean that it works
	KVMVersion string // the kernel's release, since KVM is part of it; empty without /dev/kvm

	// WakeOnLANMACs are addresses of network cards that can wake the machine,
	// the likeliest first.
	WakeOnLANMACs []string
}

// machine reads a machine's files below a root.
type machine struct{ fs.FS }

// Machine looks at the machine whose file system is root: os.DirFS("/"), or a
// model of one. diskPath is a real path in the file system that will hold VM
// disks.
func Machine(root fs.FS, diskPath string) Facts {
	m := machine{root}
	f := Facts{
		Hostname:      m.text("proc/sys/kernel/hostname"),
		Architecture:  m.architecture(),
		MachineID:     m.machineID(),
		BootID:        m.text("proc/sys/kernel/random/boot_id"),
		MemoryBytes:   m.memory(),
		DiskBytes:     diskBytes(diskPath),
		CPUModel:      m.cpuModel(),
		ECC:           m.ecc(),
		GPU:           m.gpu(),
		NestedVirt:    m.nestedVirt(),
		SecureBoot:    m.secureBoot(),
		TPM:           m.tpm(),
		Hugepages1G:   m.number("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"),
		SRIOVVFs:      m.virtualFunctions(),
		KVM:           m.exists("dev/kvm"),
		WakeOnLANMACs: m.wakeOnLANMACs(),
	}
	f.VCPUs = m.onlineCPUs()
	f.Sockets, f.Cores, f.Threads = m.topology()
	if f.KVM {
		f.KVMVersion = m.text("proc/sys/kernel/osrelease")
	}
	return f
}

// Capabilities are the labels of the machine (contract N-12, N-13). An absent
// fact has no label (contract N-14).
func (f Facts) Capabilities() map[string]string {
	labels := make(map[string]string)
	if f.CPUModel != "" {
		labels["capability.cpu.model"] = f.CPUModel
	}
	for key, n := range map[string]*int64{
		"capability.cpu.sockets":      f.Sockets,
		"capability.cpu.cores":        f.Cores,
		"capability.cpu.threads":      f.Threads,
		"capability.net.sriov_vfs":    f.SRIOVVFs,
		"capability.mem.hugepages_1g": f.Hugepages1G,
	} {
		if n != nil {
			labels[key] = strconv.FormatInt(*n, 10)
		}
	}
	for key, yes := range map[string]*bool{
		"capability.gpu.present": f.GPU,
		"capability.mem.ecc":     f.ECC,
		"capability.sec.tpm":     f.TPM,
		"capability.virt.nested": f.NestedVirt,
	} {
		if yes != nil {
			labels[key] = strconv.FormatBool(*yes)
		}
	}
	return labels
}

// text returns a file without surrounding space; empty when it cannot be read.
func (m machine) text(path string) string {
	content, err := fs.ReadFile(m, path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// number returns a file's whole number, or nil.
func (m machine) number(path string) *int64 {
	n, err := strconv.ParseInt(m.text(path), 10, 64)
	if err != nil || n < 0 {
		return nil
	}
	return &n
}

func (m machine) exists(path string) bool {
	_, err := fs.Stat(m, path)
	return err == nil
}

// entries lists a directory; ok is false when there is none.
func (m machine) entries(path string) (names []string, ok bool) {
	list, err := fs.ReadDir(m, path)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, err == nil
}

func (m machine) architecture() string {
	switch arch := m.text("proc/sys/kernel/arch"); arch { // since Linux 6.1
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	case "":
		return runtime.GOARCH
	default:
		return arch
	}
}

// machineID follows machine-id(5): 32 hex digits, or "uninitialized".
func (m machine) machineID() string {
	for _, path := range []string{"etc/machine-id", "var/lib/dbus/machine-id"} {
		id := m.text(path)
		if len(id) == 32 && strings.Trim(id, "0123456789abcdef") == "" {
			return id
		}
	}
	return ""
}

func diskBytes(path string) int64 {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0
	}
	return int64(s.Blocks) * s.Frsize
}
