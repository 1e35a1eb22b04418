package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"pgregory.net/rapid"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/server"
)

// jsonRoutes are the routes that take JSON, with the schema of what they take. Those
// that a node's key signs are left out: their bodies are looked at only behind a good
// signature (join_test.go).
func jsonRoutes(s *server.Server) map[string]*huma.Schema {
	out := map[string]*huma.Schema{}
	for path, item := range s.OpenAPI().Paths {
		for method, o := range map[string]*huma.Operation{"POST": item.Post, "PUT": item.Put, "PATCH": item.Patch} {
			if o == nil || o.RequestBody == nil || o.RequestBody.Content["application/json"] == nil || gatewayRoute(server.Route{Path: path}) ||
				strings.HasSuffix(path, "/join") || strings.HasSuffix(path, "/credential") {
				continue
			}
			out[method+" "+path] = o.RequestBody.Content["application/json"].Schema
		}
	}
	return out
}

// inputs is a system with an instance of each kind of state and one caller who
// may use each route.
type inputs struct {
	*apptest.System
	node     *apptest.Node
	instance string
}

func newInputs(t *testing.T, s *apptest.System) *inputs {
	in := &inputs{System: s, node: s.Node("n1")}
	in.instance = in.node.Stopped("default", api.CreateInstance{}).ID
	return in
}

func (in *inputs) send(route string, body any, opts ...apptest.Option) *apptest.Answer {
	method, path, _ := strings.Cut(route, " ")
	caller := in.Operator
	if strings.HasSuffix(path, "/heartbeat") || strings.HasSuffix(path, "/sync") || strings.HasSuffix(path, "/agent-reports") {
		caller = in.node.Client
	}
	path = strings.NewReplacer("{projectId}", "default", "{nodeId}", "n1", "{instanceId}", in.instance).Replace(path)
	return caller.Do(method, path, body, opts...)
}

// Whatever a body is, the answer is a refusal that a person can act on, or a
// success: never 422, never 500.
// contract: E-01 E-02
func TestBadBodiesOfEveryRoute(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		in := newInputs(t, s)
		routes := jsonRoutes(s.Server)
		if len(routes) < 10 {
			t.Fatalf("only %d routes take JSON: %v", len(routes), routes)
		}
		deep := strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000)
		for route := range routes {
			for name, c := range map[string]struct {
				body   string
				kind   string
				status int
			}{
				"array": {`[]`, "", 400}, "string": {`"x"`, "", 400}, "number": {`1`, "", 400}, "true": {`true`, "", 400},
				"cut": {`{"a":`, "", 400}, "two values": {`{}{}`, "", 400}, "garbage": {"\x00\x01", "", 400}, "no quotes": {`{a:1}`, "", 400},
				"deep": {deep, "", 400}, "deep array": {strings.Repeat("[", 100000), "", 400},
				"NUL": {`{"x":"a\u0000b"}`, "", 400}, "not UTF-8": {"{\"x\":\"\xff\"}", "", 400}, "twice": {`{"x":1,"x":2}`, "", 400},
				"a form": {`{}`, "application/x-www-form-urlencoded", 400}, "text": {`{}`, "text/plain", 400}, "XML": {`<a/>`, "application/xml", 400}, "odd type": {`{}`, "a/b; c", 400},
			} {
				if strings.HasSuffix(route, "/heartbeat") && c.status == 400 && (c.kind != "" || name == "NUL") {
					continue // its body says all: any type, and unknown fields are not looked at
				}
				a := in.send(route, c.body, apptest.Header("Content-Type", c.kind))
				if a.Status != c.status {
					t.Errorf("%s, %s: %d %.300s", route, name, a.Status, a.Body)
					continue
				}
				if r := a.Refused(400, "INVALID_INPUT"); len(a.Body) > 2000 || strings.Contains(r.Message, "Go ") {
					t.Errorf("%s, %s: %.300s", route, name, a.Body)
				}
			}
			if a := in.send(route, `{"x":"`+strings.Repeat("x", 9<<20)+`"}`); a.Status != 413 && a.Status != 400 {
				t.Errorf("%s, 9 MiB: %d %.300s", route, a.Status, a.Body)
			}
		}
		if in.Logged("level=ERROR") {
			t.Error("the server logged an error of its own")
		}
	})
}

