package api

import "time"

// CreateInstance is the body of POST /v1/projects/{p}/compute/instances
// (contract U-19). Fields of the contract that are not built yet are refused by
// name, never ignored.
type CreateInstance struct {
	Name                string            `json:"name" minLength:"1" maxLength:"63" doc:"Display name and the guest's hostname where it is one."`
	ImageID             string            `json:"imageId" minLength:"1" doc:"Id of an image of this project or of a public one."`
	InstanceType        string            `json:"instanceType,omitempty" doc:"Catalog name, e.g. m1.small; or give vcpus and memoryBytes."`
	VCPUs               int64             `json:"vcpus,omitempty" minimum:"1" maximum:"512" doc:"With memoryBytes: a custom shape."`
	MemoryBytes         int64             `json:"memoryBytes,omitempty" minimum:"67108864" maximum:"17592186044416"`
	RootVolumeBytes     int64             `json:"rootVolumeBytes,omitempty" minimum:"1048576" maximum:"70368744177664" doc:"Size of the root volume; at least the image's."`
	UserData            *string           `json:"userData,omitempty" doc:"Base64 (RFC 4648, padded) of 1 to 65,536 bytes."`
	PublicKeys          []string          `json:"publicKeys,omitempty" maxItems:"32" doc:"OpenSSH public key lines."`
	DesiredState        string            `json:"desiredState,omitempty" enum:"running,stopped"`
	StartOnNodeBoot     bool              `json:"startOnNodeBoot,omitempty"`
	MaintenanceStrategy string            `json:"maintenanceStrategy,omitempty" enum:"migrate,stop,recreate" doc:"What a drain of its node does with it: move it with its volumes (the default), stop it where it is, or make it anew elsewhere from its image, which loses the root volume's content."`
	AgentEnabled        *bool             `json:"agentEnabled,omitempty"`
	Tags                map[string]string `json:"tags,omitempty"`

	MetadataOptions  *MetadataOptions  `json:"metadataOptions,omitempty"`
	DataVolumes      []DataVolumeInput `json:"dataVolumes,omitempty"`
	SubnetIDs        []string          `json:"subnetIds,omitempty"`
	FloatingIPPool   string            `json:"floatingIPPool,omitempty"`
	PlacementGroupID string            `json:"placementGroupId,omitempty" doc:"Id of a placement group of this project."`
	InstanceProfile  string            `json:"instanceProfile,omitempty"`
	Selectors        []string          `json:"selectors,omitempty" maxItems:"32" doc:"Conditions on the labels of its node, all of which have to hold: KEY, !KEY, KEY=VALUE, KEY!=VALUE, KEY in (A, B), KEY not in (A, B), KEY>=N."`
	Countables       map[string]int64  `json:"countables,omitempty" doc:"Units of countable labels, like {\"capability.gpu.nvidia-l40s\": 1}."`
}

// DataVolumeInput asks for one data volume.
type DataVolumeInput struct {
	SizeBytes int64 `json:"sizeBytes" minimum:"1048576"`
}

// MetadataOptions are the EC2-shaped options of the metadata service (contract
// U-18). Omitted ones are enabled, required and 1.
type MetadataOptions struct {
	HTTPEndpoint            string `json:"httpEndpoint,omitempty" enum:"enabled,disabled"`
	HTTPTokens              string `json:"httpTokens,omitempty" enum:"optional,required" doc:"Recorded; session tokens are always needed."`
	HTTPPutResponseHopLimit int64  `json:"httpPutResponseHopLimit,omitempty" minimum:"1" maximum:"64"`
	InstanceMetadataTags    string `json:"instanceMetadataTags,omitempty" enum:"enabled,disabled"`
}

