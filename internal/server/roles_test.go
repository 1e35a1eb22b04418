package server_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/server"
)

// cell is what one route answers to each kind of caller. Without a valid token
// it is always 401, unless the route is open.
type cell struct {
	body     any
	operator int
	node     int // the agent of the node in the path, or of any where there is none
	other    int // another node's agent
	member   int // of the project in the path
	stranger int // a member of another project
}

// access is the whole compute API: who may call what. A route that is not here
// fails the test.
var access = map[string]cell{
	"GET /v1/whoami":                 {nil, 200, 200, 200, 200, 200},
	"GET /v1/compute/instance-types": {nil, 200, 200, 200, 200, 200},

	"POST /v1/tokens":             {"{}", 400, 403, 403, 403, 403},
	"GET /v1/tokens":              {nil, 200, 403, 403, 403, 403},
	"DELETE /v1/tokens/{tokenId}": {nil, 204, 403, 403, 403, 403},

	"POST /v1/projects":               {"{}", 400, 403, 403, 403, 403},
	"GET /v1/projects":                {nil, 200, 403, 403, 403, 403},
	"DELETE /v1/projects/{projectId}": {nil, 409, 403, 403, 403, 403},

	"GET /v1/compute/nodes":             {nil, 200, 403, 403, 403, 403},
	"GET /v1/compute/nodes/{nodeId}":    {nil, 200, 403, 403, 403, 403},
	"PATCH /v1/compute/nodes/{nodeId}":  {"{}", 200, 403, 403, 403, 403},
	"DELETE /v1/compute/nodes/{nodeId}": {nil, 409, 403, 403, 403, 403},

	"POST /v1/compute/nodes/{nodeId}/cordon":       {nil, 200, 403, 403, 403, 403},
	"POST /v1/compute/nodes/{nodeId}/uncordon":     {nil, 200, 403, 403, 403, 403},
	"POST /v1/compute/nodes/{nodeId}/drain":        {`{"dryRun":true}`, 202, 403, 403, 403, 403},
	"GET /v1/compute/nodes/{nodeId}/drain":         {nil, 404, 403, 403, 403, 403},
	"POST /v1/compute/nodes/{nodeId}/drain/cancel": {nil, 409, 403, 403, 403, 403},

	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/migrate":        {nil, 409, 403, 403, 403, 403},
	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/migrate/cancel": {nil, 409, 403, 403, 403, 403},

	"POST /v1/compute/nodes/{nodeId}/join":         {"{}", 403, 403, 403, 403, 403}, // a join token's alone
	"POST /v1/compute/nodes/{nodeId}/credential":   {"{}", 401, 401, 401, 401, 401}, // a node's key's alone
	"POST /v1/compute/nodes/{nodeId}/readmit":      {"{}", 201, 403, 403, 403, 403},
	"GET /v1/compute/node-joins":                   {nil, 200, 403, 403, 403, 403},
	"POST /v1/compute/node-joins/{nodeId}/approve": {"{}", 409, 403, 403, 403, 403},
	"POST /v1/compute/node-joins/{nodeId}/refuse":  {"{}", 409, 403, 403, 403, 403},

	"POST /v1/compute/nodes/{nodeId}/shutdown":    {nil, 409, 403, 403, 403, 403},
	"POST /v1/compute/nodes/{nodeId}/reboot":      {nil, 409, 403, 403, 403, 403},
	"POST /v1/compute/nodes/{nodeId}/declare-off": {nil, 409, 403, 403, 403, 403},
	"POST /v1/compute/nodes/{nodeId}/wake":        {nil, 409, 403, 403, 403, 403},

	"PUT /v1/compute/nodes/{nodeId}/heartbeat":                      {apptest.Machine("n1"), 403, 200, 403, 403, 403},
	"POST /v1/compute/nodes/{nodeId}/sync":                          {api.SyncRequest{Instances: []api.ObservedInstance{}}, 403, 200, 403, 403, 403},
	"GET /v1/compute/nodes/{nodeId}/blobs/{sha256}":                 {nil, 403, 404, 403, 403, 403},
	"GET /v1/compute/nodes/{nodeId}/images/{sha256}":                {nil, 403, 404, 403, 403, 403},
	"PUT /v1/compute/nodes/{nodeId}/instances/{instanceId}/console": {"text", 403, 404, 403, 403, 403},

	"POST /v1/compute/nodes/{nodeId}/agent-reports":                {`{"reports":[]}`, 403, 204, 403, 403, 403},
	"PUT /v1/compute/nodes/{nodeId}/uploads/{uploadId}/{position}": {"x", 403, 404, 403, 403, 403},
	"POST /v1/compute/nodes/{nodeId}/streams/{streamId}":           {nil, 403, 400, 403, 403, 403},

	"POST /v1/projects/{projectId}/compute/instances":                                      {"{}", 400, 403, 403, 400, 404},
	"GET /v1/projects/{projectId}/compute/instances":                                       {nil, 200, 403, 403, 200, 404},
	"GET /v1/projects/{projectId}/compute/instances/{instanceId}":                          {nil, 200, 403, 403, 200, 404},
	"PATCH /v1/projects/{projectId}/compute/instances/{instanceId}":                        {"{}", 200, 403, 403, 200, 404},
	"DELETE /v1/projects/{projectId}/compute/instances/{instanceId}":                       {nil, 202, 403, 403, 202, 404},
	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/start":                   {nil, 202, 403, 403, 202, 404},
	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/stop":                    {nil, 202, 403, 403, 202, 404},
	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/reboot":                  {nil, 409, 403, 403, 409, 404},
	"GET /v1/projects/{projectId}/compute/instances/{instanceId}/console":                  {nil, 409, 403, 403, 409, 404},
	"GET /v1/projects/{projectId}/compute/instances/{instanceId}/events":                   {nil, 200, 403, 403, 200, 404},
	"PUT /v1/projects/{projectId}/compute/instances/{instanceId}/user-data":                {"#!/bin/sh", 409, 403, 403, 409, 404},
	"DELETE /v1/projects/{projectId}/compute/instances/{instanceId}/user-data":             {nil, 409, 403, 403, 409, 404},
	"GET /v1/projects/{projectId}/compute/instances/{instanceId}/console/stream":           {nil, 400, 403, 403, 400, 404},
	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/enable-agent":            {nil, 202, 403, 403, 202, 404},
	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/disable-agent":           {nil, 202, 403, 403, 202, 404},
	"GET /v1/projects/{projectId}/compute/instances/{instanceId}/agent-status":             {nil, 200, 403, 403, 200, 404},
	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/modify-metadata-options": {`{"httpTokens":"required"}`, 202, 403, 403, 202, 404},
	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/attach-volume":           {"{}", 400, 403, 403, 400, 404},
	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/detach-volume":           {"{}", 400, 403, 403, 400, 404},
	"POST /v1/projects/{projectId}/compute/instances/{instanceId}/create-image":            {"{}", 400, 403, 403, 400, 404},
	"GET /v1/projects/{projectId}/compute/volumes":                                         {nil, 200, 403, 403, 200, 404},
	"GET /v1/projects/{projectId}/compute/volumes/{volumeId}":                              {nil, 200, 403, 403, 200, 404},
	"DELETE /v1/projects/{projectId}/compute/volumes/{volumeId}":                           {nil, 409, 403, 403, 409, 404},
	"GET /v1/projects/{projectId}/compute/subnets":                                         {nil, 200, 403, 403, 200, 404},
	"POST /v1/projects/{projectId}/compute/placement-groups":                               {"{}", 400, 403, 403, 400, 404},
	"GET /v1/projects/{projectId}/compute/placement-groups":                                {nil, 200, 403, 403, 200, 404},
	"GET /v1/projects/{projectId}/compute/placement-groups/{groupId}":                      {nil, 200, 403, 403, 200, 404},
	"PATCH /v1/projects/{projectId}/compute/placement-groups/{groupId}":                    {"{}", 200, 403, 403, 200, 404},
	"DELETE /v1/projects/{projectId}/compute/placement-groups/{groupId}":                   {nil, 204, 403, 403, 204, 404},
	"GET /v1/projects/{projectId}/compute/placement-groups/{groupId}/violations":           {nil, 200, 403, 403, 200, 404},
	"GET /v1/projects/{projectId}/compute/placement-groups/{groupId}/rebalance":            {nil, 200, 403, 403, 200, 404},
	"POST /v1/projects/{projectId}/compute/placement/explain":                              {"{}", 400, 403, 403, 400, 404},
	"GET /v1/projects/{projectId}/quota":                                                   {nil, 200, 403, 403, 200, 404},
	"PATCH /v1/projects/{projectId}/quota":                                                 {"{}", 200, 403, 403, 403, 403},
	"GET /v1/compute/capacity":                                                             {nil, 200, 403, 403, 403, 403},
	"GET /v1/compute/readiness":                                                            {nil, 200, 403, 403, 403, 403},
	"GET /v1/compute/audit":                                                                {nil, 200, 403, 403, 403, 403},
	"POST /v1/projects/{projectId}/compute/images":                                         {"", 400, 403, 403, 400, 404},
	"GET /v1/projects/{projectId}/compute/images":                                          {nil, 200, 403, 403, 200, 404},
	"GET /v1/projects/{projectId}/compute/images/{imageId}":                                {nil, 200, 403, 403, 200, 404},
	"DELETE /v1/projects/{projectId}/compute/images/{imageId}":                             {nil, 409, 403, 403, 409, 404},
}

