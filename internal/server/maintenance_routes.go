package server

import (
	"context"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// maintenanceRoutes take nodes out of service and back, and move instances.
func (s *Server) maintenanceRoutes(c *control.Control) {
	const node, one = "/v1/compute/nodes/{nodeId}", "/v1/projects/{projectId}/compute/instances/{instanceId}"
	handle(s, op("POST", node+"/cordon", iam.CordonNode, 200, "Place nothing new on a node; what runs there goes on"),
		func(ctx context.Context, who iam.Caller, in *struct {
			NodePath
			Body *api.CordonNode
		}) (api.Node, error) {
			return c.CordonNode(ctx, who, in.Node, value(in.Body))
		})
	handle(s, op("POST", node+"/uncordon", iam.UncordonNode, 200, "Let a node take part again; a drain of it ends, and what was stopped there for it is started"),
		func(ctx context.Context, who iam.Caller, in *NodePath) (api.Node, error) {
			return c.UncordonNode(ctx, who, in.Node)
		})
	handle(s, op("POST", node+"/drain", iam.DrainNode, 202, "Empty a node; with dryRun, say what that would do and change nothing"),
		func(ctx context.Context, who iam.Caller, in *struct {
			NodePath
			Body *api.DrainNode
		}) (api.Drain, error) {
			return c.DrainNode(ctx, who, in.Node, value(in.Body))
		})
	handle(s, op("GET", node+"/drain", iam.GetDrain, 200, "Get how far the latest drain of a node is, and whether the machine may be powered off"),
		func(ctx context.Context, who iam.Caller, in *NodePath) (api.Drain, error) {
			return c.GetDrain(ctx, who, in.Node)
		})
	handle(s, op("POST", node+"/drain/cancel", iam.CancelDrain, 200, "Stop draining a node and let it take part again; what has left it stays where it is"),
		func(ctx context.Context, who iam.Caller, in *NodePath) (api.Drain, error) {
			return c.CancelDrain(ctx, who, in.Node)
		})
	handle(s, op("POST", one+"/migrate", iam.MigrateInstance, 202, "Move an instance with its volumes to another node; it is down meanwhile"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			Body *api.MigrateInstance
		}) (api.Instance, error) {
			return c.MigrateInstance(ctx, who, in.Project, in.Instance, value(in.Body))
		})
	handle(s, op("POST", one+"/migrate/cancel", iam.CancelMigration, 202, "Give up a migration that has not switched; the instance starts again where it is, if it ran"),
		func(ctx context.Context, who iam.Caller, in *InstancePath) (api.Instance, error) {
			return c.CancelMigration(ctx, who, in.Project, in.Instance)
		})
}
