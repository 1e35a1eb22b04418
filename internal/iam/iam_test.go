package iam_test

import (
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// What each role may do where; the routes' walk in the server shows the same for
// every action.
// contract: N-01 N-24 U-05
func TestAllow(t *testing.T) {
	operator := iam.Caller{Role: iam.Operator}
	node := iam.Caller{Role: iam.Node, NodeID: "n1"}
	member := iam.Caller{Role: iam.Member, ProjectID: "p"}
	monitor := iam.Caller{Role: iam.Monitor}
	join, joinN1 := iam.Caller{Role: iam.Join}, iam.Caller{Role: iam.Join, NodeID: "n1"}
	for _, c := range []struct {
		name   string
		caller iam.Caller
		action iam.Action
		scope  iam.Scope
		want   fault.Kind // Internal: allowed
	}{
		{"operator, any project", operator, iam.GetInstance, iam.Scope{ProjectID: "x"}, fault.Internal},
		{"operator is no node agent", operator, iam.RecordHeartbeat, iam.Scope{NodeID: "n1"}, fault.Forbidden},
		{"node itself", node, iam.RecordHeartbeat, iam.Scope{NodeID: "n1"}, fault.Internal},
		{"node for another", node, iam.RecordHeartbeat, iam.Scope{NodeID: "n2"}, fault.Forbidden},
		{"node for none", node, iam.RecordHeartbeat, iam.Scope{}, fault.Forbidden},
		{"node in a project", node, iam.GetInstance, iam.Scope{ProjectID: "p"}, fault.Forbidden},
		{"node on nodes", node, iam.GetNode, iam.Scope{NodeID: "n1"}, fault.Forbidden},
		{"member at home", member, iam.GetInstance, iam.Scope{ProjectID: "p"}, fault.Internal},
		{"member abroad", member, iam.GetInstance, iam.Scope{ProjectID: "q"}, fault.NotFound},
		{"member nowhere", member, iam.GetInstance, iam.Scope{}, fault.NotFound},
		{"member and nodes", member, iam.ListNodes, iam.Scope{}, fault.Forbidden},
		{"member and tokens", member, iam.CreateToken, iam.Scope{}, fault.Forbidden},
		{"member as a node", member, iam.SyncNode, iam.Scope{NodeID: ""}, fault.Forbidden},
		{"join, any node", join, iam.JoinNode, iam.Scope{NodeID: "n1"}, fault.Internal},
		{"join, no node", join, iam.JoinNode, iam.Scope{}, fault.Forbidden},
		{"join, its node", joinN1, iam.JoinNode, iam.Scope{NodeID: "n1"}, fault.Internal},
		{"join, another node", joinN1, iam.JoinNode, iam.Scope{NodeID: "n2"}, fault.Forbidden},
		{"join is no agent", joinN1, iam.RecordHeartbeat, iam.Scope{NodeID: "n1"}, fault.Forbidden},
		{"join looks at no node", joinN1, iam.GetNode, iam.Scope{NodeID: "n1"}, fault.Forbidden},
		{"join and instance types", join, iam.ListInstanceTypes, iam.Scope{}, fault.Forbidden},
		{"nobody renews by a token", node, iam.RenewCredential, iam.Scope{NodeID: "n1"}, fault.Forbidden},
		{"an operator joins nothing", operator, iam.JoinNode, iam.Scope{NodeID: "n1"}, fault.Forbidden},
		{"a node joins nothing", node, iam.JoinNode, iam.Scope{NodeID: "n1"}, fault.Forbidden},
		{"monitor, metrics", monitor, iam.ReadMetrics, iam.Scope{}, fault.Internal},
		{"monitor, a node", monitor, iam.GetNode, iam.Scope{NodeID: "n1"}, fault.Internal},
		{"monitor changes nothing", monitor, iam.UpdateNode, iam.Scope{NodeID: "n1"}, fault.Forbidden},
		{"monitor sees no project", monitor, iam.ListInstances, iam.Scope{ProjectID: "p"}, fault.Forbidden},
		{"monitor makes no token", monitor, iam.CreateToken, iam.Scope{}, fault.Forbidden},
		{"a member reads no metrics", member, iam.ReadMetrics, iam.Scope{}, fault.Forbidden},
		{"a node reads no metrics", node, iam.ReadMetrics, iam.Scope{}, fault.Forbidden},
		{"no role", iam.Caller{}, iam.WhoAmI, iam.Scope{}, fault.Forbidden},
		{"an unknown role", iam.Caller{Role: "king"}, iam.GetInstance, iam.Scope{}, fault.Forbidden},
		{"an unknown action", member, "compute:Nothing", iam.Scope{ProjectID: "p"}, fault.Forbidden},
		{"a node without a node", iam.Caller{Role: iam.Node}, iam.SyncNode, iam.Scope{}, fault.Forbidden},
		{"a member without a project", iam.Caller{Role: iam.Member}, iam.GetInstance, iam.Scope{}, fault.NotFound},
	} {
		err := iam.Allow(c.caller, c.action, c.scope)
		if c.want == fault.Internal && err != nil || c.want != fault.Internal && !fault.Is(err, c.want) {
			t.Errorf("%s: %v, want kind %d", c.name, err, c.want)
		}
	}
	for _, role := range iam.Roles {
		if err := iam.Allow(iam.Caller{Role: role}, iam.WhoAmI, iam.Scope{}); err != nil {
			t.Errorf("%s may not ask who it is: %v", role, err)
		}
	}
}
