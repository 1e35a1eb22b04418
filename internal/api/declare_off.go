package api

import "time"

// DeclareOff is the body of POST …/declare-off: an operator's word that a node which
// nobody hears of is dead.
type DeclareOff struct {
	DryRun bool   `json:"dryRun,omitempty" doc:"Only say what would become of what is on the node."`
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"For whoever asks later; it is logged."`
}

// DeclaredOff is what becomes of what is on the node; with dryRun, what would.
type DeclaredOff struct {
	NodeID        string           `json:"nodeId"`
	DryRun        bool             `json:"dryRun"`
	DeclaredOffAt *time.Time       `json:"declaredOffAt,omitempty"`
	Instances     []FencedInstance `json:"instances" doc:"All that are on the node."`
	VolumeIDs     []string         `json:"volumeIds" doc:"Volumes that were to be removed and now count as gone."`
}

// FencedInstance is what becomes of an instance whose node is declared off.
type FencedInstance struct {
	ID        string    `json:"id"`
	ProjectID string    `json:"projectId"`
	Name      string    `json:"name,omitempty"`
	State     string    `json:"state"`
	Becomes   string    `json:"becomes" doc:"Its state from then on. One that becomes stopped stays on the node, and starts again when that is back."`
	Releases  *Released `json:"releases,omitempty" doc:"What one that was to be terminated gives back."`
}

// Released is what an instance gives back with its end.
type Released struct {
	PrivateIPs []string `json:"privateIps"`
	VolumeIDs  []string `json:"volumeIds" doc:"Those that end with it; others are attached to none, and their content is where the node is."`
	Detached   []string `json:"detachedVolumeIds,omitempty"`
}
