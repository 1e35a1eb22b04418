package server

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// What paths and queries carry. Exported, because huma fills embedded structs only
// then.
type (
	nothing        struct{}
	IdempotencyKey struct {
		Key string `header:"Idempotency-Key" doc:"Makes the create safe to send again: the same key with the same body answers the first answer, for 24 hours."`
	}
	PageQuery struct {
		Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
		Cursor string `query:"cursor" doc:"nextCursor of the page before."`
	}
	NodePath struct {
		Node string `path:"nodeId"`
	}
	ProjectPath struct {
		Project string `path:"projectId"`
	}
	TokenPath struct {
		Token string `path:"tokenId"`
	}
	InstancePath struct {
		ProjectPath
		Instance string `path:"instanceId"`
	}
	VolumePath struct {
		ProjectPath
		Volume string `path:"volumeId"`
	}
	ImagePath struct {
		ProjectPath
		Image string `path:"imageId"`
	}
)

func (q PageQuery) page() control.Page { return control.Page{Limit: q.Limit, Cursor: q.Cursor} }

// computeRoutes is the compute API as a table: path, action, verb. Routes whose
// bodies are not JSON, and the hot one, stand in raw.go.
func (s *Server) computeRoutes() {
	c := s.control
	schemas.Schema(typeOf[api.ImageInUse](), true, "ImageInUse")

	handle(s, op("GET", "/v1/whoami", iam.WhoAmI, 200, "Who this token stands for"),
		func(ctx context.Context, who iam.Caller, _ *nothing) (api.Caller, error) { return c.WhoAmI(ctx, who) })

	handle(s, op("POST", "/v1/tokens", iam.CreateToken, 201, "Make a token; its secret is shown once"),
		func(ctx context.Context, who iam.Caller, in *struct {
			IdempotencyKey
			TokenBody
		}) (api.NewToken, error) {
			return c.CreateTokenOnce(ctx, who, in.Body, in.Key)
		})
	handle(s, op("GET", "/v1/tokens", iam.ListTokens, 200, "List tokens, oldest first"),
		func(ctx context.Context, who iam.Caller, in *PageQuery) (api.List[api.Token], error) {
			return c.ListTokens(ctx, who, in.page())
		})
	handleNone(s, op("DELETE", "/v1/tokens/{tokenId}", iam.RevokeToken, 204, "Revoke a token at once"),
		func(ctx context.Context, who iam.Caller, in *TokenPath) error {
			return c.RevokeToken(ctx, who, in.Token)
		})

	handle(s, op("POST", "/v1/projects", iam.CreateProject, 201, "Make a project"),
		func(ctx context.Context, who iam.Caller, in *struct {
			IdempotencyKey
			Body api.CreateProject
		}) (api.Project, error) {
			return c.CreateProject(ctx, who, in.Body, in.Key)
		})
	handle(s, op("GET", "/v1/projects", iam.ListProjects, 200, "List projects"),
		func(ctx context.Context, who iam.Caller, in *PageQuery) (api.List[api.Project], error) {
			return c.ListProjects(ctx, who, in.page())
		})
	handleNone(s, op("DELETE", "/v1/projects/{projectId}", iam.DeleteProject, 204, "Delete an empty project"),
		func(ctx context.Context, who iam.Caller, in *ProjectPath) error {
			return c.DeleteProject(ctx, who, in.Project)
		})

	s.nodeRoutes(c)
	s.instanceRoutes(c)
	s.imageRoutes(c)
	s.maintenanceRoutes(c)
	s.placementRoutes(c)
}

