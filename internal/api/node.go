// Package api is the wire: the JSON shapes of the public contracts and of the
// node agent's sync, and the Go client that speaks them.
//
// Names of fields are exact (they are a published contract); a sum or a derived
// value says in its doc tag how it comes about.
package api

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// Heartbeat is what a node agent sends with PUT /v1/compute/nodes/{id}/heartbeat
// (contract N-02, N-04). Unknown fields are ignored: an agent may be newer than
// the server (contract E-05). An optional field that is null counts as omitted.
// DecodeHeartbeat takes what these tags say, and a test holds it to that.
type Heartbeat struct {
	_                struct{}          `json:"-" additionalProperties:"true"`
	Hostname         string            `json:"hostname" minLength:"1" maxLength:"253"`
	Role             string            `json:"role" enum:"hybrid,hypervisor,control-plane,storage"`
	Region           string            `json:"region,omitempty" maxLength:"1024" nullable:"true" doc:"Defaults to the install's default region when omitted."`
	AvailabilityZone string            `json:"availabilityZone,omitempty" maxLength:"1024" nullable:"true" doc:"Defaults to the install's default zone when omitted."`
	Architecture     string            `json:"architecture" enum:"amd64,arm64"`
	Capacity         HeartbeatCapacity `json:"capacity"`
	Capabilities     Labels            `json:"capabilities,omitempty" nullable:"true" doc:"What the node detects. At most 512 entries; keys up to 253, values up to 1,024 characters."`
	BootID           string            `json:"bootId,omitempty" maxLength:"1024" pattern:"^[^\\x00]*$" nullable:"true"`
	MachineID        string            `json:"machineId,omitempty" maxLength:"1024" nullable:"true"`
	WakeOnLanMAC     string            `json:"wakeOnLanMac,omitempty" maxLength:"1024" nullable:"true"`
}

// HeartbeatCapacity is the capacity snapshot of a heartbeat. Absent booleans are
// not reported, which is not false.
type HeartbeatCapacity struct {
	_                     struct{}   `json:"-" additionalProperties:"true"`
	TotalVCPUs            int64      `json:"totalVCPUs" minimum:"0" maximum:"9223372036854775807"`
	ReservedVCPUs         int64      `json:"reservedVCPUs,omitempty" minimum:"0" maximum:"9223372036854775807" nullable:"true"`
	VCPUOvercommitRatio   *float64   `json:"vcpuOvercommitRatio,omitempty" exclusiveMinimum:"0" nullable:"true" doc:"Defaults to 1."`
	CommittedVCPUs        int64      `json:"committedVCPUs,omitempty" minimum:"0" maximum:"9223372036854775807" nullable:"true"`
	TotalMemoryBytes      int64      `json:"totalMemoryBytes" minimum:"0" maximum:"9223372036854775807"`
	ReservedMemoryBytes   int64      `json:"reservedMemoryBytes,omitempty" minimum:"0" maximum:"9223372036854775807" nullable:"true"`
	MemoryOvercommitRatio *float64   `json:"memoryOvercommitRatio,omitempty" exclusiveMinimum:"0" nullable:"true" doc:"Defaults to 1."`
	CommittedMemoryBytes  int64      `json:"committedMemoryBytes,omitempty" minimum:"0" maximum:"9223372036854775807" nullable:"true"`
	TotalDiskBytes        int64      `json:"totalDiskBytes" minimum:"0" maximum:"9223372036854775807"`
	HasGPU                *bool      `json:"hasGPU,omitempty" nullable:"true"`
	HasNestedVirt         *bool      `json:"hasNestedVirt,omitempty" nullable:"true"`
	HasSecureBoot         *bool      `json:"hasSecureBoot,omitempty" nullable:"true"`
	HasTPM                *bool      `json:"hasTPM,omitempty" nullable:"true"`
	Architecture          string     `json:"architecture,omitempty" maxLength:"1024" nullable:"true" doc:"Free text, e.g. the CPU's."`
	KVMVersion            string     `json:"kvmVersion,omitempty" maxLength:"1024" nullable:"true"`
	SampledAt             *time.Time `json:"sampledAt,omitempty" nullable:"true" doc:"The node's own clock; never used to judge liveness."`
}

// Labels are a node's labels, all text (contract N-02, N-12).
type Labels map[string]string

// Schema states the bounds of labels, which tags of a map cannot.
func (Labels) Schema(huma.Registry) *huma.Schema {
	one, key, value, entries := 1, maxCapKey, maxCapValue, maxCapabilities
	s := &huma.Schema{
		Type: huma.TypeObject, MaxProperties: &entries,
		AdditionalProperties: &huma.Schema{Type: huma.TypeString, MaxLength: &value},
		Extensions:           map[string]any{"propertyNames": &huma.Schema{MinLength: &one, MaxLength: &key}},
	}
	s.PrecomputeMessages()
	return s
}

