package compute

import "time"

// InstanceState is what a customer sees (contract U-19).
type InstanceState string

const (
	StateCreating    InstanceState = "creating"
	StateRunning     InstanceState = "running"
	StateStopping    InstanceState = "stopping"
	StateStopped     InstanceState = "stopped"
	StateStarting    InstanceState = "starting"
	StateRebooting   InstanceState = "rebooting"
	StateMigrating   InstanceState = "migrating"
	StateTerminating InstanceState = "terminating"
	StateTerminated  InstanceState = "terminated"
	StateError       InstanceState = "error"
)

// InstanceStates are all of them.
var InstanceStates = []InstanceState{StateCreating, StateRunning, StateStopping, StateStopped, StateStarting, StateRebooting,
	StateMigrating, StateTerminating, StateTerminated, StateError}

// Transitional reports whether the platform owns the state: it has a deadline
// and is never a destination.
func (s InstanceState) Transitional() bool {
	switch s {
	case StateCreating, StateStopping, StateStarting, StateRebooting, StateMigrating, StateTerminating:
		return true
	}
	return false
}

// Goal is what the node is to bring about for an instance.
type Goal string

const (
	GoalRunning Goal = "running"
	GoalStopped Goal = "stopped"
	GoalGone    Goal = "gone" // VM, volumes and files removed
)

// Limits of user-data and instance fields.
const (
	// MaxUserDataBytes is the cap on user-data; exactly this much is fine (contract U-01).
	MaxUserDataBytes = 65536
	// TerminatedListed is how long a terminated instance is still listed (contract U-19).
	TerminatedListed = time.Hour
)

// Shape is the size of an instance.
type Shape struct {
	VCPUs       int64
	MemoryBytes int64
}

// InstanceType is one entry of the catalog.
type InstanceType struct {
	Name  string
	Shape Shape
	// RootVolumeBytes is the root volume's size where the create names none and
	// the image is not larger.
	RootVolumeBytes int64
}

const mib = int64(1) << 20

// Catalog is the list of instance types, smallest first. A type is data: adding
// one is adding a line.
var Catalog = []InstanceType{
	{"m1.tiny", Shape{1, 256 * mib}, 2 * gib},
	{"m1.small", Shape{1, 1 * gib}, 8 * gib},
	{"m1.medium", Shape{2, 2 * gib}, 16 * gib},
	{"m1.large", Shape{2, 4 * gib}, 32 * gib},
	{"m1.xlarge", Shape{4, 8 * gib}, 64 * gib},
}

// TypeByName finds an instance type.
func TypeByName(name string) (InstanceType, bool) {
	for _, t := range Catalog {
		if t.Name == name {
			return t, true
		}
	}
	return InstanceType{}, false
}

// Bounds of a custom shape and of volumes.
const (
	MaxVCPUs          = 512
	MinMemoryBytes    = 64 * mib
	MaxMemoryBytes    = 16384 * gib
	MaxVolumeBytes    = 65536 * gib
	DefaultRootVolume = 8 * gib
)

// MetadataOptions are the EC2-shaped options of the metadata service (contract U-18).
type MetadataOptions struct {
	HTTPEndpoint            string
	HTTPTokens              string
	HTTPPutResponseHopLimit int64
	InstanceMetadataTags    string
}

// DefaultMetadataOptions hold where a create says nothing.
var DefaultMetadataOptions = MetadataOptions{"enabled", "required", 1, "disabled"}

// InstanceSpec is what was asked for.
type InstanceSpec struct {
	Name            string
	ImageID         string
	InstanceType    string // empty for a custom shape
	Shape           Shape
	RootVolumeBytes int64
	UserDataHash    string // hex sha256 of the bytes; empty when there is none
	PublicKeys      []string
	Tags            map[string]string
	AgentEnabled    bool
	DesiredState    string // "", "running" or "stopped" (contract U-16)
	StartOnNodeBoot bool
	// MaintenanceStrategy is what a drain of its node does with it; empty for the default.
	MaintenanceStrategy MaintenanceStrategy `json:",omitempty"`
	Metadata            MetadataOptions
	SubnetID            string // of the primary interface
	// Where it may stand, in force at every later move (lesson 17).
	PlacementGroupID string           // dropped when the group is deleted (contract U-14)
	Selectors        []Selector       // of its node
	Architecture     string           // of its node, by its image; empty for any
	Countables       map[string]int64 // units by label key
	// CloudInitID is the instance-id told to cloud-init where it is not the
	// instance's own: after a start that asked to run everything again.
	CloudInitID string
}

// Instance is a VM: what was asked for, where its life stands, where it runs.
type Instance struct {
	ID        string
	ProjectID string
	Spec      InstanceSpec
	State     InstanceState
	// Message says what went wrong while State is error, and what a launch waits
	// for while it waits.
	Message string
	// Goal and Epoch are what the node is told. Every verb that changes the goal
	// bumps the epoch; a report of another epoch changes nothing (lesson 3).
	Goal  Goal
	Epoch int64
	// Deadline bounds a transitional state. While stopping it is the moment at
	// which the guest has had its time and the plug is pulled.
	Deadline      time.Time
	ForceStopping bool
	Move          *Move  // while migrating; never changed in place
	NodeID        string // empty until scheduled
	RootVolumeID  string
	ChangedAt     time.Time // last write of the row
	CreatedAt     time.Time
	LaunchedAt    time.Time // first time it was seen running
	TerminatedAt  time.Time
}

// Observation is what a node reports of one VM.
type Observation struct {
	Phase   Phase
	Epoch   int64  // the last goal that the node began to act on
	Message string // why, where Phase alone does not explain
}

// GuestID is the instance-id that cloud-init is told.
func (i *Instance) GuestID() string {
	if i.Spec.CloudInitID != "" {
		return i.Spec.CloudInitID
	}
	return i.ID
}

// Phase is where a VM stands on its node.
type Phase string

const (
	PhasePreparing Phase = "preparing" // on the way to its goal
	PhaseRunning   Phase = "running"
	PhasePaused    Phase = "paused" // stands still, e.g. for a full disk
	PhaseStopped   Phase = "stopped"
	PhaseCrashed   Phase = "crashed"
	PhaseFailed    Phase = "failed" // the goal cannot be reached; Message says why
	PhaseGone      Phase = "gone"   // nothing of it is left on the node
	PhaseUnknown   Phase = "unknown"
)
