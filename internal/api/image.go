package api

import "time"

// Image is a disk image to launch from.
type Image struct {
	ID               string            `json:"id"`
	ProjectID        string            `json:"projectId"`
	Name             string            `json:"name"`
	Public           bool              `json:"public" doc:"Seen by all projects."`
	SHA256           string            `json:"sha256" doc:"Hex, of the file as imported."`
	Format           string            `json:"format" enum:"qcow2,raw"`
	Architecture     string            `json:"architecture,omitempty" enum:"amd64,arm64" doc:"Its instances go only to nodes of this architecture; to any where it is absent."`
	SizeBytes        int64             `json:"sizeBytes" doc:"Of the file."`
	VirtualSizeBytes int64             `json:"virtualSizeBytes" doc:"Of the disk that a guest sees."`
	State            string            `json:"state" enum:"available,creating,failed" doc:"An image made from an instance is creating until its bytes are here."`
	DataVolumes      []ImageVolume     `json:"dataVolumes,omitempty" doc:"Data devices of a multi-volume image, in order from /dev/vdb."`
	Tags             map[string]string `json:"tags,omitempty"`
	CreatedAt        time.Time         `json:"createdAt"`
}

// ImageVolume is a data device of a multi-volume image.
type ImageVolume struct {
	SnapshotID       string `json:"snapshotId"`
	VirtualSizeBytes int64  `json:"virtualSizeBytes"`
}

// ImageInUse is the details object of code IMAGE_IN_USE (contract E-04).
type ImageInUse struct {
	InstanceIDs []string `json:"instanceIds" doc:"Instances that still stand on the image, 20 at most."`
	Count       int64    `json:"count"`
}

// Project is a tenant.
type Project struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
}

// CreateProject is the body of POST /v1/projects.
type CreateProject struct {
	ID   string `json:"id" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"1-63 of a-z 0-9 -, first alphanumeric."`
	Name string `json:"name,omitempty" maxLength:"255" doc:"Defaults to the id."`
}

// CreateToken is the body of POST /v1/tokens.
type CreateToken struct {
	Name             string `json:"name,omitempty" maxLength:"255" doc:"Shown in lists and in the audit log."`
	Role             string `json:"role" enum:"operator,node,project,join,monitor"`
	ProjectID        string `json:"projectId,omitempty" doc:"Needed with role project."`
	NodeID           string `json:"nodeId,omitempty" doc:"Needed with role node; with role join the only node id that it is for."`
	NodeRole         string `json:"nodeRole,omitempty" enum:"hybrid,hypervisor,control-plane,storage" doc:"With role node or join: the only role that the node's heartbeats may claim."`
	NodeZone         string `json:"nodeZone,omitempty" doc:"With role node or join: the only zone that the node's heartbeats may claim."`
	ExpiresInSeconds int64  `json:"expiresInSeconds,omitempty" minimum:"1" doc:"Never expires when omitted; with role join after an hour, and after a day at most."`
	Uses             int64  `json:"uses,omitempty" minimum:"1" maximum:"1000" doc:"With role join: how many machines it admits; 1 when omitted. A machine that asks again does not count."`
	Approve          bool   `json:"approve,omitempty" doc:"With role join: an operator has to approve each machine."`
}

// Token is a token as lists show it: never the secret.
type Token struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Role       string     `json:"role" enum:"operator,node,project,join,monitor"`
	ProjectID  string     `json:"projectId,omitempty"`
	NodeID     string     `json:"nodeId,omitempty"`
	NodeRole   string     `json:"nodeRole,omitempty"`
	NodeZone   string     `json:"nodeZone,omitempty"`
	UsesLeft   *int64     `json:"usesLeft,omitempty" doc:"Of a join token: how many more machines it admits."`
	Approve    bool       `json:"approve,omitempty" doc:"Of a join token: an operator has to approve each machine."`
	KeyID      string     `json:"keyFingerprint,omitempty" doc:"Of a node's credential: the fingerprint of the key that it was given to."`
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"`
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty" doc:"To the minute."`
	RevokedAt  *time.Time `json:"revokedAt,omitempty"`
}

// NewToken is the answer to a create: the only place where the secret stands.
type NewToken struct {
	Token
	Secret string `json:"token" doc:"The bearer token; shown once."`
}

// Caller is the answer of GET /v1/whoami.
type Caller struct {
	TokenID   string `json:"tokenId"`
	Name      string `json:"name"`
	Role      string `json:"role"`
	ProjectID string `json:"projectId,omitempty"`
	NodeID    string `json:"nodeId,omitempty"`
}
