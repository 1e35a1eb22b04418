// Package vpc holds the nouns and rules of a project's private network: the VPC, its subnets, the interfaces on them,
// and which address and MAC an interface gets. It is pure: what is in use comes in as an argument, the answer goes out.
//
// Subnets of different projects may have the same range. Nothing here, and nothing built on it, may identify an
// instance by its address alone.
package vpc

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// DefaultCIDR is the range of the VPC, and of its one subnet, that each project starts with.
var DefaultCIDR = netip.MustParsePrefix("172.31.0.0/16")

// Subnets are from /16 to /28, as EC2 has them: the smallest still has room beside the reserved addresses.
const (
	minBits = 16
	maxBits = 28
)

// VPC is one private network of a project.
type VPC struct {
	ID        string // vpc- + 10 characters
	ProjectID string
	CIDR      netip.Prefix
	Default   bool // made with the project
}

// Subnet is one layer-2 segment of a VPC.
type Subnet struct {
	ID        string // subnet- + 10 characters
	VPCID     string
	ProjectID string
	CIDR      netip.Prefix // inside the VPC's
	Default   bool
}

// Interface is one network card of an instance. Its address and MAC are fixed for its whole life: a guest matches its
// configuration by MAC.
type Interface struct {
	ID              string // eni- + 10 characters
	SubnetID        string
	VPCID           string
	InstanceID      string // empty while attached to none
	MAC             MAC
	Address         netip.Addr
	DeviceIndex     int  // 0 is the primary interface
	AutoProvisioned bool // made with its instance, and goes with it
}

// ErrInvalidCIDR says that a range cannot be a VPC's or a subnet's.
var ErrInvalidCIDR = errors.New("vpc: invalid range")

// CheckCIDR tells whether a range can be a VPC's or a subnet's: IPv4, /16 to /28, no host bits, private or shared
// address space. The error is ErrInvalidCIDR with what to change.
func CheckCIDR(cidr netip.Prefix) error {
	switch {
	case !cidr.IsValid() || !cidr.Addr().Is4():
		return fmt.Errorf("%w: give an IPv4 range like %s", ErrInvalidCIDR, DefaultCIDR)
	case cidr.Masked() != cidr:
		return fmt.Errorf("%w: %s has bits set behind its length; did you mean %s?", ErrInvalidCIDR, cidr, cidr.Masked())
	case cidr.Bits() < minBits || cidr.Bits() > maxBits:
		return fmt.Errorf("%w: %s is a /%d; use /%d to /%d", ErrInvalidCIDR, cidr, cidr.Bits(), minBits, maxBits)
	case !cidr.Addr().IsPrivate() && !sharedSpace.Contains(cidr.Addr()):
		return fmt.Errorf("%w: %s is not private; use a range of 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or %s",
			ErrInvalidCIDR, cidr, sharedSpace)
	}
	return nil
}

// sharedSpace is RFC 6598's.
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// Gateway is the subnet's router, its first address.
func Gateway(cidr netip.Prefix) netip.Addr { return offset(cidr, 1) }

// DNS is the subnet's name server, its second address.
func DNS(cidr netip.Prefix) netip.Addr { return offset(cidr, 2) }

// Broadcast is the subnet's last address.
func Broadcast(cidr netip.Prefix) netip.Addr { return offset(cidr, size(cidr)-1) }

// Usable tells whether an interface may have the address: inside the subnet and not reserved (network, gateway, DNS,
// broadcast).
func Usable(cidr netip.Prefix, a netip.Addr) bool {
	return cidr.Contains(a) && a.Compare(DNS(cidr)) > 0 && a != Broadcast(cidr)
}

// Capacity is the number of usable addresses of a subnet.
func Capacity(cidr netip.Prefix) int { return int(size(cidr)) - 4 }

func size(cidr netip.Prefix) uint32 { return 1 << (32 - cidr.Bits()) }

func offset(cidr netip.Prefix, n uint32) netip.Addr {
	b := cidr.Masked().Addr().As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += n
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// LeaseTime is how long a guest may use its address without asking again. An address given back is kept out of use for
// as long (lesson 29): the guest that had it may still believe in it.
const LeaseTime = time.Hour

// Quarantined tells whether an address given back at released must still be counted as used.
func Quarantined(released, now time.Time) bool { return now.Before(released.Add(LeaseTime)) }

// ErrExhausted says that a subnet has no free address.
var ErrExhausted = errors.New("vpc: the subnet has no free address left; terminate instances or use another subnet")

// Next is the address for the next interface of a subnet: the first usable one after last for which used is false,
// from the start again when the end is reached. last is the subnet's latest allocation (the zero Addr when there was
// none), so an address given back is the last to be given out again. The caller counts quarantined addresses as used
// and lets a unique constraint on (subnet, address) decide between two that chose at once (lesson 30).
//
// The error is ErrExhausted.
func Next(cidr netip.Prefix, last netip.Addr, used func(netip.Addr) bool) (netip.Addr, error) {
	first := offset(cidr, 3)
	a := first
	if Usable(cidr, last) {
		a = last.Next()
	}
	for range Capacity(cidr) {
		if !Usable(cidr, a) {
			a = first
		}
		if !used(a) {
			return a, nil
		}
		a = a.Next()
	}
	return netip.Addr{}, ErrExhausted
}