// A JSON body that breaks off is the caller's fault, and changes nothing.
// contract: E-01
func TestBrokenJSONBody(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	head := "POST /v1/projects HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + s.Operator.Token() + "\r\nContent-Type: application/json\r\n"
	for name, request := range map[string]string{
		"announced": head + "Content-Length: 100\r\n\r\n{\"id\":\"half\"}",
		"chunked":   head + "Transfer-Encoding: chunked\r\n\r\nd\r\n{\"id\":\"half\"}\r\n",
	} {
		if status := sendAndShut(t, s.URL, request); status != 400 && status != 0 {
			t.Errorf("%s: answered %d", name, status)
		}
	}
	if a := s.Operator.Do("GET", "/v1/projects", nil).Want(200); strings.Contains(string(a.Body), "half") {
		t.Errorf("half a body made a project: %s", a.Body)
	}
	if s.Logged("level=ERROR") {
		t.Error("the server logged an error of its own")
	}
}

// Unknown fields are refused by name, with what was probably meant; the agents'
// routes ignore them, as an agent may be newer than the server.
// contract: E-05 E-02
func TestUnknownFields(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	in := newInputs(t, s)
	const create, patch = "POST /v1/projects/{projectId}/compute/instances", "PATCH /v1/projects/{projectId}/compute/instances/{instanceId}"
	base := `"name":"x","imageId":"img-aaaaaaaaaa","instanceType":"m1.tiny"`
	for _, c := range []struct{ route, body, field, meant string }{
		{create, `{` + base + `,"subnetId":"subnet-a"}`, "subnetId", "subnetIds"},
		{create, `{` + base + `,"SubnetIds":[]}`, "SubnetIds", "subnetIds"}, // names are exact
		{create, `{` + base + `,"user_data":"eA=="}`, "user_data", "userData"},
		{create, `{` + base + `,"metadataOptions":{"httpEndpont":"enabled"}}`, "metadataOptions.httpEndpont", "httpEndpoint"},
		{create, `{` + base + `,"dataVolumes":[{"sizeBytes":1048576},{"sizeByte":1}]}`, "dataVolumes[1].sizeByte", "sizeBytes"},
		{create, `{` + base + `,"zzzzzzzzzzzz":1}`, "zzzzzzzzzzzz", ""},
		{patch, `{"nmae":"x"}`, "nmae", "name"},
		{"POST /v1/projects", `{"id":"p","nam":"x"}`, "nam", "name"},
		{"POST /v1/tokens", `{"role":"operator","expiresIn":1}`, "expiresIn", ""},
		{"PATCH /v1/compute/nodes/{nodeId}", `{"display_name":"x"}`, "display_name", "displayName"},
		{"POST /v1/projects/{projectId}/compute/instances/{instanceId}/stop", `{"forced":true}`, "forced", "force"},
	} {
		r := in.send(c.route, c.body).Refused(400, "INVALID_INPUT")
		i := slices.Index(r.Paths(), c.field)
		if i < 0 {
			t.Errorf("%s %s: %+v; want field %s", c.route, c.body, r.Fields, c.field)
			continue
		}
		if m := r.Fields[i].Message; c.meant != "" && !strings.Contains(m, "did you mean "+c.meant+"?") || c.meant == "" && strings.Contains(m, "did you mean") {
			t.Errorf("%s %s: %q; want %q suggested", c.route, c.body, m, c.meant)
		}
	}
	for route, body := range map[string]string{
		"PUT /v1/compute/nodes/{nodeId}/heartbeat": `{"hostname":"h","role":"hybrid","architecture":"amd64","capacity":{"totalVCPUs":1,"totalMemoryBytes":1,"totalDiskBytes":1,"new":1},"newer":{"a":[]}}`,
		"POST /v1/compute/nodes/{nodeId}/sync":     `{"instances":[{"id":"i-000000000","epoch":1,"phase":"running","new":1}],"newer":1}`,
	} {
		in.send(route, body).Want(200)
	}
}

