package detect

import (
	"encoding/binary"
	"io/fs"
)

// ecc asks the memory controllers' drivers first, since they see what is in
// force, then the firmware's table.
func (m machine) ecc() *bool {
	if found := m.edac(); found != nil {
		return found
	}
	return memoryArrays(m.bytes("sys/firmware/dmi/tables/DMI"))
}

// edac reads the mode of each memory module, as the kernel's EDAC drivers name
// it: "None", "Unknown", "Reserved", "PARITY", "EC" or a code such as "SECDED".
func (m machine) edac() *bool {
	const dir = "sys/devices/system/edac/mc"
	controllers, _ := m.entries(dir)
	var found *bool
	for _, mc := range controllers {
		modules, _ := m.entries(dir + "/" + mc)
		for _, module := range modules {
			switch mode := m.text(dir + "/" + mc + "/" + module + "/dimm_edac_mode"); mode {
			case "", "Unknown", "Reserved":
			case "None", "PARITY":
				return known(false) // one module without spoils it
			default:
				found = known(true)
			}
		}
	}
	return found
}

// memoryArrays looks through an SMBIOS table for arrays of system memory (type
// 16) and their error correction (SMBIOS 3.6 section 7.17). It returns nil when
// there is none, or one that does not say.
func memoryArrays(table []byte) *bool {
	const (
		physicalMemoryArray = 16
		useSystem           = 3
		eccNone, eccParity  = 3, 4
		eccSingle, eccMulti = 5, 6
	)
	var found *bool
	for len(table) >= 4 && int(table[1]) >= 4 && int(table[1]) <= len(table) {
		s := table[:table[1]]
		if s[0] == physicalMemoryArray && len(s) >= 7 && s[5] == useSystem {
			switch s[6] {
			case eccNone, eccParity:
				return known(false)
			case eccSingle, eccMulti:
				found = known(true)
			default:
				return nil
			}
		}
		table = afterStrings(table[len(s):])
	}
	return found
}

// afterStrings skips the text of a structure, which ends with two NULs.
func afterStrings(b []byte) []byte {
	for len(b) >= 2 {
		if binary.LittleEndian.Uint16(b) == 0 {
			return b[2:]
		}
		b = b[1:]
	}
	return nil
}

// bytes returns a file as it is; nil when it cannot be read.
func (m machine) bytes(path string) []byte {
	content, err := fs.ReadFile(m, path)
	if err != nil {
		return nil
	}
	return content
}
