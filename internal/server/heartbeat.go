package server

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// maxHeartbeatBytes bounds a heartbeat: 512 capabilities of full length fit, in
// whatever way they are escaped.
const maxHeartbeatBytes = 8 << 20

// heartbeatRoute is the hot one: its verb decodes and renders by itself, and a test
// holds that it takes what the schema in the document takes.
func (s *Server) heartbeatRoute() {
	const path = "/v1/compute/nodes/{nodeId}/heartbeat"
	o := op("PUT", path, iam.RecordHeartbeat, 200, "Report a hypervisor-agent heartbeat (agent-only)")
	o.Description = "Called by each node's agent. The first one registers the node. Unknown fields are ignored."
	o.Parameters = pathParams(path)
	o.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: schemas.Schema(typeOf[api.Heartbeat](), true, "Heartbeat")}}}
	response(&o, 200, "Heartbeat accepted.", "application/json", schemas.Schema(typeOf[api.Node](), true, "Node"))
	s.raw(o, func(w http.ResponseWriter, r *http.Request) error {
		b, over, err := readBody(w, r, maxHeartbeatBytes)
		if err != nil {
			return err
		}
		if over {
			return fault.New(fault.TooLarge, "a heartbeat has at most %d bytes", maxHeartbeatBytes)
		}
		answer, err := s.control.Heartbeat(r.Context(), callerOf(r.Context()), r.PathValue("nodeId"), b)
		if err != nil {
			return err
		}
		writeRendered(w, http.StatusOK, answer)
		return nil
	})
}
