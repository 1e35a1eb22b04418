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

// nextInterface is an instance's interface: the next free address of the subnet
// and a MAC for life. taken are addresses that are given out but not written yet;
// nothing is written here.
func nextInterface(tx *store.Tx, i *compute.Instance, s store.Subnet, taken map[netip.Addr]bool) (*vpc.Interface, error) {
	var probe error
	address, err := vpc.Next(s.CIDR, s.Last, func(a netip.Addr) bool {
		if taken[a] {
			return true
		}
		used, err := tx.AddressTaken(s.ID, a)
		probe = errors.Join(probe, err)
		return used && err == nil
	})
	if err = errors.Join(probe, err); err != nil {
		return nil, err
	}
	f := &vpc.Interface{ID: compute.NewID(compute.NICPrefix), SubnetID: s.ID, InstanceID: i.ID, Address: address, AutoProvisioned: true}
	for try := 0; ; try++ {
		f.MAC = vpc.MACOf(f.ID, try)
		taken, err := tx.MACTaken(s.ID, f.MAC)
		if err != nil || !taken {
			return f, err
		}
	}
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
