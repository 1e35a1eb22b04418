package server

import (
	"context"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// powerRoutes power nodes off and on.
func (s *Server) powerRoutes(c *control.Control) {
	const one = "/v1/compute/nodes/{nodeId}"
	schemas.Schema(typeOf[api.RunningInstances](), true, "RunningInstances")
	type request struct {
		NodePath
		Body *api.PowerRequest
	}
	handle(s, op("POST", one+"/shutdown", iam.ShutdownNode, 202, "Power a node off; refused while instances run there, unless forced"),
		func(ctx context.Context, who iam.Caller, in *request) (api.Node, error) {
			return c.ShutdownNode(ctx, who, in.Node, value(in.Body))
		})
	handle(s, op("POST", one+"/reboot", iam.RebootNode, 202, "Reboot a node; refused while instances run there, unless forced"),
		func(ctx context.Context, who iam.Caller, in *request) (api.Node, error) {
			return c.RebootNode(ctx, who, in.Node, value(in.Body))
		})
	handle(s, op("POST", one+"/wake", iam.WakeNode, 202, "Let another node of the same segment send a Wake-on-LAN packet to a node that is off"),
		func(ctx context.Context, who iam.Caller, in *struct {
			NodePath
			Body *api.WakeRequest
		}) (api.WakeSent, error) {
			return c.WakeNode(ctx, who, in.Node, value(in.Body))
		})
	handle(s, op("POST", one+"/declare-off", iam.DeclareNodeOff, 200, "Take an operator's word that a node which nobody hears of is dead, or preview what that releases"),
		func(ctx context.Context, who iam.Caller, in *struct {
			NodePath
			Body *api.DeclareOff
		}) (api.DeclaredOff, error) {
			return c.DeclareNodeOff(ctx, who, in.Node, value(in.Body))
		})
}
