package api

import (
	"crypto/ed25519"
	"errors"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
)

// MaxJoinBytes bounds the body of a join and of a renewal.
const MaxJoinBytes = 8 << 10

// maxMachineText bounds a machine id and a boot id, which have 32 and 36 characters
// on Linux.
const maxMachineText = 128

// NodeClaim is how a machine describes itself when it asks for a node's credential
// (POST …/credential, signed by the node's key). Unknown fields are ignored.
type NodeClaim struct {
	_         struct{} `json:"-" additionalProperties:"true"`
	Hostname  string   `json:"hostname" minLength:"1" maxLength:"253"`
	MachineID string   `json:"machineId,omitempty" maxLength:"128" doc:"Of the machine; the node id is bound to it."`
	BootID    string   `json:"bootId,omitempty" maxLength:"128"`
}

// NodeJoin is the body of POST …/join: the claim with the key that signs it.
type NodeJoin struct {
	_         struct{} `json:"-" additionalProperties:"true"`
	PublicKey string   `json:"publicKey" doc:"Base64 of the 32 bytes of an Ed25519 public key."`
	Hostname  string   `json:"hostname" minLength:"1" maxLength:"253"`
	MachineID string   `json:"machineId,omitempty" maxLength:"128"`
	BootID    string   `json:"bootId,omitempty" maxLength:"128"`
}

// Claim is the part of a join that is not the key.
func (j *NodeJoin) Claim() NodeClaim {
	return NodeClaim{Hostname: j.Hostname, MachineID: j.MachineID, BootID: j.BootID}
}

// Admission is the answer to a join and to a renewal.
type Admission struct {
	Status           string `json:"status" enum:"admitted,pending" doc:"pending: an operator is to approve the machine; ask POST …/credential again."`
	Fingerprint      string `json:"fingerprint" doc:"Of the node's key."`
	Token            string `json:"token,omitempty" doc:"The node's bearer token, when it is admitted."`
	ExpiresInSeconds int64  `json:"expiresInSeconds,omitempty" doc:"How long the token is valid; renew it when half of that is over."`
	NodeRole         string `json:"nodeRole,omitempty" doc:"The only role that heartbeats may claim; any when absent."`
	NodeZone         string `json:"nodeZone,omitempty" doc:"The only zone that heartbeats may claim; any when absent."`
}

// Statuses of an Admission.
const (
	Admitted = "admitted"
	Pending  = "pending"
)

// PendingJoin is a machine that waits for an operator's approval (contract N-22).
type PendingJoin struct {
	NodeID      string    `json:"nodeId"`
	Fingerprint string    `json:"fingerprint" doc:"Of the machine's key; its agent logs the same."`
	Hostname    string    `json:"hostname"`
	MachineID   string    `json:"machineId,omitempty"`
	BootID      string    `json:"bootId,omitempty"`
	TokenID     string    `json:"tokenId" doc:"The join token that it came with."`
	NodeRole    string    `json:"nodeRole,omitempty"`
	NodeZone    string    `json:"nodeZone,omitempty"`
	CreatedAt   time.Time `json:"createdAt"`
	LastSeenAt  time.Time `json:"lastSeenAt"`
	ExpiresAt   time.Time `json:"expiresAt"`
}

// JoinVerdict is the body of an approval or refusal.
type JoinVerdict struct {
	Fingerprint string `json:"fingerprint,omitempty" doc:"When given, it has to be that of the machine that waits."`
}

// ApprovalRefused is the details of JOIN_APPROVAL_REFUSED.
type ApprovalRefused struct {
	Reason string `json:"reason" enum:"NOT_PENDING,EXPIRED,FINGERPRINT_MISMATCH,NODE_TAKEN"`
}

// ReadmitNode is the body of POST …/readmit.
type ReadmitNode struct {
	NodeRole         string `json:"nodeRole,omitempty" enum:"hybrid,hypervisor,control-plane,storage" doc:"The only role that the node may claim from now on."`
	NodeZone         string `json:"nodeZone,omitempty" doc:"The only zone that the node may claim from now on."`
	ExpiresInSeconds int64  `json:"expiresInSeconds,omitempty" minimum:"1" maximum:"86400" doc:"Of the new join token; an hour when omitted."`
	Approve          bool   `json:"approve,omitempty" doc:"An operator has to approve the machine."`
}

// Claimant is one of two machines that claim a node id.
type Claimant struct {
	Hostname    string     `json:"hostname,omitempty"`
	MachineID   string     `json:"machineId,omitempty"`
	BootID      string     `json:"bootId,omitempty"`
	Fingerprint string     `json:"fingerprint,omitempty"`
	SeenAt      *time.Time `json:"seenAt,omitempty"`
}

// NodeIDConflict is the details of NODE_ID_CONFLICT (contract N-21).
type NodeIDConflict struct {
	NodeID   string   `json:"nodeId"`
	Holder   Claimant `json:"holder" doc:"The machine that the id belongs to."`
	Claimant Claimant `json:"claimant" doc:"The machine that asked."`
}

// DecodeJoin reads the body of a join and names every problem in it.
func DecodeJoin(b []byte) (j NodeJoin, key ed25519.PublicKey, err error) {
	bad := decodeClaim(b, &j)
	if bad == nil {
		bad = checkClaim(j.Claim())
		if key, err = httpsig.ParsePublicKey(j.PublicKey); err != nil {
			bad = append(bad, fault.Field{Path: "publicKey", Message: err.Error()})
		}
	}
	return j, key, fault.InvalidFields(bad)
}

// DecodeClaim reads the body of a renewal and names every problem in it.
func DecodeClaim(b []byte) (c NodeClaim, err error) {
	bad := decodeClaim(b, &c)
	if bad == nil {
		bad = checkClaim(c)
	}
	return c, fault.InvalidFields(bad)
}

func decodeClaim(b []byte, to any) []fault.Field {
	err := jsonv2.Unmarshal(b, to)
	if err == nil && strings.HasPrefix(strings.TrimSpace(string(b)), "{") {
		return nil
	}
	if e, ok := errors.AsType[*jsonv2.SemanticError](err); ok && e.JSONPointer != "" {
		return []fault.Field{{Path: strings.TrimPrefix(string(e.JSONPointer), "/"), Message: "must be a string"}}
	}
	return []fault.Field{{Message: "the body is not one JSON object" + syntaxHint(b)}}
}

func checkClaim(c NodeClaim) (bad []fault.Field) {
	for _, f := range []struct {
		path, value string
		max         int
	}{{"hostname", c.Hostname, maxHostname}, {"machineId", c.MachineID, maxMachineText}, {"bootId", c.BootID, maxMachineText}} {
		switch {
		case f.path == "hostname" && f.value == "":
			bad = append(bad, fault.Field{Path: f.path, Message: "is needed"})
		case !fits(f.value, f.max):
			bad = append(bad, fault.Field{Path: f.path, Message: "has more than " + strconv.Itoa(f.max) + " characters"})
		case strings.Contains(f.value, "\x00"):
			bad = append(bad, fault.Field{Path: f.path, Message: "must not hold the character NUL"})
		}
	}
	return bad
}
