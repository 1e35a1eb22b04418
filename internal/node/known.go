package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/network"
	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// known is what the server last said of networks and of those who are on them. It
// is on disk, so that an agent which starts while the server is away serves the
// guests as the one before did. No goal of a VM is taken from it.
type known struct {
	Subnets   []api.DesiredSubnet   `json:"subnets"`
	Instances []api.DesiredInstance `json:"instances"`
}

// readKnown returns false where nothing is known: then no network is touched.
func readKnown(path string) (k known, ok bool, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if err != nil {
		return known{}, false, fmt.Errorf("what the server last said of the networks: %w; they are left alone until it says so again", err)
	}
	return k, true, nil
}

func (k known) write(path string) error {
	b, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return writeFile(path, b)
}

// after takes in a newer word of the server. A VM that it does not name goes on
// as it is (lesson 3), so its network does too for as long as the node has it.
func (k known) after(subnets []api.DesiredSubnet, set []api.DesiredInstance, here func(id string) bool) known {
	named := map[string]bool{}
	for _, d := range set {
		named[d.ID] = true
	}
	n := known{Subnets: slices.Concat(subnets, k.Subnets), Instances: slices.Clone(set)}
	for _, d := range k.Instances {
		if !named[d.ID] && here(d.ID) {
			n.Instances = append(n.Instances, d)
		}
	}
	return n.used()
}

// without is what is known when a VM that nobody names has left the node.
func (k known) without(id string) known {
	k.Instances = slices.DeleteFunc(slices.Clone(k.Instances), func(d api.DesiredInstance) bool { return d.ID == id })
	return k.used()
}

// used keeps the subnets that somebody is on, each once: the newest word on it.
func (k known) used() known {
	wanted := map[string]bool{}
	for _, d := range k.Instances {
		for _, nic := range d.Interfaces {
			wanted[nic.SubnetID] = true
		}
	}
	subnets := []api.DesiredSubnet{}
	for _, s := range k.Subnets {
		if wanted[s.ID] {
			subnets = append(subnets, s)
			wanted[s.ID] = false
		}
	}
	k.Subnets = subnets
	return k
}

func (k known) names(id string) bool {
	return slices.ContainsFunc(k.Instances, func(d api.DesiredInstance) bool { return d.ID == id })
}

// nicMTU is that of every subnet's devices.
const nicMTU = 1500

// network is what the node has to provide. What cannot be is left out, so that it
// keeps nobody else from their network; the second result says why, by interface.
// Of two that claim the same, the one that the server named last wins.
func (k known) network() (network.Desired, map[string]error) {
	d := network.Desired{}
	bad := map[string]error{}
	ranges := map[string]netip.Prefix{}
	for _, s := range k.Subnets {
		cidr, err := netip.ParsePrefix(s.CIDR)
		if err == nil {
			err = vpc.CheckCIDR(cidr)
		}
		if _, twice := ranges[s.ID]; err != nil || twice {
			continue
		}
		ranges[s.ID] = cidr
		d.Subnets = append(d.Subnets, network.Subnet{ID: s.ID, CIDR: cidr, MTU: nicMTU, Egress: true})
	}
	type claim struct {
		subnet string
		what   any
	}
	taken := map[claim]bool{}
	for _, i := range k.Instances {
		for _, nic := range i.Interfaces {
			p, err := port(i, nic, ranges)
			claims := []claim{{p.SubnetID, p.Address}, {p.SubnetID, p.MAC}, {"", p.Tap()}}
			for _, c := range claims {
				if err == nil && taken[c] {
					err = fmt.Errorf("another interface of this node has %v, too", c.what)
				}
			}
			if err != nil {
				bad[nic.ID] = fmt.Errorf("interface %s: %w", nic.ID, err)
				continue
			}
			for _, c := range claims {
				taken[c] = true
			}
			d.Ports = append(d.Ports, p)
		}
	}
	return d, bad
}

func port(i api.DesiredInstance, nic api.DesiredInterface, ranges map[string]netip.Prefix) (network.Port, error) {
	p := network.Port{ID: nic.ID, InstanceID: i.ID, SubnetID: nic.SubnetID, Hostname: hostname(i)}
	cidr, ok := ranges[nic.SubnetID]
	if !ok {
		return p, fmt.Errorf("the server names no usable subnet %s for it", nic.SubnetID)
	}
	var err error
	if p.Address, err = netip.ParseAddr(nic.Address); err != nil || !vpc.Usable(cidr, p.Address) {
		return p, fmt.Errorf("%q is not a usable address of %s", nic.Address, cidr)
	}
	p.MAC, err = vpc.ParseMAC(nic.MAC)
	return p, err
}

// tap is the name of the device that an interface is plugged into.
func tap(nic api.DesiredInterface) string { return network.Port{ID: nic.ID}.Tap() }
