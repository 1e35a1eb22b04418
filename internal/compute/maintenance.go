package compute

import "time"

// Maintenance is what the operator wants of a node's work. The zero value is a
// node that takes part.
type Maintenance struct {
	// Mode is empty, NodeMaintenance or NodeDraining.
	Mode   NodeState `json:",omitempty"`
	Since  time.Time `json:",omitzero"`
	By     string    `json:",omitempty"` // who asked
	Reason string    `json:",omitempty"` // as the operator wrote it
	// DeclaredOff is when an operator said that the machine is dead; zero: never, or
	// it has been heard of since.
	DeclaredOff time.Time `json:",omitzero"`
	// ReturnedAt is when the node was heard of after it had been declared off.
	ReturnedAt time.Time `json:",omitzero"`
}

// Enter puts the node into a mode and says whether that is news. A node that is
// drained stays so when it is cordoned: that asks for less. Where the mode stays, only
// another reason is news.
func (m *Maintenance) Enter(mode NodeState, by, reason string, now time.Time) bool {
	if m.Mode == mode || m.Mode == NodeDraining && mode == NodeMaintenance {
		if reason == "" || reason == m.Reason {
			return false
		}
		m.By, m.Reason = by, reason
		return true
	}
	m.Mode, m.Since, m.By, m.Reason = mode, now, by, reason
	return true
}

// Leave lets the node take part again and says whether that is news.
func (m *Maintenance) Leave() bool {
	if m.Mode == "" {
		return false
	}
	*m = Maintenance{DeclaredOff: m.DeclaredOff, ReturnedAt: m.ReturnedAt}
	return true
}

// MaintenanceStrategy is what a drain does with an instance.
type MaintenanceStrategy string

const (
	// StrategyMigrate stops it, carries its volumes to another node, and starts it
	// there if it ran. The default.
	StrategyMigrate MaintenanceStrategy = "migrate"
	// StrategyStop stops it where it is, and starts it again if it ran when the node
	// takes part again.
	StrategyStop MaintenanceStrategy = "stop"
	// StrategyRecreate stops it and makes it anew on another node from its image. What
	// was written to its root volume is lost; with data volumes it is refused.
	StrategyRecreate MaintenanceStrategy = "recreate"
)

// MaintenanceStrategies are all of them.
var MaintenanceStrategies = []MaintenanceStrategy{StrategyMigrate, StrategyStop, StrategyRecreate}