// Instance is the answer for one VM.
type Instance struct {
	ID                              string             `json:"id"`
	ProjectID                       string             `json:"projectId"`
	Name                            string             `json:"name"`
	ImageID                         string             `json:"imageId"`
	InstanceType                    string             `json:"instanceType" doc:"Catalog name; empty for a custom shape: read vcpus and memoryBytes."`
	VCPUs                           int64              `json:"vcpus" doc:"Effective count."`
	MemoryBytes                     int64              `json:"memoryBytes" doc:"Effective size, bytes."`
	NodeID                          string             `json:"nodeId" doc:"Empty until scheduled."`
	State                           string             `json:"state" enum:"creating,running,stopping,stopped,starting,rebooting,migrating,terminating,terminated,error"`
	StateMessage                    string             `json:"stateMessage,omitempty" doc:"Detail for a person when state is error, or what a launch waits for."`
	DesiredState                    string             `json:"desiredState,omitempty" enum:"running,stopped" doc:"What was asked for, apart from state; the platform converges the two."`
	Health                          string             `json:"health" enum:"healthy,degraded,unhealthy,migrating,unknown,agent_disabled"`
	HealthReason                    *HealthReason      `json:"healthReason,omitempty" doc:"Why health reads as it does. Only on GET by id, and only when there is something to explain."`
	AgentEnabled                    bool               `json:"agentEnabled"`
	AgentActivation                 string             `json:"agentActivation" enum:"automatic,install-command"`
	AgentEnrollmentPending          bool               `json:"agentEnrollmentPending"`
	AgentEnrolledAt                 *time.Time         `json:"agentEnrolledAt,omitempty"`
	AgentStatus                     *AgentStatus       `json:"agentStatus,omitempty" doc:"Only on GET by id."`
	Boot                            *BootCondition     `json:"boot,omitempty" doc:"What the guest's last reported boot made of its user-data."`
	ForceStopping                   bool               `json:"forceStopping" doc:"True while a forced stop is in flight."`
	StartOnNodeBoot                 bool               `json:"startOnNodeBoot"`
	MaintenanceStrategy             string             `json:"maintenanceStrategy" enum:"migrate,stop,recreate" doc:"What a drain of its node does with it."`
	Migration                       *Migration         `json:"migration,omitempty" doc:"While it is on its way to another node."`
	RootVolumeID                    string             `json:"rootVolumeId"`
	RootVolumeAutoProvisioned       bool               `json:"rootVolumeAutoProvisioned"`
	DataVolumes                     []DataVolume       `json:"dataVolumes,omitempty"`
	PrimaryInterfaceID              string             `json:"primaryInterfaceId,omitempty"`
	PrimaryInterfaceAutoProvisioned bool               `json:"primaryInterfaceAutoProvisioned"`
	NetworkInterfaces               []NetworkInterface `json:"networkInterfaces"`
	PrimaryPrivateIP                string             `json:"primaryPrivateIP" doc:"Empty until scheduled."`
	PrivateIPAddress                string             `json:"privateIpAddress" doc:"AWS-parity alias of primaryPrivateIP."`
	PlacementGroupID                string             `json:"placementGroupId,omitempty" doc:"The placement group that it was placed by; absent when it joined none, or once the group is deleted."`
	PlacementGroupName              string             `json:"placementGroupName,omitempty"`
	Selectors                       []string           `json:"selectors,omitempty" doc:"Conditions on the labels of its node."`
	Countables                      map[string]int64   `json:"countables,omitempty" doc:"Units that it holds of its node, by label key."`
	UserDataHash                    string             `json:"userDataHash,omitempty" doc:"sha256:<hex> over the user-data bytes; absent when there is none."`
	MetadataOptions                 MetadataOptions    `json:"metadataOptions"`
	PublicKeys                      []string           `json:"publicKeys,omitempty"`
	Tags                            map[string]string  `json:"tags,omitempty"`
	Warnings                        []string           `json:"warnings,omitempty" doc:"What the caller should know of this request, e.g. what a lint of the user-data found. Only on answers to changes."`
	CreatedAt                       time.Time          `json:"createdAt"`
	LaunchedAt                      *time.Time         `json:"launchedAt,omitempty" doc:"When it was first seen running."`
}

// HealthReason explains health (contract U-08). The message is no stable contract.
type HealthReason struct {
	Code     string     `json:"code" enum:"agent_pending,agent_never_reported,agent_gone_quiet,agent_disabled,agent_enrollment_pending"`
	Message  string     `json:"message"`
	Since    *time.Time `json:"since,omitempty"`
	Deadline *time.Time `json:"deadline,omitempty" doc:"Only for agent_pending: after it the code becomes agent_never_reported."`
}

// AgentStatus is the guest agent's own liveness (contract U-10).
type AgentStatus struct {
	InstanceID          string     `json:"instanceId"`
	Health              string     `json:"health" enum:"healthy,degraded,unhealthy,unknown,agent_disabled,enrollment_pending"`
	LastHeartbeatAt     *time.Time `json:"lastHeartbeatAt,omitempty"`
	Version             string     `json:"version,omitempty"`
	LastReconcileResult string     `json:"lastReconcileResult,omitempty" enum:"ok,error"`
	LastReconcileAt     *time.Time `json:"lastReconcileAt,omitempty"`
}

// BootCondition is what a boot made of its user-data, told by the guest's agent.
type BootCondition struct {
	Status       string    `json:"status" enum:"running,done,degraded,error,disabled"`
	Detail       string    `json:"detail,omitempty"`
	UserDataHash string    `json:"userDataHash,omitempty" doc:"Of the bytes that the boot really ran; compare with the instance's userDataHash."`
	At           time.Time `json:"at"`
}

// DataVolume is a data volume of an instance (contract U-11).
type DataVolume struct {
	Device           string `json:"device" doc:"Guest device, e.g. /dev/vdb."`
	VolumeID         string `json:"volumeId"`
	SizeBytes        int64  `json:"sizeBytes"`
	SourceSnapshotID string `json:"sourceSnapshotId,omitempty"`
}