// One answer names every problem: those of the schema and those beyond it.
// contract: E-02
func TestEveryProblemAtOnce(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	in := newInputs(t, s)
	for _, c := range []struct {
		route, body string
		want        []string
	}{
		{"POST /v1/projects/{projectId}/compute/instances",
			`{"name":7,"instanceType":"m9.huge","rootVolumeBytes":1048577,"userData":"not base64!","publicKeys":["nonsense"],"tags":{"":"x"},"selectors":["a=b","a b"],"countables":{"pool":1},"subnetId":"x"}`,
			[]string{"countables.pool", "imageId", "instanceType", "name", "publicKeys[0]", "rootVolumeBytes", "selectors[1]", "subnetId", "tags.", "userData"}},
		{"POST /v1/projects/{projectId}/compute/instances", `{}`, []string{"imageId", "instanceType", "name"}},
		{"POST /v1/tokens", `{"role":"node","projectId":"p","expiresInSeconds":0,"naem":1}`, []string{"expiresInSeconds", "naem", "nodeId", "projectId"}},
		{"POST /v1/tokens", `{}`, []string{"role"}},
		{"POST /v1/projects", `{"id":"UPPER","name":7}`, []string{"id", "name"}},
		{"PATCH /v1/compute/nodes/{nodeId}", `{"displayName":1,"reservedVCPUs":-1,"vcpuOvercommitRatio":0,"declaredCapabilities":{"":"x"}}`,
			[]string{"declaredCapabilities.", "displayName", "reservedVCPUs", "vcpuOvercommitRatio"}},
		{"PATCH /v1/projects/{projectId}/compute/instances/{instanceId}", `{"name":"","tags":{"a":1}}`, []string{"name", "tags.a"}},
		{"POST /v1/projects/{projectId}/compute/instances/{instanceId}/stop", `{"force":1,"deadlineSeconds":-1}`, []string{"deadlineSeconds", "force"}},
		{"POST /v1/compute/nodes/{nodeId}/sync", `{"instances":[{"id":1,"epoch":1.5,"phase":"dead"}],"waitSeconds":61}`,
			[]string{"instances[0].epoch", "instances[0].id", "instances[0].phase", "waitSeconds"}},
	} {
		r := in.send(c.route, c.body).Refused(400, "INVALID_INPUT")
		if !reflect.DeepEqual(r.Paths(), c.want) {
			t.Errorf("%s %s:\nproblems at %v\nwant        %v", c.route, c.body, r.Paths(), c.want)
		}
	}
	// The list of nodes and the pages, by query.
	r := s.Operator.Do("GET", "/v1/compute/nodes?limit=0", nil).Refused(400, "INVALID_INPUT")
	if !reflect.DeepEqual(r.Paths(), []string{"limit"}) {
		t.Errorf("limit=0: %+v", r)
	}
}

