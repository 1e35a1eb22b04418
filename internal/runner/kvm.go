package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ioctls of /dev/kvm that a guest of one instruction takes (linux/kvm.h).
const (
	kvmGetAPIVersion   = 0xae00
	kvmCreateVM        = 0xae01
	kvmGetVCPUMmapSize = 0xae04
	kvmCreateVCPU      = 0xae41
	kvmRun             = 0xae80
	kvmSetMemory       = 0x4020ae46
	kvmGetSregs        = 0x8138ae83 // amd64
	kvmSetSregs        = 0x4138ae84
	kvmSetRegs         = 0x4090ae82
	kvmExitHalt        = 5
)

// kvmPatience is how long the guest may take. A broken KVM can hang.
const kvmPatience = 5 * time.Second

// tryKVM runs one instruction in a guest: that /dev/kvm can be opened does not
// mean that it works.
func tryKVM(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // a VCPU belongs to its thread
		defer runtime.UnlockOSThread()
		done <- runHalt()
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(kvmPatience):
		return fmt.Errorf("a guest of one instruction did not end within %s", kvmPatience)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runHalt makes a guest whose only instruction is hlt, and runs it where the
// layout of registers is known.
func runHalt() error {
	kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("there is no /dev/kvm; turn virtualization on in the firmware and load kvm_intel or kvm_amd")
	}
	if err != nil {
		return err
	}
	defer kvm.Close()
	if v, err := ioctl(int(kvm.Fd()), kvmGetAPIVersion, nil); err != nil || v != 12 {
		return fmt.Errorf("/dev/kvm speaks version %d, not 12 (%v)", v, err)
	}
	vm, err := ioctl(int(kvm.Fd()), kvmCreateVM, nil)
	if err != nil {
		return fmt.Errorf("no guest can be made: %w", err)
	}
	defer unix.Close(vm)
	cpu, err := ioctl(vm, kvmCreateVCPU, nil)
	if err != nil {
		return fmt.Errorf("no processor can be made: %w", err)
	}
	defer unix.Close(cpu)
	if runtime.GOARCH != "amd64" {
		return nil
	}
	return haltOn(int(kvm.Fd()), vm, cpu)
}

func haltOn(kvm, vm, cpu int) error {
	const start = 0x1000
	code, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(code)
	code[0] = 0xf4 // hlt
	memory := struct {
		slot, flags uint32
		guest, size uint64
		user        uint64
	}{guest: start, size: 4096, user: uint64(uintptr(unsafe.Pointer(&code[0])))}
	size, err := ioctl(kvm, kvmGetVCPUMmapSize, nil)
	if err != nil {
		return err
	}
	run, err := unix.Mmap(cpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(run)
	var sregs [312]byte // cs comes first: base, limit, selector
	var regs [18]uint64 // rip and rflags are the last two
	regs[16], regs[17] = start, 2
	for _, step := range []struct {
		name    string
		request uint
		arg     unsafe.Pointer
		before  func()
	}{
		{"memory", kvmSetMemory, unsafe.Pointer(&memory), nil},
		{"segments", kvmGetSregs, unsafe.Pointer(&sregs), nil},
		{"segments", kvmSetSregs, unsafe.Pointer(&sregs), func() { clear(sregs[:8]); clear(sregs[12:14]) }},
		{"registers", kvmSetRegs, unsafe.Pointer(&regs), nil},
		{"run", kvmRun, nil, nil},
	} {
		if step.before != nil {
			step.before()
		}
		if _, err := ioctl(cpuOr(vm, cpu, step.request), step.request, step.arg); err != nil {
			return fmt.Errorf("a guest of one instruction does not run (%s): %w", step.name, err)
		}
	}
	if exit := *(*uint32)(unsafe.Pointer(&run[8])); exit != kvmExitHalt { // kvm_run.exit_reason
		return fmt.Errorf("a guest of one instruction ended for reason %d instead of %d", exit, kvmExitHalt)
	}
	return nil
}

// cpuOr is what a request goes to.
func cpuOr(vm, cpu int, request uint) int {
	if request == kvmSetMemory {
		return vm
	}
	return cpu
}

func ioctl(fd int, request uint, arg unsafe.Pointer) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return -1, errno
		}
		return int(n), nil
	}
}
