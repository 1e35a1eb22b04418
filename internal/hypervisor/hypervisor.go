// Package hypervisor is what a node agent asks of the program that runs VMs.
//
// Two implementations exist: libvirt (QEMU, with KVM where it works) and fake
// (in memory, for speed and fault injection). One suite, hypertest, says what
// both must do. Every call takes a context whose deadline it honours: a call
// that hangs must cost its own VM only (lesson 10).
package hypervisor

import (
	"context"
	"errors"
	"io"
	"time"
)

// Errors that callers act on. Everything else is a failure of the hypervisor
// itself and is retried.
var (
	// ErrNotFound: no VM of that id is defined.
	ErrNotFound = errors.New("hypervisor: no such VM")
	// ErrUnavailable: the hypervisor cannot be reached or did not answer in time.
	ErrUnavailable = errors.New("hypervisor: unavailable")
	// ErrRefused: the hypervisor looked at the request and refuses it: the spec
	// is wrong, or the VM is not in a state for it. Asking again without
	// changing either will not help.
	ErrRefused = errors.New("hypervisor: refused")
)

// State of a VM as the hypervisor sees it.
type State string

const (
	// Off: defined, not running, and it went down in an orderly way.
	Off State = "off"
	// Running: the VM's CPUs exist (paused for a moment counts too).
	Running State = "running"
	// Paused: the VM exists but its CPUs stand still for a reason that needs
	// somebody, such as a full disk.
	Paused State = "paused"
	// Crashed: not running, and the last run ended by a crash of the guest or
	// of its QEMU process.
	Crashed State = "crashed"
)

// Disk is one block device. Disks keep their order: the first becomes vda.
type Disk struct {
	Path     string // absolute path of the file
	Format   string // "qcow2" or "raw"
	ReadOnly bool
	Backing  []Image // what an overlay lies on, nearest first; nil lets the hypervisor read that from the file
	Serial   string  // what the guest sees as the disk's serial: the volume id (contract U-11), at most 20 bytes
}

// Image is a file below an overlay. It is never written; several VMs may share
// it.
type Image struct {
	Path   string // absolute path of the file
	Format string // "qcow2" or "raw"
}

// NIC is one network interface, on a tap device that exists already.
type NIC struct {
	Tap string // name of the tap device
	MAC string // lower case, colon separated
	MTU int    // bytes
}

// Spec is everything that defines a VM. The same Spec gives the same VM: it
// holds no state, so defining it again is always safe.
type Spec struct {
	ID            string // instance id; the domain is called outcrop-<id>
	UUID          string // SMBIOS system UUID and serial; starts with "ec2" so that cloud-init's Ec2 source knows it
	VCPUs         int
	MemoryBytes   int64
	Disks         []Disk // root first, data volumes next, cidata last (contract U-11)
	NICs          []NIC
	ConsoleLog    string // file that the serial console is appended to
	ConsoleSocket string // unix socket of the two-way serial console
}

// VM is one of our VMs as it is now.
type VM struct {
	ID    string
	State State
	// BootID changes with every start of the VM's process; it is empty while
	// the VM is not running. A reset inside the same process keeps it.
	BootID string
	// Reason is a short text for a person where State alone does not explain.
	Reason string
}

// Acceleration says how guest instructions run.
type Acceleration string

const (
	KVM Acceleration = "kvm" // hardware virtualisation
	TCG Acceleration = "tcg" // software emulation
)

// Info describes the hypervisor.
type Info struct {
	Name         string       // "libvirt" or "fake"
	Version      string       // of the VM monitor, e.g. "QEMU 7.2.22, libvirt 9.0.0"
	Acceleration Acceleration // what a probe found to work, not what is listed
	Limits       bool         // CPU and memory limits by cgroup are in force
	// Findings are sentences for the operator about what is not as it should
	// be on this machine, such as QEMU running as root. Empty is good.
	Findings []string
}

// Hypervisor runs VMs. All methods are safe for concurrent use; callers keep to
// one writer per VM.
type Hypervisor interface {
	// Info answers from what is known, probing once; it may take some seconds
	// the first time.
	Info(ctx context.Context) (Info, error)
	// List returns all VMs that are ours, whatever their state. A failure to
	// read one VM fails the whole list: a missing report must never look like
	// a VM that is gone (lesson 9).
	List(ctx context.Context) ([]VM, error)
	// Get returns one VM or ErrNotFound.
	Get(ctx context.Context, id string) (VM, error)
	// Define makes or replaces the definition of a VM that is not running.
	// With a running VM the new definition holds from its next start.
	Define(ctx context.Context, s Spec) error
	// Start boots a defined VM and lets a paused one go on; a running one is
	// left as it is.
	Start(ctx context.Context, id string) error
	// Shutdown asks the guest to power off and returns at once. A VM that is
	// off is left as it is.
	Shutdown(ctx context.Context, id string) error
	// Destroy ends the VM at once, as pulling the plug would. It may interrupt
	// a waiting Shutdown. A VM that is off is left as it is.
	Destroy(ctx context.Context, id string) error
	// Reset restarts a running VM at once, keeping its process. A VM that is
	// not running is refused.
	Reset(ctx context.Context, id string) error
	// Undefine forgets a VM that is not running; an unknown one is no error, a
	// running one is refused.
	Undefine(ctx context.Context, id string) error
	// Console opens the two-way serial console of a running VM. It has one
	// user at a time; a second one is refused.
	Console(ctx context.Context, id string) (io.ReadWriteCloser, error)
	// Events carries the id of a VM whose state may have changed. It is a hint:
	// it may miss and repeat, so callers look at the state themselves. "" means
	// that any VM may have changed (after a reconnect).
	Events() <-chan string
	// Close lets go of the hypervisor; VMs go on.
	Close() error
}

// CallTimeout bounds one call where the caller's context has no nearer deadline.
const CallTimeout = 30 * time.Second
