package api

import "time"

// PlacementGroup is a set of instances with a rule about where they stand.
type PlacementGroup struct {
	ID         string    `json:"id"`
	ProjectID  string    `json:"projectId"`
	Name       string    `json:"name"`
	Kind       string    `json:"kind" enum:"spread,cluster,partition" doc:"spread: at most one member per domain of the level. cluster: all in one. partition: no domain holds members of two partitions."`
	Level      string    `json:"level" enum:"node,rack,power,zone"`
	Strict     bool      `json:"strict" doc:"Refuse what would break the rule; else the best of what there is counts."`
	Partitions int64     `json:"partitions,omitempty" doc:"Of a partition group."`
	Members    int64     `json:"members" doc:"Instances in it, placed or waiting."`
	CreatedAt  time.Time `json:"createdAt"`
}

// CreatePlacementGroup is the body of POST …/placement-groups.
type CreatePlacementGroup struct {
	Name       string `json:"name" minLength:"1" maxLength:"63" doc:"Unique in the project."`
	Kind       string `json:"kind" enum:"spread,cluster,partition"`
	Level      string `json:"level,omitempty" enum:"node,rack,power,zone" doc:"node when omitted; a rack or power feed counts within its zone."`
	Strict     *bool  `json:"strict,omitempty" doc:"true when omitted; a partition group is always strict."`
	Partitions int64  `json:"partitions,omitempty" minimum:"2" maximum:"7" doc:"Of a partition group; 2 when omitted."`
}

// PatchPlacementGroup is the body of PATCH on a placement group. Members stay where
// they are; what then stands against the rule is among its violations.
type PatchPlacementGroup struct {
	Name   *string `json:"name,omitempty" minLength:"1" maxLength:"63"`
	Level  *string `json:"level,omitempty" enum:"node,rack,power,zone"`
	Strict *bool   `json:"strict,omitempty"`
}

// GroupViolation is one domain where a placement group does not stand as its rule says.
type GroupViolation struct {
	Level   string   `json:"level"`
	Strict  bool     `json:"strict"`
	Members int64    `json:"members" doc:"Of the group, in the domain."`
	Excess  int64    `json:"excess" doc:"How many of these would have to go."`
	Message string   `json:"message"`
	Domain  string   `json:"domain,omitempty" doc:"For operators: the rack, power feed, zone or node."`
	Zone    string   `json:"zone,omitempty" doc:"For operators: of the rack or power feed."`
	NodeIDs []string `json:"nodeIds,omitempty" doc:"For operators."`
}

// RebalancePlan are moves, in order, that bring a group nearer to its rule. It is a
// proposal: nothing is reserved.
type RebalancePlan struct {
	Moves      []RebalanceMove  `json:"moves"`
	Violations []GroupViolation `json:"violations" doc:"What stands against the rule now."`
}

// RebalanceMove is one step of a plan.
type RebalanceMove struct {
	InstanceID string `json:"instanceId"`
	From       string `json:"from,omitempty" doc:"For operators: node id."`
	To         string `json:"to,omitempty" doc:"For operators: node id."`
}

// PlacementExplanation says where a create with the same body would go, or why it
// would go nowhere. Nothing is reserved.
type PlacementExplanation struct {
	Fits     bool              `json:"fits"`
	Message  string            `json:"message" doc:"The whole in a sentence; a launch that waits says the same."`
	EverFits bool              `json:"everFits" doc:"Whether a node would fit if the whole fleet were empty and ready; where false, waiting does not help."`
	Nodes    int               `json:"nodes" doc:"How many were looked at."`
	NodeID   string            `json:"nodeId,omitempty" doc:"For operators: where it would go."`
	Group    string            `json:"placementGroupName,omitempty"`
	Reasons  []PlacementReason `json:"reasons" doc:"Why nodes are refused; a node counts in every reason that refuses it. Those that refuse most nodes alone come first."`
	Nearest  *NearestMiss      `json:"nearest,omitempty" doc:"The refused node that misses least."`
	Quota    []QuotaExcess     `json:"quotaExceeded,omitempty" doc:"What of the project's quota forbids it."`
}

// PlacementReason is one constraint that refuses nodes.
type PlacementReason struct {
	Code    string   `json:"code" enum:"ROLE,STATE,UNREACHABLE,REGION,ZONE,ARCHITECTURE,SELECTOR,VCPUS,MEMORY,DISK,COUNTABLE,NOT_REPORTED,GROUP,GROUP_LEVEL_ABSENT,AVOIDED,CURRENT,GONE"`
	Subject string   `json:"subject,omitempty" doc:"What it is about, as the selector or the label's key."`
	Message string   `json:"message"`
	Nodes   int      `json:"nodes"`
	Alone   int      `json:"alone" doc:"Nodes that nothing else refuses."`
	NodeIDs []string `json:"nodeIds,omitempty" doc:"For operators; at most 100."`
}

// NearestMiss is the refused node that misses the fewest constraints.
type NearestMiss struct {
	NodeID string      `json:"nodeId,omitempty" doc:"For operators."`
	Misses []Shortfall `json:"misses"`
	Fix    string      `json:"fix" doc:"What would make it fit."`
}

// Shortfall is one constraint that a node does not meet. The numbers are given for
// room and countables; sizes are bytes.
type Shortfall struct {
	Code    string `json:"code"`
	Subject string `json:"subject,omitempty"`
	Need    *int64 `json:"need,omitempty"`
	Free    *int64 `json:"free,omitempty" doc:"Negative on a node that is over-full."`
	Total   *int64 `json:"total,omitempty"`
}

