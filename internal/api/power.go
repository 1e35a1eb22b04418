package api

import "time"

// PowerAction is a node's latest shutdown or reboot through the API (contract N-18).
type PowerAction struct {
	Action     string     `json:"action" enum:"shutdown,reboot"`
	State      string     `json:"state" enum:"shutting-down,rebooting,off,done,failed" doc:"In progress while it is shutting-down, rebooting or off; the node's own state follows it so long."`
	Generation int64      `json:"generation" doc:"Bumped by every new action on the node."`
	NotBefore  time.Time  `json:"notBefore" doc:"When the host acts: a short delay after the request, so that the answer gets out first."`
	OffAt      *time.Time `json:"offAt,omitempty" doc:"When a shutdown's node was seen gone."`
	Message    string     `json:"message,omitempty" doc:"What the action is doing or waiting for, or why it failed."`
	// LastControlPlane is there for a false, too: it was looked at.
	LastControlPlane bool     `json:"lastControlPlane" doc:"This was the only control-plane node up: the API goes down with it, and nothing answers until it is back."`
	PowerOn          *PowerOn `json:"powerOn,omitempty" doc:"How the node comes back after a shutdown."`
}

// PowerOn is how a node that is off comes back.
type PowerOn struct {
	Button       bool   `json:"button" doc:"By its power button."`
	WakeOnLanMAC string `json:"wakeOnLanMac,omitempty" doc:"By a Wake-on-LAN packet to this address; see the node's wake."`
}

// PowerRequest is the body of POST …/shutdown and …/reboot.
type PowerRequest struct {
	Force            bool   `json:"force,omitempty" doc:"Also while instances run there: each guest is asked to go down, and has its plug pulled when its time is over, before the host goes down."`
	NotBeforeSeconds *int64 `json:"notBeforeSeconds,omitempty" minimum:"0" maximum:"86400" doc:"How long the host waits; 5 seconds unless said otherwise."`
	Reason           string `json:"reason,omitempty" maxLength:"500" doc:"For whoever asks later; it is logged."`
}

// RunningInstances are the details of INSTANCES_RUNNING: what runs
// on the node.
type RunningInstances struct {
	Count       int64    `json:"count"`
	InstanceIDs []string `json:"instanceIds" doc:"The first 100 of them."`
}

// DesiredPower is a power action that the node has to carry out once.
type DesiredPower struct {
	Action     string `json:"action" enum:"shutdown,reboot"`
	Generation int64  `json:"generation" doc:"An agent carries out each generation once, and none that is not above all it has carried out."`
	// NotBeforeMS is a delay, as the node's clock is nobody's.
	NotBeforeMS int64 `json:"notBeforeMs" doc:"How long the host has to wait from the moment at which the answer was received."`
}

// PowerReport is what a node's agent says of the latest power action that it knows.
type PowerReport struct {
	_          struct{} `json:"-" additionalProperties:"true"`
	Generation int64    `json:"generation" minimum:"0"`
	Stage      string   `json:"stage,omitempty" doc:"waiting, stopping, acting or failed; empty for one that is over."`
	Message    string   `json:"message,omitempty"`
}

// WakeRequest is the body of POST …/wake.
type WakeRequest struct {
	Via string `json:"via,omitempty" maxLength:"63" doc:"Node that sends the packet; unless said otherwise, one in the same rack, else in the same zone."`
}

// WakeSent is the answer: what will be sent, by whom.
type WakeSent struct {
	ID           string    `json:"id"`
	NodeID       string    `json:"nodeId"`
	WakeOnLanMAC string    `json:"wakeOnLanMac"`
	Via          string    `json:"via" doc:"Node that sends the packet."`
	ExpiresAt    time.Time `json:"expiresAt" doc:"It is not sent after this."`
}

// DesiredWake asks a node for one Wake-on-LAN packet.
type DesiredWake struct {
	ID  string `json:"id"`
	MAC string `json:"mac"`
}

// WakeReport says that a packet was sent, or why it was not.
type WakeReport struct {
	_     struct{} `json:"-" additionalProperties:"true"`
	ID    string   `json:"id"`
	Error string   `json:"error,omitempty"`
}