func (s *Server) nodeRoutes(c *control.Control) {
	handle(s, op("GET", "/v1/compute/nodes", iam.ListNodes, 200, "List nodes"),
		func(ctx context.Context, who iam.Caller, in *PageQuery) (api.List[api.Node], error) {
			return c.ListNodes(ctx, who, in.page())
		})
	handle(s, op("GET", "/v1/compute/nodes/{nodeId}", iam.GetNode, 200, "Get a node"),
		func(ctx context.Context, who iam.Caller, in *NodePath) (api.Node, error) {
			return c.GetNode(ctx, who, in.Node)
		})
	handle(s, op("PATCH", "/v1/compute/nodes/{nodeId}", iam.UpdateNode, 200, "Set the display name, reservation, ratios or declared labels of a node"),
		func(ctx context.Context, who iam.Caller, in *struct {
			NodePath
			PatchNodeBody
		}) (api.Node, error) {
			return c.UpdateNode(ctx, who, in.Node, in.Body)
		})
	handleNone(s, op("DELETE", "/v1/compute/nodes/{nodeId}", iam.DeleteNode, 204, "Forget a node that holds nothing; its tokens end"),
		func(ctx context.Context, who iam.Caller, in *NodePath) error { return c.DeleteNode(ctx, who, in.Node) })
	handle(s, op("POST", "/v1/compute/nodes/{nodeId}/sync", iam.SyncNode, 200, "Report what a node observes and take what it is to do (agent-only)"),
		func(ctx context.Context, who iam.Caller, in *struct {
			NodePath
			Body api.SyncRequest
		}) (api.SyncResponse, error) {
			return c.Sync(ctx, who, in.Node, &in.Body, s.stopping)
		})
	handleNone(s, op("POST", "/v1/compute/nodes/{nodeId}/agent-reports", iam.ReportAgents, 204, "Send what guests' agents reported (agent-only)"),
		func(ctx context.Context, who iam.Caller, in *struct {
			NodePath
			Body api.AgentReports
		}) error {
			return c.ReportAgents(ctx, who, in.Node, in.Body)
		})
	s.powerRoutes(c)
	s.heartbeatRoute()
	s.joinRoutes(c)
	s.nodeFileRoutes()
}

func (s *Server) instanceRoutes(c *control.Control) {
	const all, one = "/v1/projects/{projectId}/compute/instances", "/v1/projects/{projectId}/compute/instances/{instanceId}"
	handle(s, op("GET", "/v1/compute/instance-types", iam.ListInstanceTypes, 200, "List instance types"),
		func(ctx context.Context, who iam.Caller, _ *nothing) (api.List[api.InstanceType], error) {
			return c.ListInstanceTypes(ctx, who)
		})
	handle(s, op("POST", all, iam.CreateInstance, 202, "Launch an instance; answers at once with its id"),
		func(ctx context.Context, who iam.Caller, in *struct {
			ProjectPath
			IdempotencyKey
			LaunchBody
		}) (api.Instance, error) {
			return c.CreateInstance(ctx, who, in.Project, in.Body, in.Key)
		})
	handle(s, op("GET", all, iam.ListInstances, 200, "List a project's instances, oldest first"),
		func(ctx context.Context, who iam.Caller, in *struct {
			ProjectPath
			PageQuery
		}) (api.List[api.Instance], error) {
			return c.ListInstances(ctx, who, in.Project, in.page())
		})
	handle(s, op("GET", one, iam.GetInstance, 200, "Get an instance"),
		func(ctx context.Context, who iam.Caller, in *InstancePath) (api.Instance, error) {
			return c.GetInstance(ctx, who, in.Project, in.Instance)
		})
	handle(s, op("PATCH", one, iam.UpdateInstance, 200, "Change the name, tags, desired state, boot flag or maintenance strategy of an instance"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			PatchBody
		}) (api.Instance, error) {
			return c.UpdateInstance(ctx, who, in.Project, in.Instance, in.Body)
		})
	handle(s, op("DELETE", one, iam.TerminateInstance, 202, "Terminate an instance, whatever its state"),
		func(ctx context.Context, who iam.Caller, in *InstancePath) (api.Instance, error) {
			return c.TerminateInstance(ctx, who, in.Project, in.Instance)
		})
	handle(s, op("POST", one+"/start", iam.StartInstance, 202, "Start a stopped instance"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			Body *api.StartInstance
		}) (api.Instance, error) {
			return c.StartInstance(ctx, who, in.Project, in.Instance, value(in.Body))
		})
	handle(s, op("POST", one+"/stop", iam.StopInstance, 202, "Stop an instance: ask the guest, at the deadline pull the plug"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			Body *api.StopInstance
		}) (api.Instance, error) {
			return c.StopInstance(ctx, who, in.Project, in.Instance, value(in.Body))
		})
	handle(s, op("POST", one+"/reboot", iam.RebootInstance, 202, "Reboot a running instance"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			Body *api.RebootInstance
		}) (api.Instance, error) {
			return c.RebootInstance(ctx, who, in.Project, in.Instance, value(in.Body))
		})
	handle(s, op("GET", one+"/console", iam.GetConsole, 200, "Get the end of the serial console"),
		func(ctx context.Context, who iam.Caller, in *InstancePath) (api.Console, error) {
			return c.GetConsole(ctx, who, in.Project, in.Instance)
		})
	handle(s, op("GET", one+"/events", iam.ListEvents, 200, "List what happened to an instance, oldest first"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			PageQuery
		}) (api.List[api.Event], error) {
			return c.ListEvents(ctx, who, in.Project, in.Instance, in.page())
		})
	handle(s, op("DELETE", one+"/user-data", iam.DeleteUserData, 200, "Clear the user-data of a stopped instance"),
		func(ctx context.Context, who iam.Caller, in *InstancePath) (api.Instance, error) {
			return c.DeleteUserData(ctx, who, in.Project, in.Instance)
		})
	s.userDataRoute()
	s.consoleStreamRoutes()
	s.agentRoutes(c, one)
	s.volumeRoutes(c, one)
}

