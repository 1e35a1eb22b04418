package store

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

const subnetSelect = `SELECT s.id, s.vpc_id, s.project_id, s.cidr, s.is_default, s.last_address, v.cidr FROM subnets s JOIN vpcs v ON v.id = s.vpc_id `

// Subnet is a subnet with the range of its VPC and the address given out last.
type Subnet struct {
	vpc.Subnet
	VPCCIDR netip.Prefix
	Last    netip.Addr // zero: none yet
}

func scanSubnet(scan scanFunc) (s Subnet, err error) {
	var cidr, last, vpcCIDR string
	if err = scan(&s.ID, &s.VPCID, &s.ProjectID, &cidr, &s.Default, &last, &vpcCIDR); err != nil {
		return s, err
	}
	if s.CIDR, err = netip.ParsePrefix(cidr); err != nil {
		return s, err
	}
	if s.VPCCIDR, err = netip.ParsePrefix(vpcCIDR); err != nil {
		return s, err
	}
	if last != "" {
		s.Last, err = netip.ParseAddr(last)
	}
	return s, err
}

// DefaultSubnet reads the subnet that a project's instances go into where the
// create names none; ErrNotFound before the first one.
func (tx *Tx) DefaultSubnet(projectID string) (Subnet, error) {
	return one(tx, subnetSelect+`WHERE s.project_id = $1 AND s.is_default`, []any{projectID}, scanSubnet)
}

// Subnet reads a subnet of a project; ErrNotFound also for another project's.
func (tx *Tx) Subnet(projectID, id string) (Subnet, error) {
	return one(tx, subnetSelect+`WHERE s.id = $1 AND s.project_id = $2`, []any{id, projectID}, scanSubnet)
}

// Subnets reads all subnets of a project.
func (tx *Tx) Subnets(projectID string) ([]Subnet, error) {
	return list(tx, subnetSelect+`WHERE s.project_id = $1 ORDER BY s.created_at, s.id`, []any{projectID}, scanSubnet)
}

// SubnetsOn reads the subnets that instances on a node have cards in.
func (tx *Tx) SubnetsOn(nodeID string) ([]Subnet, error) {
	return list(tx, subnetSelect+`WHERE s.id IN (SELECT f.subnet_id FROM interfaces f JOIN instances i ON i.id = f.instance_id
		WHERE i.node_id = $1 AND i.node_id <> '' AND i.state <> 'terminated') ORDER BY s.id`, []any{nodeID}, scanSubnet)
}

// InsertDefaultVPC makes the network that every project starts with. Where another
// server has made it meanwhile, the transaction is run again.
func (tx *Tx) InsertDefaultVPC(v vpc.VPC, s vpc.Subnet) error {
	if err := tx.must(errCrossed, `INSERT INTO vpcs (id, project_id, cidr, is_default, created_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING`,
		v.ID, v.ProjectID, v.CIDR.String(), true, micros(tx.Now)); err != nil {
		return err
	}
	_, err := tx.exec(`INSERT INTO subnets (id, vpc_id, project_id, cidr, is_default, last_address, created_at) VALUES ($1, $2, $3, $4, $5, '', $6)`,
		s.ID, v.ID, v.ProjectID, s.CIDR.String(), true, micros(tx.Now))
	return err
}

// AddressTaken reports whether an address of a subnet must not be given out: a
// card has it, or gave it back less than a lease time ago.
func (tx *Tx) AddressTaken(subnetID string, a netip.Addr) (bool, error) {
	var n int64
	err := tx.get(`SELECT COUNT(*) FROM interfaces WHERE subnet_id = $1 AND address = $2`, []any{subnetID, a.String()}, &n)
	return n > 0, err
}

// AddressesTaken is AddressTaken for many addresses: those of list that must not be
// given out.
func (tx *Tx) AddressesTaken(subnetID string, list []netip.Addr) (map[netip.Addr]bool, error) {
	taken := make(map[netip.Addr]bool)
	for some := range slices.Chunk(list, tx.rows*beatColumns) {
		var args []any
		for _, a := range some {
			args = append(args, a.String())
		}
		// A join, not a long IN: PostgreSQL was seen to compare each address of the
		// subnet with each of such a list.
		err := tx.each(`SELECT f.address FROM (VALUES `+values([]string{"TEXT"}, len(some))+`) AS v JOIN interfaces f ON f.address = v.column1 AND f.subnet_id = $`+
			strconv.Itoa(len(some)+1), append(args, subnetID), func(scan scanFunc) error {
			var text string
			if err := scan(&text); err != nil {
				return err
			}
			a, err := netip.ParseAddr(text)
			taken[a] = true
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return taken, nil
}

// setLastAddress notes a card's address as its subnet's latest.
func (tx *Tx) setLastAddress(f *vpc.Interface) error {
	_, err := tx.exec(`UPDATE subnets SET last_address = $2 WHERE id = $1`, f.SubnetID, f.Address.String())
	return err
}

// ReleaseInterfaces gives back the cards of an instance; their addresses rest for
// a lease time.
func (tx *Tx) ReleaseInterfaces(instanceID string) error {
	_, err := tx.exec(`UPDATE interfaces SET released_at = $2, instance_id = '' WHERE instance_id = $1 AND instance_id <> ''`, instanceID, micros(tx.Now))
	return err
}

// ForgetReleased removes cards that were given back before t.
func (tx *Tx) ForgetReleased(t time.Time) error {
	_, err := tx.exec(`DELETE FROM interfaces WHERE released_at <> 0 AND released_at < $1`, micros(t))
	return err
}

const interfaceSelect = `SELECT f.id, f.subnet_id, s.vpc_id, f.instance_id, f.device_index, f.mac, f.address, f.auto FROM interfaces f JOIN subnets s ON s.id = f.subnet_id `

func scanInterface(scan scanFunc) (f vpc.Interface, err error) {
	var mac, address string
	if err = scan(&f.ID, &f.SubnetID, &f.VPCID, &f.InstanceID, &f.DeviceIndex, &mac, &address, &f.AutoProvisioned); err != nil {
		return f, err
	}
	if f.MAC, err = vpc.ParseMAC(mac); err != nil {
		return f, err
	}
	f.Address, err = netip.ParseAddr(address)
	return f, err
}