// Edges of each field of a create, both sides.
// contract: U-06 U-19
func TestCreateEdges(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	image := s.Image("default")
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJq0pkXDqY5dUWvZm5f8VCGhCkYRzTqzHyPqSRmNUp0d a@b"
	tags := func(n int) map[string]any {
		m := map[string]any{}
		for i := range n {
			m[fmt.Sprint("k", i)] = "v"
		}
		return m
	}
	keys := func(n int) (out []any) {
		for range n {
			out = append(out, key)
		}
		return out
	}
	for _, c := range []struct {
		field string
		value any
		at    string // empty: accepted
	}{
		{"name", strings.Repeat("é", 63), ""}, {"name", strings.Repeat("é", 64), "name"}, {"name", "", "name"}, {"name", " a", "name"}, {"name", "a\n", "name"}, {"name", "a b", ""},
		{"instanceType", "m1.small", ""}, {"instanceType", "M1.small", "instanceType"}, {"instanceType", nil, "instanceType"},
		{"vcpus", 1, "instanceType"}, {"memoryBytes", 64 << 20, "instanceType"}, // a type and a shape
		{"rootVolumeBytes", 1 << 20, ""}, {"rootVolumeBytes", 1<<20 - 512, "rootVolumeBytes"}, {"rootVolumeBytes", 1<<20 + 511, "rootVolumeBytes"}, {"rootVolumeBytes", 1<<20 + 512, ""},
		{"rootVolumeBytes", 64 << 40, ""}, {"rootVolumeBytes", 64<<40 + 512, "rootVolumeBytes"}, {"rootVolumeBytes", 1.5, "rootVolumeBytes"},
		{"userData", "eA==", ""}, {"userData", "eA", "userData"}, {"userData", "eB==", "userData"}, {"userData", "", "userData"}, {"userData", "e\nA==\n", ""}, // as base64 breaks its lines
		{"userData", *text(strings.Repeat("x", 65536)), ""}, {"userData", *text(strings.Repeat("x", 65537)), "userData"},
		{"publicKeys", []any{key}, ""}, {"publicKeys", []any{key[:40]}, "publicKeys[0]"}, {"publicKeys", []any{key, key + "\nx"}, "publicKeys[1]"}, {"publicKeys", keys(32), ""}, {"publicKeys", keys(33), "publicKeys"},
		{"publicKeys", []any{strings.Replace(key, "ed25519", "rsa", 1)}, "publicKeys[0]"},
		{"tags", tags(50), ""}, {"tags", tags(51), "tags"}, {"tags", map[string]any{strings.Repeat("k", 128): strings.Repeat("é", 256)}, ""},
		{"tags", map[string]any{"k": strings.Repeat("é", 257)}, "tags.k"}, {"tags", map[string]any{strings.Repeat("k", 129): ""}, "tags." + strings.Repeat("k", 129)},
		{"imageId", "img-aaaaaaaaaa", "imageId"}, {"imageId", "", "imageId"}, {"imageId", "../../etc", "imageId"},
		{"floatingIPPool", "public", "floatingIPPool"}, {"instanceProfile", "p", "instanceProfile"}, // not built: refused, not ignored (U-12)
	} {
		body := map[string]any{"name": "x", "imageId": image, "instanceType": "m1.tiny"}
		body[c.field] = c.value
		if c.value == nil {
			delete(body, c.field)
		}
		a := s.Operator.Do("POST", api.InstancePath("default", ""), body)
		show := fmt.Sprintf("%s = %.60v", c.field, c.value)
		if c.at == "" {
			if a.Status != 202 {
				t.Errorf("%s: %d %s", show, a.Status, a.Body)
			}
			continue
		}
		if a.Status == 202 {
			t.Errorf("%s: accepted", show)
		} else if r := a.Refused(400, "INVALID_INPUT"); !reflect.DeepEqual(r.Paths(), []string{c.at}) {
			t.Errorf("%s: %+v; want one problem at %s", show, r.Fields, c.at)
		}
	}
	for _, c := range []struct {
		vcpus, memory any
		at            []string
	}{
		{1, 64 << 20, nil}, {512, int64(16) << 40, nil}, {0, 64 << 20, []string{"vcpus"}}, {513, 64 << 20, []string{"vcpus"}}, {1, 64<<20 - 1, []string{"memoryBytes"}},
		{1, int64(16)<<40 + 1, []string{"memoryBytes"}}, {1, 64<<20 + 1, []string{"memoryBytes"}}, {1, nil, []string{"memoryBytes"}}, {nil, 64 << 20, []string{"vcpus"}},
	} {
		body := map[string]any{"name": "x", "imageId": image}
		if c.vcpus != nil {
			body["vcpus"] = c.vcpus
		}
		if c.memory != nil {
			body["memoryBytes"] = c.memory
		}
		a := s.Operator.Do("POST", api.InstancePath("default", ""), body)
		if c.at == nil {
			var i api.Instance
			a.Want(202).Decode(&i)
			if fmt.Sprint(i.VCPUs, i.MemoryBytes, i.InstanceType) != fmt.Sprint(c.vcpus, c.memory, "") {
				t.Errorf("a shape of %v, %v is answered %s", c.vcpus, c.memory, a.Body)
			}
		} else if r := a.Refused(400, "INVALID_INPUT"); !reflect.DeepEqual(r.Paths(), c.at) {
			t.Errorf("vcpus %v, memory %v: %+v; want %v", c.vcpus, c.memory, r.Fields, c.at)
		}
	}
}