// agentRoutes are the guest agent's flag and the metadata service's options.
func (s *Server) agentRoutes(c *control.Control, one string) {
	handle(s, op("POST", one+"/enable-agent", iam.EnableAgent, 202, "Want a guest agent; answers an install command where the image ships none"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			Body *api.EnableAgent
		}) (api.EnabledAgent, error) {
			return c.EnableAgent(ctx, who, in.Project, in.Instance, value(in.Body))
		})
	handle(s, op("POST", one+"/disable-agent", iam.DisableAgent, 202, "Want no guest agent"),
		func(ctx context.Context, who iam.Caller, in *InstancePath) (api.Instance, error) {
			return c.DisableAgent(ctx, who, in.Project, in.Instance)
		})
	handle(s, op("GET", one+"/agent-status", iam.GetAgentStatus, 200, "Get the guest agent's liveness"),
		func(ctx context.Context, who iam.Caller, in *InstancePath) (api.AgentStatus, error) {
			return c.GetAgentStatus(ctx, who, in.Project, in.Instance)
		})
	handle(s, op("POST", one+"/modify-metadata-options", iam.ModifyMetadataOptions, 202, "Change options of the metadata service; in force at once"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			Body api.MetadataOptions
		}) (api.Instance, error) {
			return c.ModifyMetadataOptions(ctx, who, in.Project, in.Instance, in.Body)
		})
}

func (s *Server) volumeRoutes(c *control.Control, one string) {
	const all = "/v1/projects/{projectId}/compute/volumes"
	handle(s, op("POST", one+"/attach-volume", iam.AttachVolume, 202, "Attach a data volume to a stopped instance"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			Body api.AttachVolume
		}) (api.Instance, error) {
			return c.AttachVolume(ctx, who, in.Project, in.Instance, in.Body)
		})
	handle(s, op("POST", one+"/detach-volume", iam.DetachVolume, 202, "Detach a data volume from a stopped instance; its content stays"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			Body api.DetachVolume
		}) (api.Instance, error) {
			return c.DetachVolume(ctx, who, in.Project, in.Instance, in.Body)
		})
	handle(s, op("POST", one+"/create-image", iam.CreateImage, 202, "Make an image of a stopped instance, root and data volumes as one"),
		func(ctx context.Context, who iam.Caller, in *struct {
			InstancePath
			IdempotencyKey
			Body api.CreateImage
		}) (api.Image, error) {
			return c.CreateImage(ctx, who, in.Project, in.Instance, in.Body, in.Key)
		})
	handle(s, op("GET", all, iam.ListVolumes, 200, "List a project's volumes, oldest first"),
		func(ctx context.Context, who iam.Caller, in *struct {
			ProjectPath
			PageQuery
		}) (api.List[api.Volume], error) {
			return c.ListVolumes(ctx, who, in.Project, in.page())
		})
	handle(s, op("GET", all+"/{volumeId}", iam.GetVolume, 200, "Get a volume"),
		func(ctx context.Context, who iam.Caller, in *VolumePath) (api.Volume, error) {
			return c.GetVolume(ctx, who, in.Project, in.Volume)
		})
	handleNone(s, op("DELETE", all+"/{volumeId}", iam.DeleteVolume, 204, "Delete a volume that is attached to none"),
		func(ctx context.Context, who iam.Caller, in *VolumePath) error {
			return c.DeleteVolume(ctx, who, in.Project, in.Volume)
		})
	handle(s, op("GET", "/v1/projects/{projectId}/compute/subnets", iam.ListSubnets, 200, "List the subnets of a project"),
		func(ctx context.Context, who iam.Caller, in *ProjectPath) (api.List[api.Subnet], error) {
			return c.ListSubnets(ctx, who, in.Project)
		})
}

