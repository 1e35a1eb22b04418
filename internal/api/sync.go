package api

// The node agent's sync: POST /v1/compute/nodes/{id}/sync. The agent sends all
// that it observes and the revision of the desired set that it has. The server
// answers at once when it has another revision or a wish, else it holds the
// answer for up to WaitSeconds. One path for start, change, crash and restart.

// SyncRequest is a complete report of the node: what is not in Instances is not
// on the node. An agent that cannot read its hypervisor sends Unknown instead of
// an empty list, and nothing is concluded (lesson 9).
type SyncRequest struct {
	_           struct{}           `json:"-" additionalProperties:"true"`
	BootID      string             `json:"bootId,omitempty"`
	Revision    string             `json:"revision,omitempty" doc:"Revision of the desired set that the agent acts on; empty asks for it."`
	Unknown     bool               `json:"unknown,omitempty" doc:"The hypervisor could not be read: instances says nothing."`
	Instances   []ObservedInstance `json:"instances"`
	Findings    []Finding          `json:"findings,omitempty"`
	WaitSeconds int64              `json:"waitSeconds,omitempty" minimum:"0" maximum:"60"`
}

// ObservedInstance is one VM as its node sees it.
type ObservedInstance struct {
	_          struct{} `json:"-" additionalProperties:"true"`
	ID         string   `json:"id"`
	Epoch      int64    `json:"epoch" doc:"The goal that the node acts on or has reached."`
	Phase      string   `json:"phase" enum:"preparing,running,paused,stopped,crashed,failed,gone,unknown"`
	Step       string   `json:"step,omitempty" doc:"While preparing: the named step at work."`
	Message    string   `json:"message,omitempty"`
	SampleAgeS int64    `json:"sampleAgeSeconds,omitempty" doc:"Age of the hypervisor's own word on this VM."`
}

// SyncResponse is what the node is to bring about.
type SyncResponse struct {
	Revision  string            `json:"revision"`
	Changed   bool              `json:"changed" doc:"Instances holds the whole desired set; else keep what you have."`
	Instances []DesiredInstance `json:"instances"`
	Consoles  []string          `json:"consoles,omitempty" doc:"Instances whose console output somebody waits for."`
}

// DesiredInstance is the goal of one VM. It carries all that the node needs, so
// that a node that was down acts right from its next answer.
type DesiredInstance struct {
	ID        string `json:"id"`
	ProjectID string `json:"projectId"`
	Name      string `json:"name"`
	Epoch     int64  `json:"epoch"`
	Goal      string `json:"goal" enum:"running,stopped,gone"`
	// Reboot: this epoch is a reboot, so a VM that runs from an earlier epoch is
	// asked to go down first. Force gives it no time.
	Reboot bool `json:"reboot,omitempty"`
	// StopWithinMS is how long the guest may still take to go down before the
	// plug is pulled; it holds from the moment the answer was received.
	StopWithinMS int64 `json:"stopWithinMs,omitempty"`
	Force        bool  `json:"force,omitempty"`

	VCPUs        int64           `json:"vcpus"`
	MemoryBytes  int64           `json:"memoryBytes"`
	Image        DesiredImage    `json:"image"`
	Volumes      []DesiredVolume `json:"volumes"`
	UserDataHash string          `json:"userDataHash,omitempty" doc:"Hex sha256 of the user-data; fetch it from …/blobs/{sha256}."`
	PublicKeys   []string        `json:"publicKeys,omitempty"`
}

// DesiredImage is what the root volume stands on.
type DesiredImage struct {
	SHA256      string `json:"sha256"`
	Format      string `json:"format"`
	SizeBytes   int64  `json:"sizeBytes"`
	VirtualSize int64  `json:"virtualSizeBytes"`
}

// DesiredVolume is one block device.
type DesiredVolume struct {
	ID        string `json:"id"`
	SizeBytes int64  `json:"sizeBytes"`
	Root      bool   `json:"root,omitempty"`
}
