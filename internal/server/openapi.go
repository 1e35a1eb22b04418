package server

import (
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// metaAction is where an operation keeps the action it needs; it also shows in
// the document, as x-action.
const metaAction = "action"

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

// openAPIConfig describes the API as a whole. The routes that serve the document
// are ours, so that they carry no extras.
func openAPIConfig(version string) huma.Config {
	c := huma.DefaultConfig("Outcrop", version)
	c.OpenAPIPath, c.DocsPath, c.SchemasPath = "", "", ""
	c.CreateHooks, c.Transformers = nil, nil // no $schema field in answers
	c.Formats = map[string]huma.Format{"application/json": jsonFormat, "json": jsonFormat}
	c.NoFormatFallback = false
	c.Info.Description = "Private compute cloud and runner hosts. Errors of /v1/compute and /v1/projects are one object with code, message and, where they apply, fields and details."
	c.Info.License = &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"}
	c.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"BearerAuth": {Type: "http", Scheme: "bearer"},
		"AppId":      {Type: "apiKey", In: "header", Name: "X-Outerlayer-App-Id", Description: "Factory id the request is scoped to."},
	}
	return c
}

// op is one operation of the compute API. Its id is the action's verb in
// kebab-case, so that it is there once and stable.
func op(method, path string, a iam.Action, status int, summary string) huma.Operation {
	_, verb, _ := strings.Cut(string(a), ":")
	return huma.Operation{
		Method: method, Path: path, OperationID: kebab(verb), Summary: summary, DefaultStatus: status,
		Tags:     []string{tag(path)},
		Security: []map[string][]string{{"BearerAuth": {}}},
		Metadata: map[string]any{metaAction: string(a)}, Extensions: map[string]any{"x-action": string(a)},
	}
}

func kebab(s string) string {
	var b strings.Builder
	for i, r := range s {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('-')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

func tag(path string) string {
	for _, t := range []struct{ part, name string }{
		{"/placement", "Placement"}, {"/quota", "Placement"}, {"/capacity", "Nodes"}, {"/readiness", "Nodes"}, {"/audit", "Nodes"},
		{"/images", "Images"}, {"/instance", "Instances"}, {"/nodes", "Nodes"}, {"/projects", "Projects"}, {"/tokens", "Tokens"},
	} {
		if strings.Contains(path, t.part) {
			return t.name
		}
	}
	return "Service"
}

// addErrors documents the refusals that an operation can answer, all in one shape.
func addErrors(o *huma.Operation) {
	statuses := []int{400, 401, 403, 500}
	if strings.Contains(o.Path, "{") {
		statuses = append(statuses, 404)
	}
	if o.Method != http.MethodGet {
		statuses = append(statuses, 409, 413)
	}
	slices.Sort(statuses)
	if o.Responses == nil {
		o.Responses = map[string]*huma.Response{}
	}
	schema := schemas.Schema(typeOf[ComputeError](), true, "ComputeError")
	for _, st := range statuses {
		o.Responses[strconv.Itoa(st)] = &huma.Response{
			Description: http.StatusText(st),
			Content:     map[string]*huma.MediaType{"application/json": {Schema: schema}},
		}
	}
}

// response documents a success of an operation that is registered by hand.
func response(o *huma.Operation, status int, description, contentType string, schema *huma.Schema) {
	if o.Responses == nil {
		o.Responses = map[string]*huma.Response{}
	}
	r := &huma.Response{Description: description}
	if schema != nil {
		r.Content = map[string]*huma.MediaType{contentType: {Schema: schema}}
	}
	o.Responses[strconv.Itoa(status)] = r
}

var bytesSchema = &huma.Schema{Type: "string", Format: "binary"}

// pathParams documents the {names} in a path.
func pathParams(path string) (out []*huma.Param) {
	for _, seg := range strings.Split(path, "/") {
		if strings.HasPrefix(seg, "{") {
			out = append(out, &huma.Param{Name: strings.Trim(seg, "{}"), In: "path", Required: true, Schema: &huma.Schema{Type: "string"}})
		}
	}
	return out
}

func (s *Server) operationalRoutes() {
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	s.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.control.Ready(r.Context()); err != nil {
			s.log.ErrorContext(r.Context(), "not ready", "err", err)
			http.Error(w, "not ready: the database does not answer; see the server's log", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	s.metricsRoute()
	s.mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, r *http.Request) {
		s.document(w, r, "application/json", s.OpenAPI().MarshalJSON)
	})
	s.mux.HandleFunc("GET /openapi.yaml", func(w http.ResponseWriter, r *http.Request) { s.document(w, r, "application/yaml", s.OpenAPI().YAML) })
	for _, p := range []string{"/healthz", "/readyz", "/metrics", "/openapi.json", "/openapi.yaml"} {
		s.routes = append(s.routes, Route{Method: http.MethodGet, Path: p})
	}
}

func (s *Server) document(w http.ResponseWriter, r *http.Request, contentType string, marshal func() ([]byte, error)) {
	b, err := marshal()
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(b)
}
