package server

import (
	"context"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// GroupPath names a placement group.
type GroupPath struct {
	ProjectPath
	Group string `path:"groupId"`
}

// placementRoutes are placement groups, quotas, and what an operator asks about
// the fleet as a whole.
func (s *Server) placementRoutes(c *control.Control) {
	schemas.Schema(typeOf[api.QuotaExceeded](), true, "QuotaExceeded")
	s.groupRoutes(c)
	handle(s, op("POST", "/v1/projects/{projectId}/compute/placement/explain", iam.ExplainPlacement, 200,
		"Say where a create with the same body would go, or why nowhere; nothing is made"),
		func(ctx context.Context, who iam.Caller, in *struct {
			ProjectPath
			LaunchBody
		}) (api.PlacementExplanation, error) {
			return c.ExplainPlacement(ctx, who, in.Project, in.Body)
		})
	handle(s, op("GET", "/v1/projects/{projectId}/quota", iam.GetQuota, 200, "Get what a project may hold and holds"),
		func(ctx context.Context, who iam.Caller, in *ProjectPath) (api.Quota, error) {
			return c.GetQuota(ctx, who, in.Project)
		})
	handle(s, op("PATCH", "/v1/projects/{projectId}/quota", iam.UpdateQuota, 200, "Change what a project may hold; null takes a limit away"),
		func(ctx context.Context, who iam.Caller, in *struct {
			ProjectPath
			Body api.PatchQuota
		}) (api.Quota, error) {
			return c.UpdateQuota(ctx, who, in.Project, in.Body)
		})
	handle(s, op("GET", "/v1/compute/capacity", iam.GetCapacity, 200, "Sum up the fleet by region, zone and role"),
		func(ctx context.Context, who iam.Caller, _ *nothing) (api.Capacity, error) {
			return c.GetCapacity(ctx, who)
		})
	handle(s, op("GET", "/v1/compute/readiness", iam.ListReadiness, 200, "List nodes with findings: what is wrong, since when, and what to do"),
		func(ctx context.Context, who iam.Caller, in *struct {
			PageQuery
			All bool `query:"all" doc:"Also nodes without findings."`
		}) (api.List[api.NodeReadiness], error) {
			return c.ListReadiness(ctx, who, in.page(), in.All)
		})
	handle(s, op("GET", "/v1/compute/audit", iam.GetAudit, 200, "Compare allocations, instances and what nodes report"),
		func(ctx context.Context, who iam.Caller, _ *nothing) (api.Audit, error) { return c.GetAudit(ctx, who) })
}

func (s *Server) groupRoutes(c *control.Control) {
	const all, one = "/v1/projects/{projectId}/compute/placement-groups", "/v1/projects/{projectId}/compute/placement-groups/{groupId}"
	handle(s, op("POST", all, iam.CreatePlacementGroup, 201, "Make a placement group"),
		func(ctx context.Context, who iam.Caller, in *struct {
			ProjectPath
			IdempotencyKey
			Body api.CreatePlacementGroup
		}) (api.PlacementGroup, error) {
			return c.CreatePlacementGroup(ctx, who, in.Project, in.Body, in.Key)
		})
	handle(s, op("GET", all, iam.ListPlacementGroups, 200, "List a project's placement groups, oldest first"),
		func(ctx context.Context, who iam.Caller, in *struct {
			ProjectPath
			PageQuery
		}) (api.List[api.PlacementGroup], error) {
			return c.ListPlacementGroups(ctx, who, in.Project, in.page())
		})
	handle(s, op("GET", one, iam.GetPlacementGroup, 200, "Get a placement group"),
		func(ctx context.Context, who iam.Caller, in *GroupPath) (api.PlacementGroup, error) {
			return c.GetPlacementGroup(ctx, who, in.Project, in.Group)
		})
	handle(s, op("PATCH", one, iam.UpdatePlacementGroup, 200, "Change the name, level or strictness of a placement group; members stay where they are"),
		func(ctx context.Context, who iam.Caller, in *struct {
			GroupPath
			Body api.PatchPlacementGroup
		}) (api.PlacementGroup, error) {
			return c.UpdatePlacementGroup(ctx, who, in.Project, in.Group, in.Body)
		})
	handleNone(s, op("DELETE", one, iam.DeletePlacementGroup, 204, "Delete a placement group; its members run on and lose the reference"),
		func(ctx context.Context, who iam.Caller, in *GroupPath) error {
			return c.DeletePlacementGroup(ctx, who, in.Project, in.Group)
		})
	handle(s, op("GET", one+"/violations", iam.ListPlacementViolations, 200, "List where a placement group does not stand as its rule says"),
		func(ctx context.Context, who iam.Caller, in *GroupPath) (api.List[api.GroupViolation], error) {
			return c.ListPlacementViolations(ctx, who, in.Project, in.Group)
		})
	handle(s, op("GET", one+"/rebalance", iam.PlanRebalance, 200, "Propose moves that bring a placement group nearer to its rule"),
		func(ctx context.Context, who iam.Caller, in *GroupPath) (api.RebalancePlan, error) {
			return c.PlanRebalance(ctx, who, in.Project, in.Group)
		})
}
