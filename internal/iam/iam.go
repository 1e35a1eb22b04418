// Package iam says who calls and what they may do.
//
// A caller goes first into every verb, and the verb names its action, so that no
// transport can forget the check.
package iam

import (
	"slices"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// Role of a token.
type Role string

const (
	Operator Role = "operator" // everything of the compute API but the node agent's own verbs
	Node     Role = "node"     // the agent of one node
	Member   Role = "project"  // a member of one project
	Join     Role = "join"     // a machine that is to become a node
	Monitor  Role = "monitor"  // a monitoring system: reads the fleet, and no project
)

// Roles are all roles that a token may have.
var Roles = []Role{Operator, Node, Member, Join, Monitor}

// Caller is who calls: the token that was shown and what it is bound to.
type Caller struct {
	TokenID   string
	Name      string // for the audit log
	Role      Role
	ProjectID string // Member only
	NodeID    string // Node; Join, where it is for one node id only
	NodeRole  string // Node and Join; when set, a heartbeat must claim this role
	NodeZone  string // Node and Join; when set, a heartbeat must claim this zone
}

// System is the caller of the server's own loops.
var System = Caller{TokenID: "system", Name: "system", Role: Operator}

// Action is one thing that a caller can ask for, service:Verb.
type Action string

const (
	RecordHeartbeat Action = "compute:RecordHeartbeat"
	SyncNode        Action = "compute:SyncNode"
	ReadNodeBlob    Action = "compute:ReadNodeBlob"
	ReadNodeImage   Action = "compute:ReadNodeImage"
	PutConsole      Action = "compute:PutConsoleOutput"
	ReportAgents    Action = "compute:ReportAgents"
	ServeConsole    Action = "compute:ServeConsole"
	UploadVolume    Action = "compute:UploadVolume"

	JoinNode        Action = "compute:JoinNode"
	RenewCredential Action = "compute:RenewNodeCredential"
	ListNodeJoins   Action = "compute:ListNodeJoins"
	ApproveNodeJoin Action = "compute:ApproveNodeJoin"
	RefuseNodeJoin  Action = "compute:RefuseNodeJoin"
	ReadmitNode     Action = "compute:ReadmitNode"

	ListNodes  Action = "compute:ListNodes"
	GetNode    Action = "compute:GetNode"
	UpdateNode Action = "compute:UpdateNode"
	DeleteNode Action = "compute:DeleteNode"

	ShutdownNode   Action = "compute:ShutdownNode"
	RebootNode     Action = "compute:RebootNode"
	WakeNode       Action = "compute:WakeNode"
	DeclareNodeOff Action = "compute:DeclareNodeOff"

	CordonNode      Action = "compute:CordonNode"
	UncordonNode    Action = "compute:UncordonNode"
	DrainNode       Action = "compute:DrainNode"
	GetDrain        Action = "compute:GetNodeDrain"
	CancelDrain     Action = "compute:CancelNodeDrain"
	MigrateInstance Action = "compute:MigrateInstance"
	CancelMigration Action = "compute:CancelMigration"

	CreateProject Action = "compute:CreateProject"
	ListProjects  Action = "compute:ListProjects"
	DeleteProject Action = "compute:DeleteProject"

	CreateToken Action = "iam:CreateToken"
	ListTokens  Action = "iam:ListTokens"
	RevokeToken Action = "iam:RevokeToken"
	WhoAmI      Action = "iam:WhoAmI"

	ListInstanceTypes Action = "compute:ListInstanceTypes"
	CreateInstance    Action = "compute:CreateInstance"
	ListInstances     Action = "compute:ListInstances"
	GetInstance       Action = "compute:GetInstance"
	UpdateInstance    Action = "compute:UpdateInstance"
	StartInstance     Action = "compute:StartInstance"
	StopInstance      Action = "compute:StopInstance"
	RebootInstance    Action = "compute:RebootInstance"
	TerminateInstance Action = "compute:TerminateInstance"
	GetConsole        Action = "compute:GetConsoleOutput"
	ListEvents        Action = "compute:ListInstanceEvents"
	PutUserData       Action = "compute:PutUserData"
	DeleteUserData    Action = "compute:DeleteUserData"
	OpenConsole       Action = "compute:OpenConsole"
	EnableAgent       Action = "compute:EnableAgent"
	DisableAgent      Action = "compute:DisableAgent"
	GetAgentStatus    Action = "compute:GetAgentStatus"
	CreateImage       Action = "compute:CreateImage"

	ModifyMetadataOptions Action = "compute:ModifyMetadataOptions"

	AttachVolume Action = "compute:AttachVolume"
	DetachVolume Action = "compute:DetachVolume"
	ListVolumes  Action = "compute:ListVolumes"
	GetVolume    Action = "compute:GetVolume"
	DeleteVolume Action = "compute:DeleteVolume"
	ListSubnets  Action = "compute:ListSubnets"

	CreatePlacementGroup    Action = "compute:CreatePlacementGroup"
	ListPlacementGroups     Action = "compute:ListPlacementGroups"
	GetPlacementGroup       Action = "compute:GetPlacementGroup"
	UpdatePlacementGroup    Action = "compute:UpdatePlacementGroup"
	DeletePlacementGroup    Action = "compute:DeletePlacementGroup"
	ListPlacementViolations Action = "compute:ListPlacementViolations"
	PlanRebalance           Action = "compute:PlanRebalance"
	ExplainPlacement        Action = "compute:ExplainPlacement"

	GetQuota      Action = "compute:GetQuota"
	UpdateQuota   Action = "compute:UpdateQuota"
	GetCapacity   Action = "compute:GetCapacity"
	ListReadiness Action = "compute:ListReadiness"
	GetAudit      Action = "compute:GetAudit"
	ReadMetrics   Action = "compute:ReadMetrics"

	ImportImage Action = "compute:ImportImage"
	ListImages  Action = "compute:ListImages"
	GetImage    Action = "compute:GetImage"
	DeleteImage Action = "compute:DeleteImage"
)

// nodeActions are the node agent's, and nobody else's (contract N-01).
var nodeActions = []Action{RecordHeartbeat, SyncNode, ReadNodeBlob, ReadNodeImage, PutConsole, ReportAgents, ServeConsole, UploadVolume}

// joinActions are a joining machine's. The credential is asked for by the node's
// key, and no token stands for that.
var joinActions = []Action{JoinNode, RenewCredential}

// monitorActions are what a monitoring system may read.
var monitorActions = []Action{ReadMetrics, ListNodes, GetNode, GetCapacity, ListReadiness, GetAudit}

// memberActions are what a member may do inside the own project.
var memberActions = []Action{
	CreateInstance, ListInstances, GetInstance, UpdateInstance, StartInstance, StopInstance, RebootInstance,
	TerminateInstance, GetConsole, ListEvents, PutUserData, DeleteUserData,
	OpenConsole, EnableAgent, DisableAgent, GetAgentStatus, CreateImage, ModifyMetadataOptions,
	AttachVolume, DetachVolume, ListVolumes, GetVolume, DeleteVolume, ListSubnets,
	CreatePlacementGroup, ListPlacementGroups, GetPlacementGroup, UpdatePlacementGroup, DeletePlacementGroup,
	ListPlacementViolations, PlanRebalance, ExplainPlacement, GetQuota,
	ImportImage, ListImages, GetImage, DeleteImage,
}

// anybodyActions need only a valid token.
var anybodyActions = []Action{WhoAmI, ListInstanceTypes}

// Scope is what an action is done to. Empty fields do not apply.
type Scope struct {
	ProjectID string
	NodeID    string
}

// Allow answers nil where c may do a in s. A member asking about another project
// gets NotFound, as if there were none (contract U-05); everybody else who may
// not gets Forbidden.
func Allow(c Caller, a Action, s Scope) error {
	if slices.Contains(anybodyActions, a) && c.Role != "" && (c.Role != Join || a == WhoAmI) {
		return nil
	}
	switch c.Role {
	case Operator:
		if slices.Contains(joinActions, a) {
			break
		}
		if !slices.Contains(nodeActions, a) {
			return nil
		}
		return fault.New(fault.Forbidden, "only the agent of node %q may do this (%s); use a token made with --role node --node %s", s.NodeID, a, s.NodeID)
	case Node:
		if slices.Contains(nodeActions, a) {
			if c.NodeID != "" && c.NodeID == s.NodeID {
				return nil
			}
			return fault.New(fault.Forbidden, "this token belongs to node %q, not to %q", c.NodeID, s.NodeID)
		}
	case Join:
		if a == JoinNode && s.NodeID != "" {
			if c.NodeID == "" || c.NodeID == s.NodeID {
				return nil
			}
			return fault.New(fault.Forbidden, "this join token is for node %q, not for %q", c.NodeID, s.NodeID)
		}
	case Monitor:
		if slices.Contains(monitorActions, a) {
			return nil
		}
	case Member:
		if slices.Contains(memberActions, a) {
			if c.ProjectID != "" && c.ProjectID == s.ProjectID {
				return nil
			}
			return fault.New(fault.NotFound, "there is no project %q that this token can see", s.ProjectID)
		}
	}
	return fault.New(fault.Forbidden, "this token (%s) may not do %s", roleText(c), a)
}

func roleText(c Caller) string {
	if c.Role == "" {
		return "no role"
	}
	return "role " + string(c.Role)
}
