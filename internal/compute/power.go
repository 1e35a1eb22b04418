package compute

import "time"

// PowerVerb is what a power action does to a node.
type PowerVerb string

const (
	PowerShutdown PowerVerb = "shutdown"
	PowerReboot   PowerVerb = "reboot"
)

// PowerState is where a power action stands (contract N-19).
type PowerState string

const (
	PowerShuttingDown PowerState = "shutting-down" // told; the host goes down at NotBefore
	PowerRebooting    PowerState = "rebooting"     // told; until the host has booted again
	PowerOff          PowerState = "off"           // its heartbeats stopped; until it is powered on
	PowerDone         PowerState = "done"          // the host booted again after the action
	PowerFailed       PowerState = "failed"        // the host did not act; Message says why
)

// PowerAction is the latest shutdown or reboot of a node through the API
// (contract N-18). The zero value is none.
type PowerAction struct {
	Action     PowerVerb  `json:",omitempty"`
	State      PowerState `json:",omitempty"`
	Generation int64      `json:",omitempty"` // bumped by every new action
	// NotBefore is a little later than the answer to the request, so that it gets out.
	NotBefore time.Time `json:",omitzero"`
	// Deadline is when a host that is still there with the same boot has failed.
	Deadline time.Time `json:",omitzero"`
	// BootID is that of the boot which is to end.
	BootID string `json:",omitempty"`
	// GoneAt is when the node was seen gone.
	GoneAt  time.Time `json:",omitzero"`
	Message string    `json:",omitempty"`
	// LastControlPlane: it was the only control-plane node up.
	LastControlPlane bool `json:",omitempty"`
}

// Open reports whether the action still decides the node's state.
func (p *PowerAction) Open() bool {
	return p.State == PowerShuttingDown || p.State == PowerRebooting || p.State == PowerOff
}
