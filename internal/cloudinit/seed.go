// Package cloudinit makes what a guest's cloud-init reads from its seed disk (the
// NoCloud data source) and looks over user-data before it is sent to a guest.
//
// It is pure: bytes in, bytes out, nothing of the machine it runs on. The same seed
// always makes the same image, byte for byte.
package cloudinit

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxUserData is the most user-data that an instance can have, in bytes as they are
// sent (contract row U-01: 64 KiB, nothing is encoded on the way).
const MaxUserData = 64 << 10

// The names of the seed's files, as cloud-init's NoCloud data source looks for them.
const (
	fileMetaData      = "meta-data"
	fileNetworkConfig = "network-config"
	fileUserData      = "user-data"
	fileVendorData    = "vendor-data"
)

// vendorData is a cloud-config that asks for nothing. An empty file would do for the
// format, but some versions of cloud-init log a warning over it.
const vendorData = "#cloud-config\n{}\n"

// Seed is what one instance's cloud-init gets to know.
type Seed struct {
	// InstanceID tells cloud-init whether this is a first boot: as long as it stays the
	// same, user-data that ran once does not run again.
	InstanceID string
	// Hostname is the guest's own name for itself. Empty means: InstanceID.
	Hostname string
	// PublicKeys are lines for the default user's authorized_keys. White space around
	// a key is dropped and so is a key that is nothing else.
	PublicKeys []string
	// UserData reaches the guest exactly as it is here: 0 to MaxUserData bytes of any kind.
	UserData []byte
	// Interfaces are all NICs of the instance; each gets its address by DHCP. None is a
	// valid choice: cloud-init then leaves the network alone.
	Interfaces []Interface
}

// Interface is one NIC of the guest.
type Interface struct {
	// MAC is the Ethernet address, in any notation of net.ParseMAC; it finds the NIC.
	MAC string
	// Name is what the guest shall call the NIC: 1 to 15 characters. Empty leaves the
	// guest's own name, which is right for Windows: there a rename breaks the adapter.
	Name string
}

// File is one file of a seed.
type File struct {
	Name string
	Data []byte
}

// Files returns the seed's four files, sorted by name. All four are always there, even
// where one has nothing to say: cloud-init ignores a seed without user-data or
// meta-data. An error names what in the seed cannot be carried; it never quotes
// user-data or a key.
func (s Seed) Files() ([]File, error) {
	if len(s.UserData) > MaxUserData {
		return nil, fmt.Errorf("user-data has %d bytes, at most %d fit: compress it with gzip or fetch the rest from the guest", len(s.UserData), MaxUserData)
	}
	meta, err := s.metaData()
	if err != nil {
		return nil, err
	}
	network, err := s.networkConfig()
	if err != nil {
		return nil, err
	}
	return []File{
		{fileMetaData, meta},
		{fileNetworkConfig, network},
		{fileUserData, s.UserData},
		{fileVendorData, []byte(vendorData)},
	}, nil
}

func (s Seed) metaData() ([]byte, error) {
	if s.InstanceID == "" {
		return nil, errors.New("the seed needs an instance id: without one cloud-init takes every boot for the same instance")
	}
	hostname := s.Hostname
	if hostname == "" {
		hostname = s.InstanceID
	}
	if !utf8.ValidString(s.InstanceID) || !utf8.ValidString(hostname) {
		return nil, errors.New("the instance id or the host name is not valid UTF-8: use ASCII")
	}
	keys, err := publicKeys(s.PublicKeys)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "instance-id: %s\nlocal-hostname: %s\n", quote(s.InstanceID), quote(hostname))
	if len(keys) == 0 {
		b.WriteString("public-keys: []\n")
		return b.Bytes(), nil
	}
	b.WriteString("public-keys:\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "  - %s\n", quote(k))
	}
	return b.Bytes(), nil
}

// publicKeys trims the keys and refuses what would be more than one line of
// authorized_keys: such a second line would be a key (or an option) nobody asked for.
func publicKeys(in []string) ([]string, error) {
	var out []string
	for i, k := range in {
		k = strings.TrimSpace(k)
		if k == "" {
			continue
		}
		if !utf8.ValidString(k) || strings.ContainsFunc(k, unicode.IsControl) {
			return nil, fmt.Errorf("public key %d is not one line of text: give each key as an entry of its own", i)
		}
		out = append(out, k)
	}
	return out, nil
}

// networkConfig writes version 2 of cloud-init's format. Each NIC is found by its MAC,
// in lower case since cloud-init compares text. Without any NIC the list is empty but
// the document is not: on an empty one cloud-init would try DHCP by itself and wait.
func (s Seed) networkConfig() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("version: 2\n")
	if len(s.Interfaces) == 0 {
		b.WriteString("ethernets: {}\n")
		return b.Bytes(), nil
	}
	b.WriteString("ethernets:\n")
	seen := map[string]bool{}
	for i, nic := range s.Interfaces {
		mac, err := net.ParseMAC(nic.MAC)
		if err != nil || len(mac) != 6 {
			return nil, fmt.Errorf("interface %d: %q is not an Ethernet address", i, nic.MAC)
		}
		if nic.Name != "" && !validName(nic.Name) {
			return nil, fmt.Errorf("interface %d: %q is not a name for a network interface: use 1 to 15 letters, digits, '-', '_' and '.'", i, nic.Name)
		}
		if seen[mac.String()] || seen[nic.Name] {
			return nil, fmt.Errorf("interface %d has the address or the name of an earlier one", i)
		}
		seen[mac.String()] = true
		fmt.Fprintf(&b, "  nic%d:\n    match:\n      macaddress: %s\n", i, quote(mac.String()))
		if nic.Name != "" {
			seen[nic.Name] = true
			fmt.Fprintf(&b, "    set-name: %s\n", quote(nic.Name))
		}
		b.WriteString("    dhcp4: true\n")
	}
	return b.Bytes(), nil
}

// validName is narrower than the kernel (IFNAMSIZ - 1 = 15 bytes, no '/' or white
// space): only what every renderer of cloud-init writes into its files unharmed.
func validName(s string) bool {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.", r)
	}
	return len(s) <= 15 && s != "." && s != ".." && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) })
}

// quote makes s one YAML double-quoted scalar of printable ASCII, so that no value can
// end the scalar or the line. Go's escapes are a subset of YAML's (YAML 1.2 section
// 5.7); the one that differs, \xNN for a byte that is not UTF-8, is ruled out before.
func quote(s string) string {
	return strconv.QuoteToASCII(s)
}