// QuotaExceeded is the details of a 409 QUOTA_EXCEEDED.
type QuotaExceeded struct {
	Exceeded []QuotaExcess `json:"exceeded"`
}

// QuotaExcess is one limit that a request would go over. Sizes are bytes.
type QuotaExcess struct {
	Resource string `json:"resource" enum:"instances,vcpus,memoryBytes,diskBytes"`
	Asked    int64  `json:"asked"`
	Used     int64  `json:"used"`
	Limit    int64  `json:"limit"`
}

// Quota is what a project may hold, and what it holds: instances that are not
// terminated, running or not, and all volumes.
type Quota struct {
	ProjectID string      `json:"projectId"`
	Limits    QuotaLimits `json:"limits" doc:"An absent one is without a limit."`
	Used      QuotaUsage  `json:"used"`
}

// QuotaLimits are limits; an absent one is none.
type QuotaLimits struct {
	Instances   *int64 `json:"instances,omitempty"`
	VCPUs       *int64 `json:"vcpus,omitempty"`
	MemoryBytes *int64 `json:"memoryBytes,omitempty"`
	DiskBytes   *int64 `json:"diskBytes,omitempty"`
}

// QuotaUsage is what a project holds.
type QuotaUsage struct {
	Instances   int64 `json:"instances"`
	VCPUs       int64 `json:"vcpus"`
	MemoryBytes int64 `json:"memoryBytes"`
	DiskBytes   int64 `json:"diskBytes"`
}

// PatchQuota is the body of PATCH on a project's quota. A field that is absent
// stays; null takes the limit away.
type PatchQuota struct {
	Instances   Nullable[int64] `json:"instances,omitzero" minimum:"0"`
	VCPUs       Nullable[int64] `json:"vcpus,omitzero" minimum:"0"`
	MemoryBytes Nullable[int64] `json:"memoryBytes,omitzero" minimum:"0"`
	DiskBytes   Nullable[int64] `json:"diskBytes,omitzero" minimum:"0"`
}

// Capacity is the fleet summed up: all of it, and by region, zone and role.
type Capacity struct {
	At     time.Time       `json:"at"`
	Total  CapacitySum     `json:"total"`
	Groups []CapacityGroup `json:"groups" doc:"Ordered by region, zone, role."`
}

// CapacityGroup is the sum of the nodes of one region, zone and role.
type CapacityGroup struct {
	Region           string `json:"region"`
	AvailabilityZone string `json:"availabilityZone"`
	Role             string `json:"role"`
	CapacitySum
}

// CapacitySum is what nodes can hold and hold. Free counts only nodes that take new
// instances, each clamped at zero.
type CapacitySum struct {
	Nodes       int64                   `json:"nodes"`
	Schedulable int64                   `json:"schedulable" doc:"Nodes that take new instances: of a role that does, ready, and not unreachable."`
	Suspect     int64                   `json:"suspect"`
	Unreachable int64                   `json:"unreachable"`
	NotReady    int64                   `json:"notReady" doc:"Nodes in another state than ready."`
	VCPUs       CapacityAmount          `json:"vcpus"`
	MemoryBytes CapacityAmount          `json:"memoryBytes"`
	DiskBytes   CapacityAmount          `json:"diskBytes"`
	Countables  map[string]CountableSum `json:"countables,omitempty" doc:"By label key; a key that no node reports is absent, which is not zero."`
}

// CapacityAmount is one resource.
type CapacityAmount struct {
	Committable int64 `json:"committable"`
	Committed   int64 `json:"committed"`
	Free        int64 `json:"free"`
}

// CountableSum is one countable label.
type CountableSum struct {
	Nodes     int64 `json:"nodes" doc:"That report the key."`
	Total     int64 `json:"total"`
	Committed int64 `json:"committed"`
	Free      int64 `json:"free" doc:"On nodes that take new instances, each clamped at zero."`
}

// NodeReadiness are the findings of one node.
type NodeReadiness struct {
	NodeID      string    `json:"nodeId"`
	DisplayName string    `json:"displayName,omitempty"`
	State       string    `json:"state"`
	Liveness    string    `json:"liveness"`
	Schedulable bool      `json:"schedulable" doc:"Takes new instances now."`
	Findings    []Finding `json:"findings"`
}

// Audit is what a comparison of allocations, instances and nodes found.
type Audit struct {
	At       time.Time      `json:"at"`
	Compared AuditCounts    `json:"compared"`
	Findings []AuditFinding `json:"findings"`
}

// AuditCounts says how much was compared.
type AuditCounts struct {
	Allocations int64 `json:"allocations"`
	Instances   int64 `json:"instances"`
	Nodes       int64 `json:"nodes"`
}

// AuditFinding is one disagreement.
type AuditFinding struct {
	Code       string     `json:"code"`
	Message    string     `json:"message" doc:"What it means and what to do."`
	InstanceID string     `json:"instanceId,omitempty"`
	NodeID     string     `json:"nodeId,omitempty"`
	Repair     string     `json:"repair" enum:"automatic,none" doc:"automatic: certain, the next run of the loop mends it. none: a person decides."`
	Since      *time.Time `json:"since,omitempty" doc:"When this server's loop first saw it."`
}

// LabelOverride is a label whose declared value wins over what was detected.
type LabelOverride struct {
	Key      string `json:"key"`
	Declared string `json:"declared"`
	Detected string `json:"detected"`
}
