package compute

import (
	"maps"
	"time"
)

// Role of a node (contract N-03).
type Role string

const (
	RoleHybrid       Role = "hybrid"
	RoleHypervisor   Role = "hypervisor"
	RoleControlPlane Role = "control-plane"
	RoleStorage      Role = "storage"
)

// Roles are all roles that a heartbeat may name.
var Roles = []Role{RoleHybrid, RoleHypervisor, RoleControlPlane, RoleStorage}

// RunsInstances reports whether the scheduler may place instances on the role.
func (r Role) RunsInstances() bool { return r == RoleHybrid || r == RoleHypervisor }

// Architectures that a heartbeat may name at its top level (contract N-04).
var Architectures = []string{"amd64", "arm64"}

// NodeState is what the platform holds a node to be (contract N-23).
type NodeState string

const (
	NodeReady        NodeState = "ready"
	NodeMaintenance  NodeState = "maintenance"
	NodeDraining     NodeState = "draining"
	NodeShuttingDown NodeState = "shutting-down"
	NodeRebooting    NodeState = "rebooting"
	NodeOff          NodeState = "off"
)

// Capacity is what a node says about its size, as reported (contract N-04).
// A nil bool means not reported, which is not false.
type Capacity struct {
	TotalVCPUs            int64
	ReservedVCPUs         int64
	VCPUOvercommitRatio   float64
	CommittedVCPUs        int64 // the agent's own count, for audit only
	TotalMemoryBytes      int64
	ReservedMemoryBytes   int64
	MemoryOvercommitRatio float64
	CommittedMemoryBytes  int64 // the agent's own count, for audit only
	TotalDiskBytes        int64
	HasGPU                *bool
	HasNestedVirt         *bool
	HasSecureBoot         *bool
	HasTPM                *bool
	Architecture          string // free text
	KVMVersion            string
}

// NodeFacts is what a heartbeat says and what changes rarely. The moment of the
// sample and the boot id change often and stand in Liveness.
type NodeFacts struct {
	Hostname         string
	Role             Role
	Region           string // the install's default when not reported
	AvailabilityZone string
	Architecture     string
	Capacity         Capacity
	Capabilities     map[string]string // detected
	MachineID        string
	WakeOnLanMAC     string
}

// Equal reports whether a heartbeat with facts g changes nothing. It runs for
// every heartbeat, so it does not use reflection.
func (f *NodeFacts) Equal(g *NodeFacts) bool {
	a, b := &f.Capacity, &g.Capacity
	return f.Hostname == g.Hostname && f.Role == g.Role && f.Region == g.Region &&
		f.AvailabilityZone == g.AvailabilityZone && f.Architecture == g.Architecture &&
		f.MachineID == g.MachineID && f.WakeOnLanMAC == g.WakeOnLanMAC &&
		a.TotalVCPUs == b.TotalVCPUs && a.ReservedVCPUs == b.ReservedVCPUs &&
		a.VCPUOvercommitRatio == b.VCPUOvercommitRatio && a.CommittedVCPUs == b.CommittedVCPUs &&
		a.TotalMemoryBytes == b.TotalMemoryBytes && a.ReservedMemoryBytes == b.ReservedMemoryBytes &&
		a.MemoryOvercommitRatio == b.MemoryOvercommitRatio && a.CommittedMemoryBytes == b.CommittedMemoryBytes &&
		a.TotalDiskBytes == b.TotalDiskBytes && a.Architecture == b.Architecture && a.KVMVersion == b.KVMVersion &&
		sameBool(a.HasGPU, b.HasGPU) && sameBool(a.HasNestedVirt, b.HasNestedVirt) &&
		sameBool(a.HasSecureBoot, b.HasSecureBoot) && sameBool(a.HasTPM, b.HasTPM) &&
		maps.Equal(f.Capabilities, g.Capabilities)
}

func sameBool(a, b *bool) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// NodeSpec is what an operator wants of a node. Nil means not set: the reported
// or computed value holds.
type NodeSpec struct {
	DisplayName           string
	ReservedVCPUs         *int64
	ReservedMemoryBytes   *int64
	VCPUOvercommitRatio   *float64
	MemoryOvercommitRatio *float64
	DeclaredCapabilities  map[string]string
	Computed              bool // single-node install: reservation follows the node's size
}

// ReservationSource says who wrote a reservation (contract N-09).
type ReservationSource string

const (
	ReservationReported ReservationSource = "reported"
	ReservationComputed ReservationSource = "computed"
	ReservationOperator ReservationSource = "operator"
)

// Usage is what the platform has handed out on a node: the sum of its
// allocation rows, never a counter.
type Usage struct {
	VCPUs       int64
	MemoryBytes int64
	DiskBytes   int64
}

// Liveness is what every heartbeat writes.
type Liveness struct {
	SeenAt    time.Time // the platform's clock
	SampledAt time.Time // the node's clock; zero when it did not say
	BootID    string
}

