package compute

import (
	"fmt"
	"time"
)

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
	// HealthEnrollmentPending is one of the agent's status only (contract U-10).
	HealthEnrollmentPending Health = "enrollment_pending"
)

// Activation says how the guest agent is turned on (contract U-09).
type Activation string

const (
	ActivationAutomatic Activation = "automatic"       // dormant in the image, follows the flag
	ActivationCommand   Activation = "install-command" // a one-time command, run in the guest
)

// ActivationTag is the image tag that says that the image ships the agent.
const ActivationTag = "stratum.dev/agent-activation"

// Times of the guest agent (contract U-07, U-08).
const (
	AgentInterval = 30 * time.Second
	// AgentLate is the age beyond which a heartbeat is late.
	AgentLate = 90 * time.Second
	// AgentQuiet is the age from which an agent is held to be silent, and how long
	// a domain sample is fresh.
	AgentQuiet = 3 * time.Minute
	// AgentGrace is how long a launched or enrolled agent may take to report.
	AgentGrace = 15 * time.Minute
)

// Agent is what is known of an instance's guest agent and of its VM, all of it
// stored, so that a restart of the server changes nothing.
type Agent struct {
	Activation        Activation
	EnrollmentPending bool
	EnrolledAt        time.Time // zero for an agent that came with the launch
	InstallCode       []byte    // keyed hash of the one-time code; empty when none is out
	LastHeartbeatAt   time.Time // on the platform's clock
	Version           string
	ReconcileResult   string // "ok", "error" or empty
	ReconcileAt       time.Time
	RunningSince      time.Time // when the present run was first seen
	SampledAt         time.Time // when the node last read the VM
	Boot              BootOutcome
}

// BootOutcome is what the guest's own boot made of its user-data.
type BootOutcome struct {
	UserDataHash string // hex sha256 of the bytes that this boot ran; empty for none
	Status       string // running, done, degraded, error, disabled
	Detail       string // the module at fault and its message
	At           time.Time
}

// Health derives the roll-up. Precedence: error, migrating, agent_disabled, the
// rest (contract U-07).
func (i *Instance) Health(a *Agent, now time.Time) Health {
	switch {
	case i.State == StateError:
		return HealthUnhealthy
	case i.State == StateMigrating:
		return HealthMigrating
	case !i.Spec.AgentEnabled:
		return HealthAgentDisabled
	case i.State != StateRunning || a.EnrollmentPending:
		return HealthUnknown
	}
	if !a.reportedThisRun() {
		if now.Sub(a.expectedFrom(i)) < AgentQuiet {
			return HealthUnknown
		}
		return HealthUnhealthy
	}
	switch age := now.Sub(a.LastHeartbeatAt); {
	case age >= AgentQuiet:
		return HealthUnhealthy
	case age > AgentLate || now.Sub(a.SampledAt) > AgentQuiet:
		return HealthDegraded
	}
	return HealthHealthy
}

// reportedThisRun: a heartbeat of an earlier run says nothing of this one.
func (a *Agent) reportedThisRun() bool {
	return !a.LastHeartbeatAt.IsZero() && !a.LastHeartbeatAt.Before(a.RunningSince) && !a.LastHeartbeatAt.Before(a.EnrolledAt)
}

// expectedFrom is when the agent could begin to report.
func (a *Agent) expectedFrom(i *Instance) time.Time {
	from := a.RunningSince
	if from.IsZero() {
		from = i.LaunchedAt
	}
	if a.EnrolledAt.After(from) {
		from = a.EnrolledAt
	}
	return from
}

// AgentHealth is the agent's own liveness (contract U-10).
func (i *Instance) AgentHealth(a *Agent, now time.Time) Health {
	switch {
	case !i.Spec.AgentEnabled:
		return HealthAgentDisabled
	case a.EnrollmentPending:
		return HealthEnrollmentPending
	case a.LastHeartbeatAt.IsZero() || i.State != StateRunning:
		return HealthUnknown
	}
	switch h := i.Health(a, now); h {
	case HealthHealthy, HealthDegraded, HealthUnhealthy:
		return h
	}
	return HealthUnknown
}

// Codes of a HealthReason (contract U-08).
const (
	ReasonAgentPending       = "agent_pending"
	ReasonAgentNeverReported = "agent_never_reported"
	ReasonAgentGoneQuiet     = "agent_gone_quiet"
	ReasonAgentDisabled      = "agent_disabled"
	ReasonEnrollmentPending  = "agent_enrollment_pending"
)

// HealthReason says why Health reads as it does.
type HealthReason struct {
	Code     string
	Message  string
	Since    time.Time // zero when not known
	Deadline time.Time // only for agent_pending
}

// HealthReason is nil where there is nothing to explain. Where the state itself
// is the signal (error, transitional, down), the state explains.
func (i *Instance) HealthReason(a *Agent, now time.Time) *HealthReason {
	switch {
	case i.State == StateError || i.State == StateMigrating:
		return nil
	case !i.Spec.AgentEnabled:
		return &HealthReason{Code: ReasonAgentDisabled, Message: "no agent is wanted in this instance, so its silence is no fault; enable-agent turns one on"}
	case a.EnrollmentPending:
		return &HealthReason{Code: ReasonEnrollmentPending, Message: "enable-agent gave an install command that has not been run in the guest yet; run it there, or run enable-agent again for a new one"}
	case i.State != StateRunning:
		return nil
	case a.LastHeartbeatAt.IsZero() || a.LastHeartbeatAt.Before(a.EnrolledAt):
		return i.neverReported(a, now)
	}
	if h := i.Health(a, now); h == HealthUnhealthy || h == HealthDegraded && now.Sub(a.LastHeartbeatAt) > AgentLate {
		return &HealthReason{Code: ReasonAgentGoneQuiet, Since: a.LastHeartbeatAt,
			Message: fmt.Sprintf("the agent reported and then went quiet, %s ago; it often comes back by itself, else look at the console and at the agent's log in the guest", now.Sub(a.LastHeartbeatAt).Round(time.Second))}
	}
	return nil
}

func (i *Instance) neverReported(a *Agent, now time.Time) *HealthReason {
	since := i.LaunchedAt
	if !a.EnrolledAt.IsZero() {
		since = a.EnrolledAt
	}
	if deadline := since.Add(AgentGrace); now.Before(deadline) {
		return &HealthReason{Code: ReasonAgentPending, Since: since, Deadline: deadline,
			Message: "the agent has not reported yet, which is normal for a launch until the deadline"}
	}
	return &HealthReason{Code: ReasonAgentNeverReported, Since: since,
		Message: fmt.Sprintf("the agent has never reported, %s after it was due to start: it is not installed or cannot reach the metadata service. This does not mend itself: run enable-agent for a new install command, or disable-agent if none is wanted", now.Sub(since).Round(time.Second))}
}
