package compute

// Identity is the machine that a node id is bound to (contract N-21).
type Identity struct {
	MachineID string `json:",omitempty"`
}
