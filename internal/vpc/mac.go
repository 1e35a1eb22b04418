package vpc

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
)

// MAC is an Ethernet address. Comparable, and as text always lower case with colons, which is what cloud-init matches.
type MAC [6]byte

// MACOf derives the MAC of an interface from its id: 02 (locally administered, unicast) and 40 bits of a hash. Two ids
// may collide, so the caller holds it unique within the VPC and tries again with try 1, 2, ….
func MACOf(interfaceID string, try int) MAC {
	h := sha256.New()
	h.Write([]byte("outcrop interface mac\x00" + interfaceID))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(try)))
	m := MAC{0x02}
	copy(m[1:], h.Sum(nil))
	return m
}

// ParseMAC reads the usual notations of a 48-bit unicast address.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return MAC{}, fmt.Errorf("vpc: %q is not an Ethernet address like 02:1a:2b:3c:4d:5e", s)
	}
	if hw[0]&1 != 0 {
		return MAC{}, fmt.Errorf("vpc: %q is a group address; an interface needs a unicast one", s)
	}
	return MAC(hw), nil
}

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText makes a MAC a string in JSON.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText wrote, and the other notations of ParseMAC.
func (m *MAC) UnmarshalText(b []byte) (err error) {
	*m, err = ParseMAC(string(b))
	return err
}
