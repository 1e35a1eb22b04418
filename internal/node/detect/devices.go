package detect

import (
	"cmp"
	"slices"
	"strings"
)

// secureBoot reads the EFI variable: four bytes of attributes, one of value
// (UEFI 2.10 section 3.3). A machine that was not started by EFI has none.
func (m machine) secureBoot() *bool {
	const variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	if m.exists("sys/firmware") && !m.exists("sys/firmware/efi") {
		return known(false)
	}
	content := m.bytes(variable)
	if len(content) != 5 || content[4] > 1 {
		return nil
	}
	return known(content[4] == 1)
}

// tpm looks for a TPM device; a kernel without TPM support does not know.
func (m machine) tpm() *bool {
	chips, ok := m.entries("sys/class/tpm")
	if !ok {
		return nil
	}
	return known(len(chips) > 0)
}

const pciDevices = "sys/bus/pci/devices"

// displayOnly are vendors of displays that compute nothing: management
// controllers (ASPEED, Matrox) and hypervisors (QEMU, virtio, Cirrus, VMware,
// VirtualBox).
var displayOnly = []string{"0x1a03", "0x102b", "0x1234", "0x1af4", "0x1b36", "0x1013", "0x15ad", "0x80ee"}

// gpu looks for a display controller (PCI class 03) or a processing accelerator
// (12, which GPUs without a display port report).
func (m machine) gpu() *bool {
	devices, ok := m.entries(pciDevices)
	if !ok {
		return nil
	}
	for _, d := range devices {
		class := m.text(pciDevices + "/" + d + "/class")
		if strings.HasPrefix(class, "0x03") || strings.HasPrefix(class, "0x12") {
			if !slices.Contains(displayOnly, m.text(pciDevices+"/"+d+"/vendor")) {
				return known(true)
			}
		}
	}
	return known(false)
}

// virtualFunctions adds up what the network controllers (PCI class 02) offer.
func (m machine) virtualFunctions() *int64 {
	devices, ok := m.entries(pciDevices)
	if !ok {
		return nil
	}
	total := int64(0)
	for _, d := range devices {
		if strings.HasPrefix(m.text(pciDevices+"/"+d+"/class"), "0x02") {
			if n := m.number(pciDevices + "/" + d + "/sriov_totalvfs"); n != nil {
				total += *n
			}
		}
	}
	return &total
}

// wakeOnLANMACs lists wired cards that are able to wake the machine: those set
// to do so first, then those with a link.
func (m machine) wakeOnLANMACs() []string {
	type card struct {
		mac  string
		rank int
	}
	var cards []card
	names, _ := m.entries("sys/class/net")
	for _, name := range names {
		dir := "sys/class/net/" + name
		const ethernet = "1" // ARPHRD_ETHER
		wakeup := m.text(dir + "/device/power/wakeup")
		if wakeup == "" || m.text(dir+"/type") != ethernet ||
			m.exists(dir+"/wireless") || m.exists(dir+"/device/physfn") {
			continue
		}
		c := card{mac: strings.ToLower(m.text(dir + "/address"))}
		if c.mac == "" || c.mac == "00:00:00:00:00:00" {
			continue
		}
		if wakeup == "enabled" {
			c.rank -= 2
		}
		if m.text(dir+"/operstate") == "up" {
			c.rank--
		}
		cards = append(cards, c)
	}
	slices.SortStableFunc(cards, func(a, b card) int { return cmp.Compare(a.rank, b.rank) })
	var macs []string
	for _, c := range cards {
		macs = append(macs, c.mac)
	}
	return macs
}
