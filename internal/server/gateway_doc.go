package server

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
)

// gatewaySecurity is what every gateway operation needs: both of them.
var gatewaySecurity = []map[string][]string{{"AppId": {}, "BearerAuth": {}}}

// signatureHeaders are those of a runner key's request, as the published contract
// describes them.
var signatureHeaders = []*huma.Param{
	header("Signature", "HTTP Message Signature (RFC 9421) made with the runner key's host key: runner=:<base64>:."),
	header("Signature-Input", `The signature's covered components and parameters: runner=("@method" "@path" "@query" "content-digest");created=<unix seconds>;nonce="<unique>";keyid="<key id>";alg="ed25519".`),
	header("Content-Digest", "RFC 9530 digest of the request body, always sent, including for a request with none: sha-256=:<base64>:."),
}

func header(name, doc string) *huma.Param {
	return &huma.Param{Name: name, In: "header", Description: doc, Schema: &huma.Schema{Type: huma.TypeString, Description: doc}}
}

// gatewayDocument describes what is not a verb.
func (s *Server) gatewayDocument() {
	schemas.Schema(typeOf[api.GatewayError](), true, "GatewayError")
	s.api.OpenAPI().AddOperation(&huma.Operation{
		Method: http.MethodGet, Path: "/v1/capabilities", OperationID: "get-capabilities", Summary: "What the gateway can do", Tags: []string{"Capabilities"},
		Security: []map[string][]string{}, Responses: map[string]*huma.Response{"200": answer("What it can do.", typeOf[api.Data[api.Capabilities]]())},
	})
	status := &huma.Schema{Type: huma.TypeObject, Properties: map[string]*huma.Schema{"status": {Type: huma.TypeString}}}
	s.api.OpenAPI().AddOperation(&huma.Operation{
		Method: http.MethodGet, Path: "/health", OperationID: "get-health", Summary: "Whether the gateway does its work", Tags: []string{"Health"},
		Security: []map[string][]string{}, Responses: map[string]*huma.Response{"200": {Description: "It does.", Content: map[string]*huma.MediaType{"application/json": {Schema: status}}}},
	})
	for _, path := range []string{"/v1/capabilities", "/health"} {
		s.routes = append(s.routes, Route{Method: http.MethodGet, Path: path})
	}
}

// document is the operation as OpenAPI.
func (o *gatewayOperation) document() *huma.Operation {
	d := &huma.Operation{
		Method: o.method, Path: o.path, OperationID: o.id, Summary: o.summary, Tags: []string{gatewayTag(o.path)},
		Security: gatewaySecurity, Parameters: append(o.parameters(), signatureHeaders...),
		Responses: map[string]*huma.Response{strconv.Itoa(o.status): answer("Done.", o.out)},
	}
	d.Extensions = map[string]any{"x-permission": o.needs()}
	if o.noApp {
		d.Security = []map[string][]string{{"BearerAuth": {}}, {"AppId": {}, "BearerAuth": {}}}
	}
	if o.in != nil {
		d.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: schemaOf(o.in)}}}
	}
	for _, e := range o.errors() {
		d.Responses[strconv.Itoa(e.status)] = answer(e.text, typeOf[api.GatewayError]())
	}
	return d
}

// needs is the permission, or "operator".
func (o *gatewayOperation) needs() string {
	if o.permission == "" {
		return "operator"
	}
	return string(o.permission)
}

func (o *gatewayOperation) parameters() []*huma.Param {
	params := pathParams(o.path)
	for _, q := range o.query {
		s := &huma.Schema{Type: huma.TypeString}
		if q.integer {
			s = &huma.Schema{Type: huma.TypeInteger}
		}
		for _, w := range q.words {
			s.Enum = append(s.Enum, w)
		}
		params = append(params, &huma.Param{Name: q.name, In: "query", Description: q.doc, Schema: s})
	}
	if o.idempotent {
		params = append(params, header("Idempotency-Key", "The same key with the same body answers the first answer, for 24 hours."))
	}
	return params
}

type documentedError struct {
	status int
	text   string
}

func (o *gatewayOperation) errors() []documentedError {
	out := []documentedError{
		{401, "unauthorized: missing or invalid API key; or a runner key's signature was refused: runner_key_signature_required (the request carries no signature), runner_key_signature_invalid (it does not verify against the host key that the key is bound to, or the body does not match its digest), runner_key_signature_stale (created is more than five minutes from the gateway's clock; details tell the skew) or runner_key_signature_replayed (the nonce was accepted in the last five minutes)."},
		{403, "forbidden: the caller lacks the permission " + string(o.permission) + "."},
		{429, "rate_limited: too many requests; Retry-After says how long to wait."},
		{500, "internal: quote request_id."},
	}
	if o.permission == "" {
		out[1].text = "forbidden: the caller is no operator."
	}
	if o.in != nil {
		out = append(out, documentedError{400, "invalid_request_body: details is keyed by dotted field path."},
			documentedError{413, "request_body_too_large: more than " + strconv.Itoa(gateway.MaxBody) + " bytes."})
	}
	if len(o.query) > 0 {
		out = append(out, documentedError{400, "invalid_request_query: details is keyed by parameter."})
	}
	if strings.Contains(o.path, "{") {
		out = append(out, documentedError{404, "not_found: there is none, or none that this key can see."})
	}
	if strings.HasPrefix(o.path, "/v1/work") || o.method == http.MethodDelete || o.idempotent {
		out = append(out, documentedError{409, "The state of things does not allow it; code says what: lease_lost, work_finished, log_gap, host_unknown, host_stale, host_outdated, host_blocked, host_low_disk, app_in_use, idempotency_conflict."})
	}
	return out
}

func answer(text string, t reflect.Type) *huma.Response {
	return &huma.Response{Description: text, Content: map[string]*huma.MediaType{"application/json": {Schema: schemaOf(t)}}}
}

func schemaOf(t reflect.Type) *huma.Schema {
	return schemas.Schema(t, true, t.Name())
}

func gatewayTag(path string) string {
	for _, t := range []struct{ part, name string }{{"/hosts", "Hosts"}, {"/apps", "Apps"}, {"/api-keys", "API Keys"}, {"/work", "Work"}} {
		if strings.HasPrefix(path, "/v1"+t.part) {
			return t.name
		}
	}
	return "Service"
}