// Numbers that the wire allows and an int64 does not hold are named, not 500.
func TestNumbersBeyondInt64(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	for _, n := range []string{"9223372036854775808", "1e3", "1e400", "-1e400", "1E-400", "1.0"} {
		for _, route := range []string{"POST /v1/tokens", "PATCH /v1/compute/nodes/n1"} {
			field := map[string]string{"POST /v1/tokens": "expiresInSeconds", "PATCH /v1/compute/nodes/n1": "reservedVCPUs"}[route]
			method, path, _ := strings.Cut(route, " ")
			a := s.Operator.Do(method, path, `{"role":"operator","`+field+`":`+n+`}`)
			if a.Status != 400 && a.Status != 201 || strings.Contains(string(a.Body), "Go struct") {
				t.Errorf("%s, %s: %d %s", route, n, a.Status, a.Body)
			}
		}
	}
}

// Names and cursors with bytes that no database takes.
func TestPathsAndQueriesThatAreNoText(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		for _, odd := range []string{"%00", "%ff", "a%00b", "%ed%a0%80", "..%2f..", "%2e%2e", "'%20or%201=1--", strings.Repeat("x", 4000), "%e2%80%ae"} {
			for _, path := range []string{
				"/v1/compute/nodes/" + odd, "/v1/projects/" + odd + "/compute/instances", "/v1/projects/default/compute/instances/" + odd, "/v1/projects/default/compute/images/" + odd,
				"/v1/projects/default/compute/instances/" + odd + "/events", "/v1/projects/default/compute/volumes/" + odd,
			} {
				if a := s.Operator.Do("GET", path, nil); a.Status != 404 && a.Status != 400 {
					t.Errorf("GET %.80s: %d %s", path, a.Status, a.Body)
				}
			}
			for _, path := range []string{"/v1/tokens/" + odd, "/v1/projects/" + odd, "/v1/compute/nodes/" + odd} {
				if a := s.Operator.Do("DELETE", path, nil); a.Status != 404 && a.Status != 400 {
					t.Errorf("DELETE %.80s: %d %s", path, a.Status, a.Body)
				}
			}
			for _, path := range []string{"/v1/compute/nodes", "/v1/projects", "/v1/tokens", "/v1/projects/default/compute/instances", "/v1/projects/default/compute/images", "/v1/projects/default/compute/volumes"} {
				if a := s.Operator.Do("GET", path+"?cursor="+odd, nil); a.Status != 200 && a.Status != 400 {
					t.Errorf("GET %s with cursor %.40s: %d %s", path, odd, a.Status, a.Body)
				}
			}
			if a := s.Operator.Do("POST", "/v1/projects/default/compute/images?name="+odd, apptest.DiskImage()); a.Status != 201 && a.Status != 400 {
				t.Errorf("an image named %.40s: %d %s", odd, a.Status, a.Body)
			}
		}
		for _, k := range []string{"\xff", "é", "a b", strings.Repeat("k", 256)} {
			s.Operator.Do("POST", "/v1/projects", `{"id":"x1"}`, apptest.Header("Idempotency-Key", k)).Refused(400, "INVALID_INPUT")
		}
		if s.Logged("level=ERROR") {
			t.Error("the server logged an error of its own")
		}
	})
}

// A sync without news is held for as long as the node asks, however long ago the
// body of its request has come.
func TestHeldSyncLasts(t *testing.T) {
	if testing.Short() {
		t.Skip("holds for seven seconds of real time")
	}
	t.Parallel()
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	rev := n.Sync(0).Revision
	begun := time.Now()
	a := n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{Revision: rev, Instances: []api.ObservedInstance{}, WaitSeconds: 7})
	if took := time.Since(begun); a.Status != 200 || took < 7*time.Second {
		t.Errorf("answered %d after %v: %s", a.Status, took, a.Body)
	}
}

