package compute

import "time"

// Maintenance is what the operator wants of a node's work. The zero value is a
// node that takes part.
type Maintenance struct {
	// Mode is empty, NodeMaintenance or NodeDraining.
	Mode  NodeState `json:",omitempty"`
	Since time.Time `json:",omitzero"`
	// DeclaredOff is when an operator said that the machine is dead; zero: never, or
	// it has been heard of since.
	DeclaredOff time.Time `json:",omitzero"`
}
