package libvirt

import (
	"os"
	"syscall"

	"libvirt.org/go/libvirtxml"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// domainXML renders the definition of a VM. It depends on the spec, the host
// and on what the disks' file systems can do, on nothing else.
func domainXML(s hypervisor.Spec, h *host) (string, error) {
	d := &libvirtxml.Domain{
		Type:     domainType(h.info.Acceleration),
		Name:     prefix + s.ID,
		UUID:     s.UUID,
		Metadata: &libvirtxml.DomainMetadata{XML: mark{ID: s.ID}.inDefinition()},
		Memory:   &libvirtxml.DomainMemory{Value: uint(s.MemoryBytes), Unit: "bytes"},
		VCPU:     &libvirtxml.DomainVCPU{Placement: "static", Value: uint(s.VCPUs)},
		OS: &libvirtxml.DomainOS{
			Type:        &libvirtxml.DomainOSType{Arch: "x86_64", Machine: "q35", Type: "hvm"},
			BootDevices: []libvirtxml.DomainBootDevice{{Dev: "hd"}},
			SMBios:      &libvirtxml.DomainSMBios{Mode: "sysinfo"},
		},
		SysInfo:    []libvirtxml.DomainSysInfo{{SMBIOS: smbios(s.UUID)}},
		CPU:        cpu(h.info.Acceleration),
		Features:   features(s, h.info.Acceleration),
		Clock:      clock(),
		OnPoweroff: "destroy",
		OnReboot:   "restart",
		OnCrash:    "destroy",
		Devices:    devices(s),
	}
	h.limits.apply(d, s)
	return d.Marshal()
}

func domainType(a hypervisor.Acceleration) string {
	if a == hypervisor.KVM {
		return "kvm"
	}
	return "qemu"
}

// smbios makes cloud-init's Ec2 source know the machine: it looks for a UUID
// that begins with "ec2" and for the same text as serial.
func smbios(uuid string) *libvirtxml.DomainSysInfoSMBIOS {
	return &libvirtxml.DomainSysInfoSMBIOS{System: &libvirtxml.DomainSysInfoSystem{Entry: []libvirtxml.DomainSysInfoEntry{
		{Name: "manufacturer", Value: "Outcrop"},
		{Name: "product", Value: "Instance"},
		{Name: "serial", Value: uuid},
		{Name: "uuid", Value: uuid},
	}}}
}

// cpu passes the host's CPU through where that is possible. Emulating the
// newest CPU costs a fifth of a guest's speed for instructions that nothing
// needs, so without KVM it is an old one by name.
func cpu(a hypervisor.Acceleration) *libvirtxml.DomainCPU {
	if a == hypervisor.KVM {
		return &libvirtxml.DomainCPU{Mode: "host-passthrough", Check: "none", Migratable: "on"}
	}
	return &libvirtxml.DomainCPU{Mode: "custom", Match: "exact", Check: "none",
		Model: &libvirtxml.DomainCPUModel{Fallback: "forbid", Value: "Nehalem"}}
}

func features(s hypervisor.Spec, a hypervisor.Acceleration) *libvirtxml.DomainFeatureList {
	f := &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}, APIC: &libvirtxml.DomainFeatureAPIC{}}
	if a == hypervisor.TCG {
		f.TCG = &libvirtxml.DomainFeatureTCG{TBCache: &libvirtxml.DomainFeatureTCGTBCache{
			Unit: "MiB", Size: uint(tbCacheMiB(s.MemoryBytes))}}
	}
	return f
}

// tbCacheMiB bounds what QEMU keeps of translated code. Its own default of 1 GiB
// would make a small guest cost more host memory than it was given.
func tbCacheMiB(memory int64) int64 {
	if memory <= 256<<20 {
		return 64
	}
	return 256
}

func clock() *libvirtxml.DomainClock {
	return &libvirtxml.DomainClock{Offset: "utc", Timer: []libvirtxml.DomainTimer{
		{Name: "rtc", TickPolicy: "catchup"},
		{Name: "pit", TickPolicy: "delay"},
		{Name: "hpet", Present: "no"},
	}}
}

func devices(s hypervisor.Spec) *libvirtxml.DomainDeviceList {
	port := uint(0)
	list := &libvirtxml.DomainDeviceList{
		Controllers: []libvirtxml.DomainController{{Type: "usb", Model: "none"}},
		Serials: []libvirtxml.DomainSerial{{
			Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{
				Mode: "bind", Path: s.ConsoleSocket}},
			Log:    &libvirtxml.DomainChardevLog{File: s.ConsoleLog, Append: "on"},
			Target: &libvirtxml.DomainSerialTarget{Type: "isa-serial", Port: &port},
		}},
		RNGs: []libvirtxml.DomainRNG{{
			Model:   "virtio",
			Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
		}},
		MemBalloon: &libvirtxml.DomainMemBalloon{Model: "none"},
		// A guest kernel that panics says so here, and the VM ends as crashed.
		Panics: []libvirtxml.DomainPanic{{Model: "isa"}},
	}
	for i, d := range s.Disks {
		list.Disks = append(list.Disks, disk(d, i))
	}
	for _, n := range s.NICs {
		list.Interfaces = append(list.Interfaces, nic(n))
	}
	return list
}