// open routes need no token at all.
var open = []string{"GET /healthz", "GET /readyz", "GET /metrics", "GET /openapi.json", "GET /openapi.yaml"}

// walk is one system with everything that the routes' paths may name.
type walk struct {
	*apptest.System
	callers map[string]*apptest.Client
	image   string
	volume  string // the root of a running instance
	gone    string // a terminated instance
	groups  int    // how many placement groups were made
}

func newWalk(t *testing.T, s *apptest.System) *walk {
	w := &walk{System: s, callers: map[string]*apptest.Client{}}
	w.callers["operator"] = s.Operator
	w.callers["member"] = s.Member("alpha")
	w.callers["stranger"] = s.Member("beta")
	n := s.Node("n1")
	w.callers["node"] = n.Client
	w.callers["other"] = s.NodeToken("n2").Client
	spare := apptest.Machine("spare")
	spare.Role = "storage" // so that no instance goes there
	s.NodeToken("spare").Beat(spare)
	w.callers["none"] = s.As("")
	w.callers["bad"] = s.As("oct_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	expired := s.Token(api.CreateToken{Role: "operator", ExpiresInSeconds: 60})
	s.Clock.Advance(60 * time.Second) // not valid at its very end
	w.callers["expired"] = s.As(expired)
	var revoked api.NewToken
	s.Operator.Do("POST", "/v1/tokens", api.CreateToken{Role: "operator"}).Want(201).Decode(&revoked)
	s.As(revoked.Secret).Do("GET", "/v1/whoami", nil).Want(200)
	s.Operator.Do("DELETE", "/v1/tokens/"+revoked.ID, nil).Want(204)
	w.callers["revoked"] = s.As(revoked.Secret)

	w.image = s.Image("alpha")
	w.volume = n.Launch("alpha", api.CreateInstance{ImageID: w.image}).RootVolumeID
	w.gone = n.Launch("alpha", api.CreateInstance{ImageID: w.image}).ID
	s.Operator.Do("DELETE", api.InstancePath("alpha", w.gone), nil).Want(202)
	n.Drive("alpha", w.gone, compute.StateTerminated)
	return w
}

// instance is one that stays creating: no node acts on it.
func (w *walk) instance() string {
	return w.Create("alpha", api.CreateInstance{ImageID: w.image}).ID
}

func (w *walk) path(route server.Route) string {
	id := "i-000000000"
	if strings.HasSuffix(route.Path, "/readmit") { // that one's tokens end
		return strings.ReplaceAll(route.Path, "{nodeId}", "spare")
	}
	switch {
	case strings.HasSuffix(route.Path, "/{instanceId}/console") && route.Method == "GET":
		id = w.gone // one that runs would be waited for
	case strings.HasPrefix(route.Path, "/v1/projects/{projectId}/compute/instances/{"):
		id = w.instance()
	}
	var group api.PlacementGroup
	if strings.Contains(route.Path, "{groupId}") {
		w.groups++
		w.Operator.Do("POST", "/v1/projects/alpha/compute/placement-groups", api.CreatePlacementGroup{Name: fmt.Sprint("g", w.groups), Kind: "spread"}).Want(201).Decode(&group)
	}
	var token api.NewToken
	if strings.Contains(route.Path, "{tokenId}") {
		w.Operator.Do("POST", "/v1/tokens", api.CreateToken{Role: "operator"}).Want(201).Decode(&token)
		w.Secret(token.Secret)
	}
	return strings.NewReplacer("{projectId}", "alpha", "{nodeId}", "n1", "{instanceId}", id, "{imageId}", w.image,
		"{tokenId}", token.ID, "{groupId}", group.ID, "{volumeId}", w.volume, "{uploadId}", "u", "{position}", "0", "{streamId}", "s", "{sha256}", strings.Repeat("0", 64)).Replace(route.Path)
}

// Every route × every role, and no token, a bad, an expired and a revoked one.
// contract: E-01 N-01 N-24 U-05 U-19
func TestEveryRouteEveryRole(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		w := newWalk(t, s)
		seen := map[string]bool{}
		for _, route := range computeRoutes(s.Server) {
			name := route.Method + " " + route.Path
			seen[name] = true
			want, known := access[name]
			if !known {
				t.Errorf("%s: not in the table of who may call it", name)
				continue
			}
			if !strings.HasPrefix(route.Action, "compute:") && !strings.HasPrefix(route.Action, "iam:") {
				t.Errorf("%s: states no action", name)
			}
			for caller, status := range map[string]int{
				"operator": want.operator, "node": want.node, "other": want.other, "member": want.member, "stranger": want.stranger,
				"none": 401, "bad": 401, "expired": 401, "revoked": 401,
			} {
				a := w.callers[caller].Do(route.Method, w.path(route), want.body)
				if a.Status != status {
					t.Errorf("%s as %s: %d %s; want %d", name, caller, a.Status, a.Body, status)
				}
				if status == 401 {
					a.Refused(401, "UNAUTHENTICATED")
					if a.Header.Get("WWW-Authenticate") == "" {
						t.Errorf("%s: 401 without WWW-Authenticate", name)
					}
				}
				if status == 403 {
					a.Refused(403, "FORBIDDEN")
				}
			}
		}
		for name := range access {
			if !seen[name] {
				t.Errorf("%s: in the table, but no route", name)
			}
		}
		for _, name := range open {
			method, path, _ := strings.Cut(name, " ")
			w.callers["none"].Do(method, path, nil).Want(200)
		}
	})
}

