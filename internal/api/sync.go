package api

import "time"

// The node agent's sync: POST /v1/compute/nodes/{id}/sync. The agent sends all
// that it observes and the revision of the desired set that it has. The server
// answers at once when it has another revision or a wish, else it holds the
// answer for up to WaitSeconds. One path for start, change, crash and restart.

// SyncRequest is a complete report of the node: what is not in Instances is not
// on the node. An agent that cannot read its hypervisor sends Unknown instead of
// an empty list, and nothing is concluded (lesson 9).
type SyncRequest struct {
	_             struct{}           `json:"-" additionalProperties:"true"`
	BootID        string             `json:"bootId,omitempty"`
	Revision      string             `json:"revision,omitempty" doc:"Revision of the desired set that the agent acts on; empty asks for it."`
	Unknown       bool               `json:"unknown,omitempty" doc:"The hypervisor could not be read: instances says nothing."`
	Instances     []ObservedInstance `json:"instances"`
	Findings      []Finding          `json:"findings,omitempty"`
	GoneVolumes   []string           `json:"goneVolumes,omitempty" doc:"Volumes that were to go and are gone."`
	Power         *PowerReport       `json:"power,omitempty" doc:"The latest power action that the agent knows; absent where there never was one."`
	Wakes         []WakeReport       `json:"wakes,omitempty" doc:"Wake-on-LAN packets that were sent, or could not be."`
	FailedUploads []FailedUpload     `json:"failedUploads,omitempty" doc:"Uploads that cannot be made, whatever is tried."`
	WaitSeconds   int64              `json:"waitSeconds,omitempty" minimum:"0" maximum:"60"`
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
	// BootID is the node's word for the VM's present process; it changes with
	// every fresh boot.
	BootID string `json:"bootId,omitempty"`
}

// SyncResponse is what the node is to bring about.
type SyncResponse struct {
	Revision  string            `json:"revision"`
	Changed   bool              `json:"changed" doc:"Instances holds the whole desired set; else keep what you have."`
	Instances []DesiredInstance `json:"instances"`
	Subnets   []DesiredSubnet   `json:"subnets" doc:"With changed: every subnet that an instance placed here has an interface in."`
	Volumes   []KeptVolume      `json:"volumes" doc:"With changed: every volume that lives on this node, attached or not. One that the node has and this list has not is kept and reported; only gone removes."`
	Consoles  []string          `json:"consoles,omitempty" doc:"Instances whose console output somebody waits for."`
	Streams   []ConsoleStream   `json:"streams,omitempty" doc:"Two-way consoles that somebody waits for: dial each once."`
	Uploads   []ImageUpload     `json:"uploads,omitempty" doc:"With changed: images to make of stopped instances."`
	Power     *DesiredPower     `json:"power,omitempty" doc:"With changed: a power action that is in progress; absent where there is none."`
	// ServerCommit lets an agent say whether its own build is another (contract N-16).
	ServerCommit string        `json:"serverCommit,omitempty" doc:"Commit that the server was built from; absent where its build does not say."`
	Wakes        []DesiredWake `json:"wakes,omitempty" doc:"With changed: Wake-on-LAN packets to send, each once; report them in the next sync's wakes."`
}

// DesiredSubnet is one layer-2 segment that the node has to provide.
type DesiredSubnet struct {
	ID        string `json:"id"`
	ProjectID string `json:"projectId"`
	VPCID     string `json:"vpcId"`
	CIDR      string `json:"cidr"`
	VPCCIDR   string `json:"vpcCidr"`
}

// KeptVolume is a volume file of the node.
type KeptVolume struct {
	ID   string `json:"id"`
	Gone bool   `json:"gone,omitempty" doc:"Remove its file; report it in the next sync's goneVolumes."`
}

// ConsoleStream is one waiting two-way console: POST …/streams/{id} with
// Upgrade: outcrop-console turns the connection into raw bytes both ways.
type ConsoleStream struct {
	ID         string `json:"id"`
	InstanceID string `json:"instanceId"`
}