// Node is one machine: what it says, what is wanted of it, what it holds.
type Node struct {
	ID    string
	Facts NodeFacts
	Spec  NodeSpec
	// Maintenance, Power and Identity stand apart from what is observed: State
	// follows from them (contract N-23).
	Maintenance Maintenance
	Power       PowerAction
	Identity    Identity
	Used        Usage
	Held        map[string]int64 // units of countable labels that are allocated
	Liveness    Liveness
	CreatedAt   time.Time
	Revision    int64 // bumped by every change but the liveness
	// Standing says since when each finding of Node.Findings stands.
	Standing map[string]time.Time
}

// State is what the platform holds the node to be. While a power action is in
// progress the state follows it, and the one from before returns by itself
// (contract N-19, N-23).
func (n *Node) State() NodeState {
	switch {
	case !n.Maintenance.DeclaredOff.IsZero(), n.Power.State == PowerOff:
		return NodeOff
	case n.Power.State == PowerShuttingDown:
		return NodeShuttingDown
	case n.Power.State == PowerRebooting:
		return NodeRebooting
	case n.Maintenance.Mode != "":
		return n.Maintenance.Mode
	}
	return NodeReady
}

// Calm reports whether a heartbeat of the boot changes nothing but the moment at
// which the node was seen.
func (n *Node) Calm(bootID string) bool {
	return n.Liveness.BootID == bootID && len(n.Identity.Claimants) == 0 && !n.Power.Open() && n.Maintenance.DeclaredOff.IsZero()
}

// Heard takes in that the node was heard of, before its liveness is written, and
// says whether the record changed. Another boot counts as a change, so that no
// server goes on with what it remembers of the last one.
func (n *Node) Heard(bootID string, now time.Time) bool {
	changed := n.Liveness.BootID != bootID
	if m := &n.Maintenance; !m.DeclaredOff.IsZero() {
		m.DeclaredOff, m.ReturnedAt, changed = time.Time{}, now, true
	}
	return n.Power.heard(bootID, now) || changed
}

// Reservation is the effective reservation and who wrote it. A value set by the
// operator wins; each of the two resources stands on its own.
func (n *Node) Reservation() (Reservation, ReservationSource) {
	c := &n.Facts.Capacity
	r, src := Reservation{c.ReservedVCPUs, c.ReservedMemoryBytes}, ReservationReported
	if n.Spec.Computed {
		r, src = ComputedReservation(c.TotalVCPUs, c.TotalMemoryBytes), ReservationComputed
	}
	if v := n.Spec.ReservedVCPUs; v != nil {
		r.VCPUs, src = *v, ReservationOperator
	}
	if v := n.Spec.ReservedMemoryBytes; v != nil {
		r.MemoryBytes, src = *v, ReservationOperator
	}
	return r, src
}

// Ratios are the effective overcommit ratios.
func (n *Node) Ratios() (vcpu, memory float64) {
	vcpu, memory = n.Facts.Capacity.VCPUOvercommitRatio, n.Facts.Capacity.MemoryOvercommitRatio
	if v := n.Spec.VCPUOvercommitRatio; v != nil {
		vcpu = *v
	}
	if v := n.Spec.MemoryOvercommitRatio; v != nil {
		memory = *v
	}
	return vcpu, memory
}

// Committable is what the node can have committed in all, derived on every read
// and never stored (contract N-11). Disk has no ratio and no reservation.
func (n *Node) Committable() Usage {
	r, _ := n.Reservation()
	vcpu, memory := n.Ratios()
	c := &n.Facts.Capacity
	return Usage{
		VCPUs:       Committable(c.TotalVCPUs, r.VCPUs, vcpu),
		MemoryBytes: Committable(c.TotalMemoryBytes, r.MemoryBytes, memory),
		DiskBytes:   c.TotalDiskBytes,
	}
}

// LivenessStatus is derived on read from the platform's own clock (contract N-23).
type LivenessStatus string

const (
	LivenessOK          LivenessStatus = "ok"
	LivenessSuspect     LivenessStatus = "suspect"
	LivenessUnreachable LivenessStatus = "unreachable"
)

// MissedIntervals is how many missed heartbeats make a node unreachable for
// placement (contract N-06).
const MissedIntervals = 3

// Status judges a node that was last seen at l.SeenAt. Nobody is judged before
// one full window has passed since the judge began to listen, so that a restart
// of the server never makes a live fleet look dead (lesson 2). since is when the
// status began.
func (l Liveness) Status(now, listening time.Time, interval time.Duration) (status LivenessStatus, since time.Time) {
	from := l.SeenAt
	if listening.After(from) {
		from = listening
	}
	switch quiet := now.Sub(from); {
	case quiet > MissedIntervals*interval:
		return LivenessUnreachable, from.Add(MissedIntervals * interval)
	case quiet > interval+interval/2:
		return LivenessSuspect, from.Add(interval + interval/2)
	default:
		return LivenessOK, l.SeenAt
	}
}
