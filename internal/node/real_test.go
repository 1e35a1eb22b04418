package node

import (
	"bytes"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

const greeting = "outcrop boots"

// bootDisk is a raw disk whose boot sector greets on the first serial port.
func bootDisk() []byte {
	code := []byte{
		0x31, 0xc0, // xor ax, ax
		0x8e, 0xd8, // mov ds, ax
		0xbe, 0x15, 0x7c, // mov si, the text behind this code
		0xba, 0xf8, 0x03, // mov dx, COM1
		0xac,       // next: lodsb
		0x84, 0xc0, // test al, al
		0x74, 0x03, // jz end
		0xee,       // out dx, al
		0xeb, 0xf8, // jmp next
		0xf4,       // end: hlt
		0xeb, 0xfd, // jmp end
	}
	disk := make([]byte, 1<<20)
	copy(disk, append(code, greeting...))
	disk[510], disk[511] = 0x55, 0xaa
	return disk
}

// The files of an instance are such that the real QEMU, under its own user, gets
// at them and nobody else does. contract: U-03 U-11
func TestRealHypervisor(t *testing.T) {
	daemon := libvirtdtest.Start(t)
	hv, err := libvirt.Open(daemon.URI, libvirt.WithAcceleration(hypervisor.TCG))
	if err != nil {
		t.Fatal(err)
	}
	defer hv.Close()
	e := newEnvIn(t, daemon.Dir, fake.Options{})
	e.cfg.Hypervisor = hv
	e.cfg.Network = nil // the taps of a network that is not real would not be there
	e.tweak = func(a *agent) { a.makeVolume = createVolume }
	e.server.image = e.addImage(bootDisk())
	e.up(t)
	defer func() { e.downAgent() }()
	for _, id := range []string{idA, idB} { // on one image
		e.create(id, "x")
	}
	greets := func(id string) {
		t.Helper()
		e.edit(func() { delete(e.consoles, id) })
		for range 150 {
			e.edit(func() { e.wish[id] = true })
			<-time.After(200 * time.Millisecond)
			e.mu.Lock()
			said := e.consoles[id]
			e.mu.Unlock()
			if bytes.Contains(said, []byte(greeting)) {
				return
			}
		}
		t.Fatalf("%s does not greet", id)
	}
	for _, id := range []string{idA, idB} {
		e.awaitState(t, id, compute.StateRunning)
		greets(id)
	}
	checkClosed(t, e.vms.dir)

	// The VM outlives the agent.
	e.downAgent()
	vm, err := hv.Get(t.Context(), idA)
	if err != nil || vm.State != hypervisor.Running {
		t.Fatalf("VM %+v, %v", vm, err)
	}
	e.up(t)
	e.server.stop(idA, 0, true)
	e.awaitState(t, idA, compute.StateStopped)
	e.server.start(idA)
	e.awaitState(t, idA, compute.StateRunning)
	greets(idA)
	again, err := hv.Get(t.Context(), idA)
	if err != nil || again.BootID == vm.BootID {
		t.Errorf("VM %+v, %v", again, err)
	}
	for _, id := range []string{idA, idB} {
		e.terminate(id)
		e.awaitState(t, id, compute.StateTerminated)
	}
	if vms, err := hv.List(t.Context()); err != nil || len(vms) != 0 {
		t.Errorf("VMs left: %v, %v", vms, err)
	}
	if files := e.files(); len(files) != 2 {
		t.Errorf("files left: %v", files)
	}
}

// checkClosed looks for what others on the node could read or list. QEMU's group
// may read what QEMU must not own.
func checkClosed(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "instances"), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		forbidden := fs.FileMode(0o007)
		if d.IsDir() {
			forbidden = 0o066
		}
		if err == nil && info.Mode().Type()&fs.ModeSocket == 0 && info.Mode().Perm()&forbidden != 0 {
			t.Errorf("%s has mode %v", p, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