// ImageUpload asks the node for the volumes of a stopped instance as one image:
// PUT …/uploads/{id}/{n} with volume n as a flat qcow2, root first.
type ImageUpload struct {
	ID         string   `json:"id"`
	InstanceID string   `json:"instanceId"`
	Epoch      int64    `json:"epoch" doc:"Of the stopped goal; the node refuses to read a VM of another."`
	VolumeIDs  []string `json:"volumeIds"`
	Impatient  bool     `json:"impatient,omitempty" doc:"The instance is down for it: where there is no room, that is a failure and not waited out."`
}

// FailedUpload is an upload that the node cannot make.
type FailedUpload struct {
	_       struct{} `json:"-" additionalProperties:"true"`
	ID      string   `json:"id"`
	Message string   `json:"message"`
}

// AgentReports is what guests told the metadata service of their node: the body
// of POST /v1/compute/nodes/{id}/agent-reports. Ages, not moments: the node's
// clock is nobody's.
type AgentReports struct {
	_       struct{}      `json:"-" additionalProperties:"true"`
	Reports []AgentReport `json:"reports"`
}

// AgentReport is the latest word of one guest's agent.
type AgentReport struct {
	_               struct{}    `json:"-" additionalProperties:"true"`
	InstanceID      string      `json:"instanceId"`
	AgeMS           int64       `json:"ageMs" minimum:"0" doc:"How long ago the node heard it."`
	Version         string      `json:"version,omitempty"`
	ReconcileResult string      `json:"reconcileResult,omitempty" enum:"ok,error"`
	ReconcileAgeMS  int64       `json:"reconcileAgeMs,omitempty" minimum:"0"`
	InstallCode     string      `json:"installCode,omitempty" doc:"The one-time code of the install command, with the first report after it ran."`
	Boot            *BootReport `json:"boot,omitempty"`
}

// BootReport is what this boot of the guest made of its user-data.
type BootReport struct {
	_            struct{} `json:"-" additionalProperties:"true"`
	Status       string   `json:"status" enum:"running,done,degraded,error,disabled"`
	Detail       string   `json:"detail,omitempty" doc:"The module at fault and its message."`
	UserDataHash string   `json:"userDataHash,omitempty" doc:"sha256:<hex> of the bytes that this boot really ran."`
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
	// Departed goes with the goal gone: the instance is another node's since this epoch.
	Departed bool `json:"departed,omitempty" doc:"It is another node's since this epoch: remove what is left of an earlier one, keep what is of a later one, and make it here again only at a later one."`

	VCPUs        int64           `json:"vcpus"`
	MemoryBytes  int64           `json:"memoryBytes"`
	Image        DesiredImage    `json:"image"`
	Volumes      []DesiredVolume `json:"volumes"`
	UserDataHash string          `json:"userDataHash,omitempty" doc:"Hex sha256 of the user-data; fetch it from …/blobs/{sha256}."`
	PublicKeys   []string        `json:"publicKeys,omitempty"`

	// CloudInitID is the instance-id that cloud-init is told: the instance's own,
	// or another one after a start that asked to run everything again.
	CloudInitID     string             `json:"cloudInitId"`
	Interfaces      []DesiredInterface `json:"interfaces" doc:"Primary first."`
	ImageID         string             `json:"imageId"`
	InstanceType    string             `json:"instanceType,omitempty"`
	Region          string             `json:"region"`
	Zone            string             `json:"availabilityZone"`
	LaunchedAt      *time.Time         `json:"launchedAt,omitempty"`
	Metadata        MetadataOptions    `json:"metadataOptions" doc:"In force at once, running or not."`
	Tags            map[string]string  `json:"tags,omitempty"`
	AgentEnabled    bool               `json:"agentEnabled"`
	AgentActivation string             `json:"agentActivation" enum:"automatic,install-command"`
}

// DesiredInterface is one network card; address and MAC are fixed for its life.
type DesiredInterface struct {
	ID       string `json:"id"`
	SubnetID string `json:"subnetId"`
	MAC      string `json:"mac"`
	Address  string `json:"address"`
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
	// Made: a VM has run with it on this node. Where its file is not there, data are
	// lost, and an empty one in its place would hide that.
	Made bool `json:"made,omitempty"`
	// Image is what the volume is an overlay of: the root's, or a data device's of
	// a multi-volume image. Nil is an empty volume.
	Image *DesiredImage `json:"image,omitempty"`
}
