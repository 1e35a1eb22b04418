package server

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// nodeSignature describes the signature of a node's key.
var nodeSignature = []*huma.Param{
	header("Signature", "HTTP Message Signature (RFC 9421) made with the node's key: node=:<base64>:."),
	header("Signature-Input", `The signature's covered components and parameters: node=("@method" "@path" "@query" "content-digest");created=<unix seconds>;nonce="<unique>";keyid="<the key's fingerprint>";alg="ed25519". created is at most five minutes from the server's clock, and a nonce is taken once.`),
	header("Content-Digest", "RFC 9530 digest of the request body: sha-256=:<base64>:."),
}

// joinRoutes are how a machine becomes a node (contract N-21, N-22).
func (s *Server) joinRoutes(c *control.Control) {
	schemas.Schema(typeOf[api.NodeIDConflict](), true, "NodeIDConflict")
	schemas.Schema(typeOf[api.ApprovalRefused](), true, "ApprovalRefused")
	schemas.Schema(typeOf[api.ClockDetails](), true, "ClockDetails")
	s.signedRoutes(c)
	handle(s, op("GET", "/v1/compute/node-joins", iam.ListNodeJoins, 200, "List the machines that wait for approval"),
		func(ctx context.Context, who iam.Caller, in *PageQuery) (api.List[api.PendingJoin], error) {
			return c.ListNodeJoins(ctx, who, in.page())
		})
	handle(s, op("POST", "/v1/compute/node-joins/{nodeId}/approve", iam.ApproveNodeJoin, 200, "Approve the machine that waits to join as the node"),
		func(ctx context.Context, who iam.Caller, in *struct {
			NodePath
			VerdictBody
		}) (api.PendingJoin, error) {
			return c.ApproveNodeJoin(ctx, who, in.Node, value(in.Body))
		})
	handle(s, op("POST", "/v1/compute/node-joins/{nodeId}/refuse", iam.RefuseNodeJoin, 200, "Refuse the machine that waits to join as the node"),
		func(ctx context.Context, who iam.Caller, in *struct {
			NodePath
			VerdictBody
		}) (api.PendingJoin, error) {
			return c.RefuseNodeJoin(ctx, who, in.Node, value(in.Body))
		})
	handle(s, op("POST", "/v1/compute/nodes/{nodeId}/readmit", iam.ReadmitNode, 201, "Forget the machine of a node, end its tokens, and make a join token for the next one"),
		func(ctx context.Context, who iam.Caller, in *struct {
			NodePath
			Body *api.ReadmitNode
		}) (api.NewToken, error) {
			return c.ReadmitNode(ctx, who, in.Node, value(in.Body))
		})
}

// signedRoutes are those that a node's key signs. They read the request as it was
// received.
func (s *Server) signedRoutes(c *control.Control) {
	join := op("POST", "/v1/compute/nodes/{nodeId}/join", iam.JoinNode, 200, "Join as a node, with a join token and a key of the machine's own")
	join.Description = "The same key is answered the same again. Refusals: SIGNATURE_INVALID, SIGNATURE_STALE (details tell the server's time), SIGNATURE_REPLAYED, JOIN_TOKEN_USED, JOIN_REFUSED, NODE_ID_CONFLICT (details name both machines). Unknown fields are ignored."
	documentSigned(&join, schemas.Schema(typeOf[api.NodeJoin](), true, "NodeJoin"))
	s.raw(join, func(w http.ResponseWriter, r *http.Request) error {
		in, err := signedRequest(w, r)
		if err != nil {
			return err
		}
		out, err := c.JoinNode(r.Context(), callerOf(r.Context()), in)
		return writeAdmission(w, out, err)
	})

	renew := op("POST", "/v1/compute/nodes/{nodeId}/credential", iam.RenewCredential, 200, "Get a new credential for a node that has joined; its key's signature takes the place of a token")
	renew.Description = "Refusals: NODE_KEY_UNKNOWN, JOIN_REFUSED, NODE_ID_CONFLICT, and those of the signature as for a join. Unknown fields are ignored."
	renew.Security = []map[string][]string{}
	documentSigned(&renew, schemas.Schema(typeOf[api.NodeClaim](), true, "NodeClaim"))
	s.register(&renew)
	s.api.OpenAPI().AddOperation(&renew)
	s.mux.HandleFunc(renew.Method+" "+renew.Path, func(w http.ResponseWriter, r *http.Request) {
		in, err := signedRequest(w, r)
		if err == nil {
			var out api.Admission
			out, err = c.RenewCredential(r.Context(), in)
			err = writeAdmission(w, out, err)
		}
		if err != nil {
			s.refuse(w, r, err)
		}
	})
}

func documentSigned(o *huma.Operation, body *huma.Schema) {
	o.Parameters = append(pathParams(o.Path), nodeSignature...)
	o.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: body}}}
	answer := schemas.Schema(typeOf[api.Admission](), true, "Admission")
	response(o, http.StatusOK, "Admitted, with a credential.", "application/json", answer)
	response(o, http.StatusAccepted, "An operator is to approve the machine.", "application/json", answer)
	response(o, http.StatusTooManyRequests, "Too many requests; Retry-After says how long to wait.", "application/json", schemas.Schema(typeOf[ComputeError](), true, "ComputeError"))
}

func signedRequest(w http.ResponseWriter, r *http.Request) (*control.SignedRequest, error) {
	b, over, err := readBody(w, r, api.MaxJoinBytes)
	if err != nil {
		return nil, err
	}
	if over {
		return nil, fault.New(fault.TooLarge, "the body of a join has at most %d bytes", api.MaxJoinBytes)
	}
	return &control.SignedRequest{NodeID: r.PathValue("nodeId"), Source: source(r.RemoteAddr), Message: httpsig.FromRequest(r), Body: b}, nil
}

func writeAdmission(w http.ResponseWriter, a api.Admission, err error) error {
	if err != nil {
		return err
	}
	status := http.StatusOK
	if a.Status == api.Pending {
		status = http.StatusAccepted
	}
	writeJSON(w, status, a)
	return nil
}