func disk(d hypervisor.Disk, index int) libvirtxml.DomainDisk {
	x := libvirtxml.DomainDisk{
		Device: "disk",
		Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: d.Format, Cache: cacheMode(d.Path)},
		Source: fileSource(d.Path),
		Target: &libvirtxml.DomainDiskTarget{Dev: "vd" + letters(index), Bus: "virtio"},
		Serial: d.Serial,
	}
	if d.Backing != nil {
		x.BackingStore = backing(d.Backing)
	}
	if d.ReadOnly {
		x.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
		x.Source.File.SecLabel = keepOwner()
		return x
	}
	x.Driver.Discard = "unmap"
	// A full host disk pauses the VM; telling the guest would break its file system.
	x.Driver.ErrorPolicy, x.Driver.RErrorPolicy = "stop", "stop"
	return x
}

func fileSource(path string) *libvirtxml.DomainDiskSource {
	return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}}
}

// backing spells out the files under an overlay, down to an empty element that
// ends the chain. So libvirt takes no file's word for what else to open: a QEMU
// that was taken over could have written another name into its overlay.
func backing(chain []hypervisor.Image) *libvirtxml.DomainDiskBackingStore {
	if len(chain) == 0 {
		return &libvirtxml.DomainDiskBackingStore{}
	}
	source := fileSource(chain[0].Path)
	source.File.SecLabel = keepOwner()
	return &libvirtxml.DomainDiskBackingStore{
		Format:       &libvirtxml.DomainDiskFormat{Type: chain[0].Format},
		Source:       source,
		BackingStore: backing(chain[1:]),
	}
}

// keepOwner stops libvirt from giving a file to QEMU's user, who could then
// write what other VMs read. See grant for how QEMU gets to read it.
func keepOwner() []libvirtxml.DomainDeviceSecLabel {
	return []libvirtxml.DomainDeviceSecLabel{{Model: "dac", Relabel: "no"}}
}

// letters counts as the kernel names disks: a … z, aa, ab ….
func letters(i int) string {
	name := string(rune('a' + i%26))
	if i >= 26 {
		name = letters(i/26-1) + name
	}
	return name
}

// cacheMode keeps guest data out of the host's page cache where the file system
// has O_DIRECT. Both modes honour the guest's flushes.
func cacheMode(path string) string {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		return "writeback"
	}
	_ = f.Close()
	return "none"
}

// nic is plugged into a tap that the network part made and owns.
func nic(n hypervisor.NIC) libvirtxml.DomainInterface {
	return libvirtxml.DomainInterface{
		Source: &libvirtxml.DomainInterfaceSource{Ethernet: &libvirtxml.DomainInterfaceSourceEthernet{}},
		MAC:    &libvirtxml.DomainInterfaceMAC{Address: n.MAC},
		Target: &libvirtxml.DomainInterfaceTarget{Dev: n.Tap, Managed: "no"},
		Model:  &libvirtxml.DomainInterfaceModel{Type: "virtio"},
		MTU:    &libvirtxml.DomainInterfaceMTU{Size: uint(n.MTU)},
	}
}

// cgroup v2's cpu.weight is 1 to 10,000; each vCPU weighs as one process does.
const (
	sharesPerVCPU = 100
	maxShares     = 10000
)

// limits are the cgroup controllers that work on the host.
type limits struct{ cpu, memory bool }

// apply bounds what the VM takes from the host. The memory bound has to cover
// QEMU itself with its caches: it catches a leak, it does not squeeze a guest.
func (l limits) apply(d *libvirtxml.Domain, s hypervisor.Spec) {
	if l.cpu {
		d.CPUTune = &libvirtxml.DomainCPUTune{
			Shares: &libvirtxml.DomainCPUTuneShares{Value: uint(min(maxShares, sharesPerVCPU*s.VCPUs))}}
	}
	if l.memory {
		room := s.MemoryBytes/4 + tbCacheMiB(s.MemoryBytes)<<20 + 512<<20
		d.MemoryTune = &libvirtxml.DomainMemoryTune{
			HardLimit: &libvirtxml.DomainMemoryTuneLimit{Value: uint64(s.MemoryBytes + room), Unit: "bytes"}}
	}
}
