package api

import "time"

// What a guest's agent and its node's metadata service say to each other, below
// /latest/outcrop/agent. The guest is told apart by its network port, so no id is
// on the wire.

// AgentInterval is how often an enabled agent reports (contract U-07).
const AgentInterval = 30 * time.Second

// AgentSettings is the answer to GET /latest/outcrop/agent and to each heartbeat:
// whether the guest's agent is to run, and which one.
type AgentSettings struct {
	Enabled         bool   `json:"enabled"`
	Activation      string `json:"activation"` // automatic or install-command
	IntervalSeconds int64  `json:"intervalSeconds"`
}

// AgentHeartbeat is the body of PUT /latest/outcrop/agent/heartbeat.
type AgentHeartbeat struct {
	Version         string      `json:"version"`                   // at most 64 characters
	ReconcileResult string      `json:"reconcileResult,omitempty"` // ok or error, of the pass before this report
	InstallCode     string      `json:"installCode,omitempty"`     // until a heartbeat with it was answered
	Boot            *BootReport `json:"boot,omitempty"`
}
