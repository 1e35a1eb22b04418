// Package metadata is the service that guests find at 169.254.169.254: EC2's instance metadata, so that a guest written
// for EC2 feels at home. Session tokens are always needed, as in IMDSv2.
//
// Who asks is told by where the connection comes from, the subnet's listener and the source address, which the network's
// guard keeps true; no header says it (lesson 28).
package metadata

import (
	"net/netip"
	"time"
)

// PortKey is one port of a node. Addresses alone are ambiguous: subnets of different projects may have the same range.
type PortKey struct {
	SubnetID string
	Address  netip.Addr
}

// Provider knows the instances. It is asked at every request, from many goroutines, and must answer from memory.
//
// The instance behind the pointer is never changed: a new state is a new Instance. The same pointer again spares
// rendering.
type Provider interface {
	Instance(PortKey) (*Instance, bool)
}

// Instance is all that is served about one instance. Empty fields are left out of the tree.
type Instance struct {
	ID        string // i-…
	ProjectID string // EC2's account
	// RerunID is what cloud-init is to take for a new instance's id, so that it runs everything again; empty is ID. Below
	// meta-data, instance-id reads it. The identity document keeps ID and stays signed, but its folder's listing leaves it
	// out: on EC2 cloud-init takes the document for the id when it comes upon it in the listing, and meta-data/instance-id
	// when it does not (DataSourceEc2.get_instance_id). Who wants the document asks for it by name and gets it.
	RerunID        string
	ImageID        string
	Type           string // m1.large; empty for a custom shape
	Hostname       string // with its domain
	Architecture   string // amd64, arm64
	Region, Zone   string
	LaunchedAt     time.Time
	PublicHostname string
	PublicIPv4     netip.Addr
	PlacementGroup string
	Interfaces     []Interface // the primary first
	PublicKeys     []PublicKey
	SecurityGroups []string // none is "default"
	Tags           map[string]string
	UserData       []byte // nil is none: 404
	Options        Options
}

// Interface is one network card of an instance.
type Interface struct {
	ID       string // eni-…
	MAC      string // lower case, colons
	Address  netip.Addr
	SubnetID string
	Subnet   netip.Prefix
	VPCID    string
	VPC      netip.Prefix
}

// PublicKey is an SSH key for the image's default user.
type PublicKey struct {
	Name string // as listed
	Line string // OpenSSH's one-line form
}

// Options are the instance's metadataOptions (contract row U-18), in effect from the next request.
type Options struct {
	Disabled bool // httpEndpoint: disabled; everything answers 403
	HopLimit int  // httpPutResponseHopLimit, 1 to 64; 0 is 1
	Tags     bool // instanceMetadataTags: enabled
}
