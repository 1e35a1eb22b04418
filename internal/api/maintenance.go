package api

import "time"

// NodeMaintenance is what an operator wants of a node's work (contract N-20).
type NodeMaintenance struct {
	Mode   string    `json:"mode" enum:"maintenance,draining" doc:"In both, nothing new is placed on the node."`
	Since  time.Time `json:"since"`
	By     string    `json:"by" doc:"Who asked."`
	Reason string    `json:"reason,omitempty"`
}

// CordonNode is the optional body of POST …/cordon.
type CordonNode struct {
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"For whoever asks later."`
}

// MigrateInstance is the optional body of POST …/migrate.
type MigrateInstance struct {
	TargetNodeID    string `json:"targetNodeId,omitempty" maxLength:"63" doc:"The best node, unless one is named."`
	DeadlineSeconds int64  `json:"deadlineSeconds,omitempty" minimum:"1" maximum:"86400" doc:"How long the volumes may take to arrive; 3600 when omitted. The guest has 90 seconds of it to go down."`
}

// Migration is how far the migration of an instance is.
type Migration struct {
	TargetNodeID string    `json:"targetNodeId"`
	Phase        string    `json:"phase" enum:"stopping,carrying" doc:"After carrying, the instance is the other node's, and starts there like any other."`
	Since        time.Time `json:"since"`
	Deadline     time.Time `json:"deadline" doc:"Until then it has arrived, or it stays where it is."`
}

// DrainNode is the body of POST …/drain.
type DrainNode struct {
	DryRun          bool              `json:"dryRun,omitempty" doc:"Say what would happen, and change nothing."`
	DeadlineSeconds int64             `json:"deadlineSeconds,omitempty" minimum:"1" maximum:"604800" doc:"3600 when omitted. After it, what is left stays, each with its reason."`
	Parallel        int64             `json:"parallel,omitempty" minimum:"1" maximum:"32" doc:"How many instances are on their way at a time; what the server was started with when omitted."`
	Strategy        string            `json:"strategy,omitempty" enum:"migrate,stop,recreate" doc:"For all instances, in place of their own."`
	Overrides       map[string]string `json:"overrides,omitempty" doc:"Strategies by instance id, before all others."`
	Reason          string            `json:"reason,omitempty" maxLength:"500" doc:"For whoever asks later."`
}

// Drain is a drain of a node: what it will do, or how far it is.
type Drain struct {
	NodeID    string     `json:"nodeId"`
	DryRun    bool       `json:"dryRun,omitempty" doc:"Nothing was changed: this is what would happen."`
	NodeState string     `json:"nodeState" enum:"ready,maintenance,draining,shutting-down,rebooting,off"`
	Outcome   string     `json:"outcome,omitempty" enum:"done,deadline,cancelled" doc:"How it ended; absent while it goes on."`
	By        string     `json:"by,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	Deadline  *time.Time `json:"deadline,omitempty"`
	EndedAt   *time.Time `json:"endedAt,omitempty"`
	// SafeToPowerOff is there for a false, too: it was looked at.
	SafeToPowerOff bool            `json:"safeToPowerOff" doc:"Nothing that may run is on the node, nothing of it is on its way, and nothing new is placed there."`
	NotSafe        []string        `json:"notSafe,omitempty" doc:"Why it is not safe."`
	Instances      []DrainInstance `json:"instances"`
	LooseVolumes   int64           `json:"looseVolumes" doc:"Volumes on the node that are attached to none: they stay there."`
}

// DrainInstance is one instance of a drain.
type DrainInstance struct {
	InstanceID   string     `json:"instanceId"`
	ProjectID    string     `json:"projectId"`
	Name         string     `json:"name"`
	Strategy     string     `json:"strategy" enum:"migrate,stop,recreate"`
	Status       string     `json:"status" enum:"planned,pending,stopping,carrying,starting,held,done,failed" doc:"Planned in a preview; held is stopped on the node until it takes part again."`
	Running      bool       `json:"running" doc:"It ran when the drain came to it, so it is started again."`
	TargetNodeID string     `json:"targetNodeId,omitempty" doc:"In a preview: where it would go now."`
	Message      string     `json:"message,omitempty" doc:"What will happen, or why it does not."`
	Volumes      int64      `json:"volumes,omitempty" doc:"How many are to be carried."`
	Carried      int64      `json:"carried,omitempty" doc:"How many of them have arrived."`
	MaxBytes     int64      `json:"maxBytes,omitempty" doc:"Their sizes; no more than this is read, and mostly less."`
	Since        *time.Time `json:"since,omitempty" doc:"When this status began."`
	// Placement is why no node takes it.
	Placement *PlacementExplanation `json:"placement,omitempty" doc:"In a preview: why no node takes it now."`
}