// NetworkInterface is a card of an instance (contract U-12).
type NetworkInterface struct {
	ID        string `json:"id"`
	PrivateIP string `json:"privateIp"`
	SubnetID  string `json:"subnetId"`
	VPCID     string `json:"vpcId"`
	MAC       string `json:"macAddress"`
}

// Volume is a block device on a node, attached to an instance or to none.
type Volume struct {
	ID               string    `json:"id"`
	ProjectID        string    `json:"projectId"`
	SizeBytes        int64     `json:"sizeBytes"`
	NodeID           string    `json:"nodeId" doc:"Where its file is; empty until its first instance is placed."`
	InstanceID       string    `json:"instanceId,omitempty"`
	Device           string    `json:"device,omitempty"`
	Root             bool      `json:"root"`
	AutoProvisioned  bool      `json:"autoProvisioned" doc:"Goes with its instance."`
	SourceSnapshotID string    `json:"sourceSnapshotId,omitempty"`
	CreatedAt        time.Time `json:"createdAt"`
}

// Subnet is a segment of a project's network.
type Subnet struct {
	ID      string `json:"id"`
	VPCID   string `json:"vpcId"`
	CIDR    string `json:"cidr"`
	Default bool   `json:"default"`
}

// AttachVolume is the body of POST …/attach-volume: a volume of the project, or
// the size of a new one.
type AttachVolume struct {
	VolumeID  string `json:"volumeId,omitempty"`
	SizeBytes int64  `json:"sizeBytes,omitempty" minimum:"1048576" maximum:"70368744177664"`
}

// DetachVolume is the body of POST …/detach-volume.
type DetachVolume struct {
	VolumeID string `json:"volumeId" minLength:"1"`
}

// StartInstance is the optional body of POST …/start.
type StartInstance struct {
	Rerun bool `json:"rerun,omitempty" doc:"Give cloud-init a new instance-id, so that everything runs again; the guest's ssh host keys change."`
}

// EnableAgent is the optional body of POST …/enable-agent.
type EnableAgent struct {
	Force bool `json:"force,omitempty" doc:"Turn automatic activation into install-command for good."`
}

// EnabledAgent is its answer.
type EnabledAgent struct {
	Instance
	InstallCommand string `json:"installCommand,omitempty" doc:"One-time command to run as root in the guest; shown once. Absent with automatic activation."`
}

// CreateImage is the body of POST …/create-image.
type CreateImage struct {
	Name string `json:"name" minLength:"1" maxLength:"255"`
}

// PatchInstance is the body of PATCH on an instance. Only what it names changes.
type PatchInstance struct {
	Name                *string           `json:"name,omitempty" minLength:"1" maxLength:"63"`
	DesiredState        Nullable[string]  `json:"desiredState,omitzero" enum:"running,stopped" doc:"null: no wish."`
	StartOnNodeBoot     *bool             `json:"startOnNodeBoot,omitempty"`
	MaintenanceStrategy Nullable[string]  `json:"maintenanceStrategy,omitzero" enum:"migrate,stop,recreate" doc:"null: migrate."`
	Tags                map[string]string `json:"tags,omitzero" doc:"Replaces all tags; {} removes them."`
}

// StopInstance is the optional body of POST …/stop.
type StopInstance struct {
	Force           bool   `json:"force,omitempty" doc:"Pull the plug now."`
	DeadlineSeconds *int64 `json:"deadlineSeconds,omitempty" minimum:"0" maximum:"3600" doc:"How long the guest may take before the plug is pulled; 90 when omitted."`
}

// RebootInstance is the optional body of POST …/reboot.
type RebootInstance struct {
	Force bool `json:"force,omitempty" doc:"Reset at once instead of asking the guest."`
}

// Event is one entry of an instance's timeline.
type Event struct {
	At      time.Time `json:"at"`
	Actor   string    `json:"actor" doc:"Who: a token's name, a node, or system."`
	Event   string    `json:"event" doc:"What, e.g. start, placed, state."`
	State   string    `json:"state" doc:"State of the instance afterwards."`
	Message string    `json:"message,omitempty"`
}

// InstanceType is an entry of the catalog.
type InstanceType struct {
	Name            string `json:"name"`
	VCPUs           int64  `json:"vcpus"`
	MemoryBytes     int64  `json:"memoryBytes"`
	RootVolumeBytes int64  `json:"rootVolumeBytes"`
}

// Console is the tail of an instance's serial console.
type Console struct {
	InstanceID string    `json:"instanceId"`
	Output     string    `json:"output" doc:"Base64 of the last bytes, 256 KiB at most."`
	At         time.Time `json:"at" doc:"When the node sent it."`
}