// value draws JSON of any kind, often one that the schema asks for.
func value(r *rapid.T, registry huma.Registry, s *huma.Schema, depth int) any {
	for s != nil && s.Ref != "" {
		s = registry.SchemaFromRef(s.Ref)
	}
	kind := rapid.SampledFrom([]string{"fit", "fit", "fit", "string", "number", "null", "bool", "array", "object"}).Draw(r, "kind")
	if s == nil || depth > 4 {
		kind = rapid.SampledFrom([]string{"string", "number", "null"}).Draw(r, "leaf")
	}
	if kind == "fit" {
		switch s.Type {
		case "object":
			m := map[string]any{}
			for _, name := range slices.Sorted(mapsKeys(s.Properties)) {
				if rapid.IntRange(0, 2).Draw(r, name) > 0 {
					m[name] = value(r, registry, s.Properties[name], depth+1)
				}
			}
			if inner, ok := s.AdditionalProperties.(*huma.Schema); ok {
				m[rapid.String().Draw(r, "name")] = value(r, registry, inner, depth+1)
			}
			return m
		case "array":
			var out []any
			for range rapid.IntRange(0, 3).Draw(r, "items") {
				out = append(out, value(r, registry, s.Items, depth+1))
			}
			return out
		case "integer", "number":
			return json.Number(rapid.SampledFrom([]string{"0", "1", "2", "1048576", "67108864", "-1", "9223372036854775807", "9223372036854775808", "1e3", "1.5", "1e308"}).Draw(r, "number"))
		case "boolean":
			return rapid.Bool().Draw(r, "flag")
		}
		if len(s.Enum) > 0 {
			return rapid.SampledFrom(s.Enum).Draw(r, "enum")
		}
		return rapid.SampledFrom([]string{"a", "", "m1.tiny", "eA==", "running", "default", "i-000000000", "\x00", "é\u202e", strings.Repeat("x", 300)}).Draw(r, "text")
	}
	switch kind {
	case "number":
		return rapid.Float64().Draw(r, "float")
	case "string":
		return rapid.String().Draw(r, "string")
	case "bool":
		return true
	case "array":
		return []any{value(r, registry, nil, depth+1)}
	case "object":
		return map[string]any{rapid.String().Draw(r, "name"): value(r, registry, nil, depth+1)}
	}
	return nil
}

func mapsKeys(m map[string]*huma.Schema) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// Random JSON, made along each route's schema and away from it, is answered:
// never 422, never 500.
// contract: E-01
func TestRandomBodiesOfEveryRoute(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		in := newInputs(t, s)
		routes := jsonRoutes(s.Server)
		registry := s.Server.OpenAPI().Components.Schemas
		fewerChecks(t, "40")
		rapid.Check(t, func(r *rapid.T) {
			for _, route := range slices.Sorted(mapsKeys(routes)) {
				if strings.HasSuffix(route, "/sync") {
					continue // it would hold; its body is read as the others' are
				}
				b, err := json.Marshal(value(r, registry, routes[route], 0))
				if err != nil {
					continue
				}
				a := in.send(route, io.Reader(bytes.NewReader(b)))
				if a.Status == 422 || a.Status >= 500 {
					r.Fatalf("%s: %d %s\n%s", route, a.Status, a.Body, b)
				}
				if a.Status >= 400 {
					a.Refused(a.Status, a.Code())
				}
			}
		})
	})
}

// An image that the server's disk has no room for is refused before its bytes
// come; a member must not fill the disk that the database lives on.
func TestImageLargerThanTheDisk(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	member := s.Member("alpha")
	request := "POST " + api.ImagePath("alpha", "") + "?name=x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + member.Token() + "\r\nContent-Length: 9223372036854775807\r\n\r\n"
	if status := sendAndShut(t, s.URL, request); status != 409 {
		t.Errorf("answered %d", status)
	}
}
