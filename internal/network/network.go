// Package network is what a node does on the wire for its instances: a bridge per subnet, a tap per instance, address
// and name service, the way out, and the rules that keep each guest to its own address.
//
// Each subnet has a router: a network namespace of its own, joined to the subnet's bridge by one veth pair and to the
// host by another. The gateway, DNS and metadata addresses live in there, never in the host's namespace. So subnets of
// different projects may have the same range, or the host's own range, and nothing clashes; and a guest reaches no
// service of the host, because the host has no address on any bridge.
//
//	guest ── oct… (tap) ── ocb… (bridge) ── ocr… ══ guest [router] uplink ══ ocx… ── host's routes, masquerade
//
// The kernel's objects are the state: a Converge looks at what is there, by name, and makes it what is wanted. It may be
// killed at any step and run again.
package network

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// MetadataAddr is where a guest finds its metadata service, in every subnet.
var MetadataAddr = netip.MustParseAddr("169.254.169.254")

// Network makes the node's networks what is desired. Kernel is the real one, Fake records.
type Network interface {
	// Converge makes, changes and removes until the node has exactly the desired subnets and ports, and returns when
	// the taps can be used. A subnet or port that fails does not keep the others from being made; the error joins
	// all of a run, PortFailure tells which port is concerned, and the next run tries again. A desired set that
	// contradicts itself changes nothing.
	Converge(ctx context.Context, desired Desired) error

	// Close ends the services (DHCP, DNS, metadata listeners). Bridges, taps, routers and rules stay, so that the
	// guests keep their network while the agent is restarted.
	Close() error
}

// PortFailure is what keeps a port from being usable, going by the error of a Converge; nil when nothing does.
func PortFailure(err error, portID string) error {
	if many, joined := err.(interface{ Unwrap() []error }); joined {
		var mine []error
		for _, e := range many.Unwrap() {
			mine = append(mine, PortFailure(e, portID))
		}
		return errors.Join(mine...)
	}
	if f, ok := err.(*failure); ok && f.port != portID {
		return nil
	}
	return err
}

// failure concerns one port, or none of the desired ones when it names none. Any other error concerns all.
type failure struct {
	port string
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Desired is all that a node should have. What is not in it is removed, so a node agent that has not yet heard what is
// desired does not converge.
type Desired struct {
	Subnets []Subnet
	Ports   []Port
}

// Subnet is one layer-2 segment on this node.
type Subnet struct {
	ID     string // subnet-…
	CIDR   netip.Prefix
	MTU    int    // of bridge, taps and guests; 0 is 1500
	Egress bool   // whether guests have a way out by the host's routes
	Domain string // of the guests' own names; empty is "internal"
}

// Port is one interface of an instance on this node.
type Port struct {
	ID         string // eni-…
	InstanceID string
	SubnetID   string
	MAC        vpc.MAC
	Address    netip.Addr
	Hostname   string // one label; resolves in the subnet as does the instance id
}

// Tap is the name of the port's tap device, for the hypervisor to open. It is made by Converge and persists:
// <interface type='ethernet'><target dev='…' managed='no'/>.
func (p Port) Tap() string { return deviceName(tapPrefix, p.ID) }

// Names of our devices: a prefix by kind and ten characters of the id of what it is for (15 are allowed).
const (
	tapPrefix    = "oct"
	bridgePrefix = "ocb"
	routerPrefix = "ocr" // the bridge's end of the veth pair into the router
	uplinkPrefix = "ocx" // the host's end of the veth pair into the router
)

var (
	idShape     = regexp.MustCompile(`^[a-z]+-([a-z0-9]{10})$`)
	deviceShape = regexp.MustCompile(`^oc[tbrx][a-z0-9]{10}$`)
)

// deviceName keeps the id's random part where the id has our shape, for people, and hashes any other.
func deviceName(prefix, id string) string {
	if m := idShape.FindStringSubmatch(id); m != nil {
		return prefix + m[1]
	}
	sum := sha256.Sum256([]byte(id))
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:10]
}

const (
	defaultMTU    = 1500
	minMTU        = 576 // RFC 791; below it IPv4 and DHCP are not promised
	maxMTU        = 65521
	defaultDomain = "internal"
)

// normalise fills the defaults and tells of every contradiction at once.
func (d Desired) normalise() (Desired, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("network: "+format, args...)) }
	out := Desired{Subnets: make([]Subnet, 0, len(d.Subnets)), Ports: d.Ports}
	byID := map[string]Subnet{}
	devices := map[string]string{}
	for _, s := range d.Subnets {
		if s.MTU == 0 {
			s.MTU = defaultMTU
		}
		if s.Domain == "" {
			s.Domain = defaultDomain
		}
		bridge := deviceName(bridgePrefix, s.ID)
		if err := vpc.CheckCIDR(s.CIDR); err != nil {
			bad("subnet %q: %w", s.ID, err)
		}
		if s.MTU < minMTU || s.MTU > maxMTU {
			bad("subnet %q: MTU %d is not from %d to %d", s.ID, s.MTU, minMTU, maxMTU)
		}
		if other, twice := devices[bridge]; twice {
			bad("subnets %q and %q would have the same bridge", other, s.ID)
		}
		devices[bridge], byID[s.ID] = s.ID, s
		out.Subnets = append(out.Subnets, s)
	}
	type key struct {
		subnet string
		what   any
	}
	seen := map[key]string{}
	for _, p := range d.Ports {
		s, ok := byID[p.SubnetID]
		if !ok {
			bad("port %q is on subnet %q, which is not on this node", p.ID, p.SubnetID)
			continue
		}
		if !vpc.Usable(s.CIDR, p.Address) {
			bad("port %q: %s is not a usable address of %s", p.ID, p.Address, s.CIDR)
		}
		if p.MAC == (vpc.MAC{}) || p.MAC[0]&1 != 0 {
			bad("port %q: %s is not a unicast MAC", p.ID, p.MAC)
		}
		if other, twice := devices[p.Tap()]; twice {
			bad("ports %q and %q would have the same tap", other, p.ID)
		}
		devices[p.Tap()] = p.ID
		for _, k := range []key{{s.ID, p.Address}, {s.ID, p.MAC}} {
			if other, twice := seen[k]; twice {
				bad("ports %q and %q both have %v", other, p.ID, k.what)
			}
			seen[k] = p.ID
		}
	}
	return out, errors.Join(errs...)
}