// computeRoutes are the routes that need an action of the compute API; all
// others must be known as open or be the gateway's.
func computeRoutes(s *server.Server) (out []server.Route) {
	for _, r := range s.Routes() {
		if r.Action != "" && !gatewayRoute(r) {
			out = append(out, r)
		}
	}
	return out
}

func gatewayRoute(r server.Route) bool {
	for _, p := range []string{"/v1/hosts", "/v1/apps", "/v1/api-keys", "/v1/work", "/v1/capabilities"} {
		if strings.HasPrefix(r.Path, p) {
			return true
		}
	}
	return false
}

// A route that says nothing of an action must be one of the open ones.
func TestOpenRoutes(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	for _, r := range s.Server.Routes() {
		name := r.Method + " " + r.Path
		if r.Action == "" && !contains(open, name) {
			t.Errorf("%s needs no action and is not known as open", name)
		}
	}
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// What another project has looks in every way like what nobody has.
// contract: U-05
func TestAnotherProjectsThingsAreNotThere(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		mallory := s.Member("mallory")
		s.Member("victim")
		theirs := s.Create("victim", api.CreateInstance{})
		image := theirs.ImageID
		const none, noImage = "i-000000000", "img-aaaaaaaaaa"
		for _, ask := range []struct {
			method, path string
			body         any
		}{
			{"GET", "", nil}, {"PATCH", "", map[string]any{"name": "x"}}, {"DELETE", "", nil}, {"POST", "/start", nil}, {"POST", "/stop", nil},
			{"POST", "/reboot", nil}, {"GET", "/console", nil}, {"GET", "/events", nil}, {"PUT", "/user-data", "x"}, {"DELETE", "/user-data", nil},
		} {
			// Through the own project, and through theirs against one that is not there.
			same(t, ask.method+" own"+ask.path, theirs.ID, none,
				mallory.Do(ask.method, api.InstancePath("mallory", theirs.ID)+ask.path, ask.body),
				mallory.Do(ask.method, api.InstancePath("mallory", none)+ask.path, ask.body))
			same(t, ask.method+" theirs"+ask.path, "victim", "nobody",
				mallory.Do(ask.method, api.InstancePath("victim", theirs.ID)+ask.path, ask.body),
				mallory.Do(ask.method, api.InstancePath("nobody", theirs.ID)+ask.path, ask.body))
		}
		for _, method := range []string{"GET", "DELETE"} {
			same(t, method+" image", image, noImage, mallory.Do(method, api.ImagePath("mallory", image), nil), mallory.Do(method, api.ImagePath("mallory", noImage), nil))
		}
		create := func(id string) *apptest.Answer {
			a := mallory.Do("POST", api.InstancePath("mallory", ""), api.CreateInstance{Name: "x", ImageID: id, InstanceType: "m1.tiny"})
			a.Refused(400, "INVALID_INPUT")
			return a
		}
		a, b := create(image), create(noImage)
		if string(bytes.ReplaceAll(a.Body, []byte(image), nil)) != string(bytes.ReplaceAll(b.Body, []byte(noImage), nil)) {
			t.Errorf("a create tells another's image from none:\n%s\n%s", a.Body, b.Body)
		}
		s.Operator.Do("GET", api.InstancePath("victim", theirs.ID), nil).Want(200) // untouched
		if got := s.Operator.Instance("victim", theirs.ID); got.State != "creating" || got.Name != theirs.Name {
			t.Errorf("another project's instance was touched: %+v", got)
		}
	})
}