// Node is the operator-facing inventory record (contract N-07).
type Node struct {
	ID                       string            `json:"id"`
	DisplayName              string            `json:"displayName,omitempty"`
	Hostname                 string            `json:"hostname"`
	Role                     string            `json:"role" enum:"hybrid,hypervisor,control-plane,storage"`
	Region                   string            `json:"region"`
	AvailabilityZone         string            `json:"availabilityZone"`
	Architecture             string            `json:"architecture"`
	State                    string            `json:"state" enum:"ready,maintenance,draining,shutting-down,rebooting,off"`
	Maintenance              *NodeMaintenance  `json:"maintenance,omitempty" doc:"Absent on a node that takes part."`
	Liveness                 NodeLiveness      `json:"liveness"`
	Capacity                 HeartbeatCapacity `json:"capacity" doc:"As reported by the node."`
	ReservedVCPUs            int64             `json:"reservedVCPUs" doc:"The effective reservation."`
	ReservedMemoryBytes      int64             `json:"reservedMemoryBytes" doc:"The effective reservation, bytes."`
	ReservationSource        string            `json:"reservationSource" enum:"reported,computed,operator"`
	VCPUOvercommitRatio      float64           `json:"vcpuOvercommitRatio" doc:"The effective ratio."`
	MemoryOvercommitRatio    float64           `json:"memoryOvercommitRatio" doc:"The effective ratio."`
	CommittableVCPUs         int64             `json:"committableVCPUs" doc:"floor((total - reserved) x overcommit); derived, never stored."`
	CommittableMemoryBytes   int64             `json:"committableMemoryBytes" doc:"floor((total - reserved) x overcommit); derived, never stored."`
	CommittedVCPUs           int64             `json:"committedVCPUs" doc:"Sum of the platform's own allocations."`
	CommittedMemoryBytes     int64             `json:"committedMemoryBytes" doc:"Sum of the platform's own allocations, bytes."`
	CommittedDiskBytes       int64             `json:"committedDiskBytes" doc:"Sum of the platform's own allocations, and of detached volumes on the node, bytes."`
	Capabilities             map[string]string `json:"capabilities,omitempty" doc:"Labels in effect: declared over detected."`
	DeclaredCapabilities     map[string]string `json:"declaredCapabilities,omitempty"`
	DetectedCapabilities     map[string]string `json:"detectedCapabilities,omitempty"`
	Overrides                []LabelOverride   `json:"overrides,omitempty" doc:"Labels whose declared value wins over what was detected."`
	CommittedCapabilities    map[string]int64  `json:"committedCapabilities,omitempty" doc:"Units of each countable label that are allocated; an absent key means none. May exceed the total after an operator shrank it."`
	FreeCapabilities         map[string]int64  `json:"freeCapabilities,omitempty" doc:"Units of each countable label that are free, never below zero; an absent key is not reported, which is not zero."`
	Findings                 []Finding         `json:"findings,omitempty"`
	PowerAction              *PowerAction      `json:"powerAction,omitempty" doc:"The latest shutdown or reboot through the API, absent when there never was one."`
	DeclaredOffAt            *time.Time        `json:"declaredOffAt,omitempty" doc:"When an operator declared the node off; until it is heard of again."`
	EnforceReservation       bool              `json:"enforceReservation,omitempty" doc:"On a single-node install the node's agent keeps reservedMemoryBytes for the host's own services, by system.slice's MemoryMin and MemoryLow."`
	HeartbeatIntervalSeconds int64             `json:"heartbeatIntervalSeconds"`
	LastSeenAt               time.Time         `json:"lastSeenAt"`
	CreatedAt                time.Time         `json:"createdAt"`
}

// NodeLiveness is derived on read from the platform's own clock (contract N-23).
type NodeLiveness struct {
	Status      string    `json:"status" enum:"ok,suspect,unreachable"`
	Reason      string    `json:"reason,omitempty"`
	Since       time.Time `json:"since"`
	ClockSkewMS *int64    `json:"clockSkewMs,omitempty" doc:"The node's clock less the platform's at the last beat that carried a sample time; shown, never used."`
}

// Finding is one readiness finding of a node.
type Finding struct {
	Code    string `json:"code"`
	Message string `json:"message" doc:"What it means."`
	// NextStep is the platform's to fill in; an agent need not.
	NextStep string     `json:"nextStep,omitempty" doc:"What to do about it."`
	Since    *time.Time `json:"since,omitempty"`
}

// PatchNode is the body of PATCH /v1/compute/nodes/{id} (contract N-08). A field
// that is absent stays as it is; null goes back to what is computed or reported.
type PatchNode struct {
	DisplayName           *string            `json:"displayName,omitempty" maxLength:"255" doc:"Display label; empty clears it."`
	ReservedVCPUs         Nullable[int64]    `json:"reservedVCPUs,omitzero" minimum:"0"`
	ReservedMemoryBytes   Nullable[int64]    `json:"reservedMemoryBytes,omitzero" minimum:"0"`
	VCPUOvercommitRatio   Nullable[float64]  `json:"vcpuOvercommitRatio,omitzero" exclusiveMinimum:"0"`
	MemoryOvercommitRatio Nullable[float64]  `json:"memoryOvercommitRatio,omitzero" exclusiveMinimum:"0"`
	DeclaredCapabilities  map[string]*string `json:"declaredCapabilities,omitempty" doc:"Labels to declare; null takes one back."`
}

// List is one page of a list of the compute API.
type List[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"nextCursor,omitempty" doc:"Give it as cursor to get the next page; absent on the last one."`
}
