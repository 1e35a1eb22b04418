package compute

// Health is the roll-up of an instance's durable signals, derived on read
// (contract U-07).
type Health string

const (
	HealthHealthy       Health = "healthy"
	HealthDegraded      Health = "degraded"
	HealthUnhealthy     Health = "unhealthy"
	HealthMigrating     Health = "migrating"
	HealthUnknown       Health = "unknown"
	HealthAgentDisabled Health = "agent_disabled"
)

// Health derives the roll-up. Precedence: error, migrating, agent_disabled, the
// rest. Without a guest agent there is no signal of the guest's own, so the rest
// is unknown.
func (i *Instance) Health() Health {
	switch {
	case i.State == StateError:
		return HealthUnhealthy
	case i.State == StateMigrating:
		return HealthMigrating
	case !i.Spec.AgentEnabled:
		return HealthAgentDisabled
	}
	return HealthUnknown
}
