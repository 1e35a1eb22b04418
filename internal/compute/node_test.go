package compute

import (
	"testing"
	"time"
)

// contract: N-19 N-23
func TestStateOfNode(t *testing.T) {
	now := time.Unix(1, 0)
	power := func(s PowerState) PowerAction { return PowerAction{Action: PowerShutdown, State: s} }
	for _, tt := range []struct {
		name string
		node Node
		want NodeState
	}{
		{"new", Node{}, NodeReady},
		{"maintenance", Node{Maintenance: Maintenance{Mode: NodeMaintenance}}, NodeMaintenance},
		{"draining", Node{Maintenance: Maintenance{Mode: NodeDraining}}, NodeDraining},
		{"going down", Node{Maintenance: Maintenance{Mode: NodeDraining}, Power: power(PowerShuttingDown)}, NodeShuttingDown},
		{"going round", Node{Power: power(PowerRebooting)}, NodeRebooting},
		{"off", Node{Maintenance: Maintenance{Mode: NodeMaintenance}, Power: power(PowerOff)}, NodeOff},
		{"back", Node{Maintenance: Maintenance{Mode: NodeMaintenance}, Power: power(PowerDone)}, NodeMaintenance},
		{"did not act", Node{Power: power(PowerFailed)}, NodeReady},
		{"declared off", Node{Maintenance: Maintenance{DeclaredOff: now}, Power: power(PowerRebooting)}, NodeOff},
	} {
		if got := tt.node.State(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A heartbeat that is more than a sign of life is never taken for one.
func TestCalm(t *testing.T) {
	here := Liveness{BootID: "b1"}
	for _, tt := range []struct {
		name string
		node Node
		want bool
	}{
		{"the same boot", Node{Liveness: here}, true},
		{"another boot", Node{Liveness: Liveness{BootID: "b0"}}, false},
		{"on its way down", Node{Liveness: here, Power: PowerAction{State: PowerShuttingDown}}, false},
		{"after a reboot", Node{Liveness: here, Power: PowerAction{State: PowerDone}}, true},
		{"declared off", Node{Liveness: here, Maintenance: Maintenance{DeclaredOff: time.Unix(1, 0)}}, false},
	} {
		if got := tt.node.Calm("b1"); got != tt.want {
			t.Errorf("%s: calm %v", tt.name, got)
		}
	}
}