// same holds that two refusals differ in the asked name only.
func same(t *testing.T, what, there, none string, a, b *apptest.Answer) {
	t.Helper()
	a.Refused(404, "NOT_FOUND")
	b.Refused(404, "NOT_FOUND")
	if x, y := strings.ReplaceAll(string(a.Body), there, "?"), strings.ReplaceAll(string(b.Body), none, "?"); x != y {
		t.Errorf("%s: what is there can be told from what is not:\n%s\n%s", what, x, y)
	}
	for h := range a.Header {
		if h != "X-Request-Id" && h != "Date" && h != "Content-Length" && a.Header.Get(h) != b.Header.Get(h) {
			t.Errorf("%s: header %s tells: %q, %q", what, h, a.Header.Get(h), b.Header.Get(h))
		}
	}
}

// A token of a role may not reach beyond what it is bound to.
// contract: N-01
func TestNodeTokenIsBound(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	bound := s.As(s.Token(api.CreateToken{Role: "node", NodeID: "n1", NodeRole: "storage", NodeZone: "z1"}))
	h := apptest.Machine("n1")
	beat := func(role, zone string, status int) {
		t.Helper()
		h.Role, h.AvailabilityZone = role, zone
		bound.Do("PUT", api.NodePath("n1", "heartbeat"), h).Want(status)
	}
	beat("storage", "z1", http.StatusOK)
	beat("hypervisor", "z1", http.StatusForbidden)
	beat("storage", "z2", http.StatusForbidden)
	beat("storage", "", http.StatusForbidden) // the install's own zone is another
}
