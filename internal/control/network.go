package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// defaultSubnet reads the project's default subnet, and makes it and its VPC with
// the project's first instance.
func defaultSubnet(tx *store.Tx, project string) (store.Subnet, error) {
	s, err := tx.DefaultSubnet(project)
	if !errors.Is(err, store.ErrNotFound) {
		return s, err
	}
	v := vpc.VPC{ID: compute.NewID(compute.VPCPrefix), ProjectID: project, CIDR: vpc.DefaultCIDR, Default: true}
	sub := vpc.Subnet{ID: compute.NewID(compute.SubnetPrefix), VPCID: v.ID, ProjectID: project, CIDR: vpc.DefaultCIDR, Default: true}
	if err := tx.InsertDefaultVPC(v, sub); err != nil {
		return s, err
	}
	return tx.DefaultSubnet(project)
}

// subnetFor is the subnet that a create asks for.
func subnetFor(tx *store.Tx, project string, asked []string) (store.Subnet, error) {
	switch {
	case len(asked) == 0:
		return defaultSubnet(tx, project)
	case len(asked) > 1:
		return store.Subnet{}, fault.InvalidFields([]fault.Field{{Path: "subnetIds", Message: "an instance has one interface in this version; name one subnet"}})
	}
	s, err := tx.Subnet(project, asked[0])
	if errors.Is(err, store.ErrNotFound) {
		err = fault.InvalidFields([]fault.Field{{Path: "subnetIds[0]", Message: fmt.Sprintf("there is no subnet %q in this project; leave it out for the default one", asked[0])}})
	}
	return s, err
}

// openSubnet is a subnet while a transaction gives out its addresses.
type openSubnet struct {
	store.Subnet
	taken map[netip.Addr]bool // what is known of addresses; those given out here count as taken
}

// openForBatch looks at the addresses that are next, all at once.
func openForBatch(tx *store.Tx, s store.Subnet, n int) (*openSubnet, error) {
	next := make([]netip.Addr, 0, n)
	last := s.Last
	for range n {
		a, err := vpc.Next(s.CIDR, last, func(netip.Addr) bool { return false })
		if err != nil || len(next) > 0 && a == next[0] {
			break // the subnet has no more
		}
		next, last = append(next, a), a
	}
	taken, err := tx.AddressesTaken(s.ID, next)
	if err != nil {
		return nil, err
	}
	for _, a := range next {
		if !taken[a] {
			taken[a] = false // known to be free
		}
	}
	return &openSubnet{s, taken}, nil
}

// nextInterface is an instance's interface: the next free address of the subnet
// and a MAC for life. Nothing is written. That two cards have one MAC is as good as
// impossible, and then refused by the table; the next try draws another id.
func nextInterface(tx *store.Tx, i *compute.Instance, s *openSubnet) (*vpc.Interface, error) {
	var probe error
	address, err := vpc.Next(s.CIDR, s.Last, func(a netip.Addr) bool {
		if used, known := s.taken[a]; known {
			return used
		}
		used, err := tx.AddressTaken(s.ID, a)
		probe = errors.Join(probe, err)
		return used && err == nil
	})
	if err = errors.Join(probe, err); err != nil {
		return nil, err
	}
	f := &vpc.Interface{ID: compute.NewID(compute.NICPrefix), SubnetID: s.ID, InstanceID: i.ID, Address: address, AutoProvisioned: true}
	f.MAC = vpc.MACOf(f.ID, 0)
	s.Last, s.taken[address] = address, true
	return f, nil
}

// ListSubnets answers the subnets of a project.
func (c *Control) ListSubnets(ctx context.Context, who iam.Caller, project string) (api.List[api.Subnet], error) {
	out := api.List[api.Subnet]{Items: []api.Subnet{}}
	if err := iam.Allow(who, iam.ListSubnets, iam.Scope{ProjectID: project}); err != nil {
		return out, err
	}
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		if err := projectExists(tx, project); err != nil {
			return err
		}
		rows, err := tx.Subnets(project)
		for _, s := range rows {
			out.Items = append(out.Items, api.Subnet{ID: s.ID, VPCID: s.VPCID, CIDR: s.CIDR.String(), Default: s.Default})
		}
		return err
	})
	return out, err
}