func (s *Server) imageRoutes(c *control.Control) {
	const all, one = "/v1/projects/{projectId}/compute/images", "/v1/projects/{projectId}/compute/images/{imageId}"
	handle(s, op("GET", all, iam.ListImages, 200, "List the images that a project can see, oldest first"),
		func(ctx context.Context, who iam.Caller, in *struct {
			ProjectPath
			PageQuery
		}) (api.List[api.Image], error) {
			return c.ListImages(ctx, who, in.Project, in.page())
		})
	handle(s, op("GET", one, iam.GetImage, 200, "Get an image"),
		func(ctx context.Context, who iam.Caller, in *ImagePath) (api.Image, error) {
			return c.GetImage(ctx, who, in.Project, in.Image)
		})
	handleNone(s, op("DELETE", one, iam.DeleteImage, 204, "Delete an image that no instance stands on"),
		func(ctx context.Context, who iam.Caller, in *ImagePath) error {
			return c.DeleteImage(ctx, who, in.Project, in.Image)
		})
	s.imageImportRoute()
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// handle registers a verb that answers JSON.
func handle[I, O any](s *Server, o huma.Operation, verb func(context.Context, iam.Caller, *I) (O, error)) {
	type output struct{ Body O }
	s.register(&o)
	huma.Register(s.api, o, func(ctx context.Context, in *I) (*output, error) {
		out, err := verb(ctx, callerOf(ctx), in)
		if err != nil {
			return nil, refuse(ctx, s.log, err)
		}
		return &output{out}, nil
	})
}

// handleNone registers a verb that answers nothing.
func handleNone[I any](s *Server, o huma.Operation, verb func(context.Context, iam.Caller, *I) error) {
	s.register(&o)
	huma.Register(s.api, o, func(ctx context.Context, in *I) (*struct{}, error) {
		if err := verb(ctx, callerOf(ctx), in); err != nil {
			return nil, refuse(ctx, s.log, err)
		}
		return nil, nil
	})
}

// raw registers a handler of its own, with its operation in the document.
func (s *Server) raw(o huma.Operation, h func(http.ResponseWriter, *http.Request) error) {
	s.register(&o)
	s.api.OpenAPI().AddOperation(&o)
	a := iam.Action(o.Metadata[metaAction].(string))
	s.mux.HandleFunc(o.Method+" "+o.Path, func(w http.ResponseWriter, r *http.Request) {
		err := s.authorize(r, a)
		if err == nil {
			err = h(w, r)
		}
		if err != nil {
			s.refuse(w, r, err)
		}
	})
}

func (s *Server) register(o *huma.Operation) {
	a := o.Metadata[metaAction].(string)
	s.routes = append(s.routes, Route{o.Method, o.Path, a})
	o.Middlewares = huma.Middlewares{s.authorized(iam.Action(a)), s.bodiless}
	o.BodyReadTimeout = -1 // see arriving
	addErrors(o)
}
