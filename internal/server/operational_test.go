package server_test

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// The documents' own examples, as printed but for the server's address, the
// token, and the ids of things that have to be there.
const (
	printedHeartbeat = `curl --request PUT \ --url https://stratum.example.com/v1/compute/nodes/example/heartbeat \ --header 'Authorization: Bearer <token>' \ --header 'Content-Type: application/json' \ --data '{ "hostname": "example", "role": "hybrid", "region": "example", "availabilityZone": "example", "architecture": "amd64", "capacity": { "totalVCPUs": 1, "reservedVCPUs": 1, "vcpuOvercommitRatio": 1, "committedVCPUs": 1, "totalMemoryBytes": 1, "reservedMemoryBytes": 1, "memoryOvercommitRatio": 1, "committedMemoryBytes": 1, "totalDiskBytes": 1, "hasGPU": true, "hasNestedVirt": true, "hasSecureBoot": true, "hasTPM": true, "architecture": "example", "kvmVersion": "example", "sampledAt": "2026-04-15T12:00:00Z" }, "capabilities": { "additionalProperty": "example" } }'`
	printedUserData  = `curl --request PUT \ --url https://stratum.example.com/v1/projects/example/compute/instances/example/user-data \ --header 'Authorization: Bearer <token>' \ --header 'Content-Type: text/plain' \ --data binary`
)

// curl runs a printed example; the page lost the line breaks after the backslashes.
func curl(t *testing.T, s *apptest.System, printed, token string, replace ...string) (status string, body []byte) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	script := strings.ReplaceAll(printed, `\ --`, "\\\n--")
	script = strings.NewReplacer(append(replace, "https://stratum.example.com", s.URL, "<token>", token)...).Replace(script)
	script = strings.Replace(script, "curl ", "curl --silent --show-error --write-out '\n%{http_code}' ", 1)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", script).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	i := strings.LastIndexByte(string(out), '\n')
	return string(out[i+1:]), out[:i]
}

// contract: N-01 N-04 N-05 N-07
func TestPrintedHeartbeat(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.NodeToken("example")
		status, body := curl(t, s, printedHeartbeat, n.Token())
		if status != "200" {
			t.Fatalf("%s %s", status, body)
		}
		var answered, got api.Node
		if err := json.Unmarshal(body, &answered); err != nil {
			t.Fatal(err)
		}
		a := s.Operator.Do("GET", api.NodePath("example"), nil).Want(200).Decode(&got)
		if string(a.Body) != string(body)+"\n" && strings.TrimSpace(string(a.Body)) != strings.TrimSpace(string(body)) {
			t.Errorf("the heartbeat answers\n%s\nthe node reads\n%s", body, a.Body)
		}
		if got.State != "ready" || got.ID != "example" || got.ReservationSource != "reported" || got.CommittableVCPUs != 0 || got.Capabilities["additionalProperty"] != "example" {
			t.Errorf("%+v", got)
		}
	})
}

// contract: U-01 U-04
func TestPrintedUserData(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	member := s.Member("example")
	i := s.Node("n1").Stopped("example", api.CreateInstance{})
	if status, body := curl(t, s, printedUserData, member.Token()); status != "404" {
		t.Errorf("without that instance: %s %s", status, body)
	}
	status, body := curl(t, s, printedUserData, member.Token(), "instances/example", "instances/"+i.ID)
	if status != "200" || !strings.Contains(string(body), hashOf([]byte("binary"))) {
		t.Errorf("%s %s", status, body)
	}
}

// A request's id goes back in a header; one that the caller gave is kept where
// it is harmless, and a failure of the server's own names it.
// contract: E-01
func TestRequestID(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	for given, kept := range map[string]bool{"abc-123_X.y": true, strings.Repeat("a", 64): true, strings.Repeat("a", 65): false, "a b": false, "<script>": false, "é": false, "": false} {
		a := s.Operator.Do("GET", "/v1/whoami", nil, apptest.Header("X-Request-Id", given))
		got := a.Header.Get("X-Request-Id")
		if got == "" || (got == given) != kept {
			t.Errorf("given %q, answered %q", given, got)
		}
	}
	s.LoseDatabase() // the server can no longer do anything
	a := s.Operator.Do("GET", "/v1/whoami", nil)
	r := a.Refused(500, "INTERNAL")
	if id := a.Header.Get("X-Request-Id"); !strings.Contains(r.Message, id) || !s.Logged(id) || strings.Contains(string(a.Body), "store") {
		t.Errorf("%s with id %s", a.Body, id)
	}
}

// contract: E-01 E-09
func TestOperationalRoutes(t *testing.T) {
	for _, kind := range storetest.Kinds {
		t.Run(kind, func(t *testing.T) {
			s := apptest.Start(t, apptest.Options{Kind: kind})
			anybody := s.As("")
			s.Operator.Do("GET", "/v1/whoami", nil).Want(200)
			anybody.Do("GET", "/v1/projects/some-tenant/compute/instances", nil).Want(401)
			metrics := string(anybody.Do("GET", "/metrics", nil).Want(200).Body)
			for _, want := range []string{
				`outcrop_http_request_duration_seconds_count{route="GET /v1/whoami",status="200"} 1`,
				`outcrop_http_request_duration_seconds_count{route="GET /v1/projects/{projectId}/compute/instances",status="401"} 1`,
			} {
				if !strings.Contains(metrics, want) {
					t.Errorf("the metrics lack %s", want)
				}
			}
			s.Node("n1")
			const node = `outcrop_node_reachable{node_name="n1"} 1`
			if all := string(s.Operator.Do("GET", "/metrics", nil).Want(200).Body); !strings.Contains(all, node) || !strings.Contains(all, "outcrop_http_request_duration_seconds_count") {
				t.Error("an operator does not see all metrics")
			}
			monitor := s.As(s.Token(api.CreateToken{Role: "monitor"}))
			if all := string(monitor.Do("GET", "/metrics", nil).Want(200).Body); !strings.Contains(all, node) {
				t.Error("a monitor does not see the nodes")
			}
			if strings.Contains(string(anybody.Do("GET", "/metrics", nil).Want(200).Body), "n1") {
				t.Error("the metrics name a node to somebody without a token")
			}
			s.Member("shop").Do("GET", "/metrics", nil).Refused(403, "FORBIDDEN")
			s.As("oct_wrong").Do("GET", "/metrics", nil).Refused(401, "UNAUTHENTICATED")
			if strings.Contains(metrics, "some-tenant") {
				t.Error("the metrics name what a path named")
			}
			anybody.Do("GET", "/healthz", nil).Want(200)
			anybody.Do("GET", "/readyz", nil).Want(200)
			s.LoseDatabase()
			anybody.Do("GET", "/healthz", nil).Want(200) // alive
			if a := anybody.Do("GET", "/readyz", nil).Want(503); strings.Contains(string(a.Body), "store") {
				t.Errorf("the cause is shown: %s", a.Body)
			}
			var doc struct {
				OpenAPI string `json:"openapi"`
				Paths   map[string]map[string]struct {
					OperationID string                `json:"operationId"`
					Security    []map[string][]string `json:"security"`
				} `json:"paths"`
			}
			anybody.Do("GET", "/openapi.json", nil).Want(200).Decode(&doc)
			if !strings.HasPrefix(doc.OpenAPI, "3.1") {
				t.Errorf("OpenAPI %s", doc.OpenAPI)
			}
			if a := anybody.Do("GET", "/openapi.yaml", nil).Want(200); !strings.HasPrefix(a.Header.Get("Content-Type"), "application/yaml") || !strings.Contains(string(a.Body), "openapi: 3.1") {
				t.Errorf("%s: %.100s", a.Header.Get("Content-Type"), a.Body)
			}
		})
	}
}

// The documented operations stand in the document as the documents have them,
// and every operation has an id, an action and its refusals.
// contract: E-08 E-04
func TestDocument(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	doc := s.Server.OpenAPI()
	if p := doc.Paths["/v1/compute/nodes/{nodeId}/heartbeat"]; p == nil || p.Put == nil || p.Put.Responses["200"] == nil || p.Put.Responses["400"] == nil {
		t.Error("the heartbeat is not documented")
	}
	p := doc.Paths["/v1/projects/{projectId}/compute/instances/{instanceId}/user-data"]
	if p == nil || p.Put == nil {
		t.Fatal("the user-data is not documented")
	}
	for _, status := range []string{"200", "400", "404", "409"} {
		if p.Put.Responses[status] == nil {
			t.Errorf("user-data: status %s is not documented", status)
		}
	}
	if p.Put.RequestBody.Content["*/*"] == nil {
		t.Error("user-data: any Content-Type is not documented")
	}
	ids := map[string]string{}
	for _, r := range s.Server.Routes() {
		if r.Action == "" {
			continue
		}
		item := doc.Paths[r.Path]
		if item == nil {
			t.Errorf("%s %s is not in the document", r.Method, r.Path)
			continue
		}
		b, _ := json.Marshal(item)
		var methods map[string]struct {
			OperationID string         `json:"operationId"`
			Summary     string         `json:"summary"`
			Responses   map[string]any `json:"responses"`
		}
		_ = json.Unmarshal(b, &methods)
		o := methods[strings.ToLower(r.Method)]
		if o.OperationID == "" || o.Summary == "" || o.Responses["401"] == nil {
			t.Errorf("%s %s lacks an id, a summary or its refusals: %+v", r.Method, r.Path, o)
		}
		if other := ids[o.OperationID]; other != "" {
			t.Errorf("%s is the id of %s and %s", o.OperationID, other, r.Path)
		}
		ids[o.OperationID] = r.Path
	}
	if doc.Components.Schemas.Map()["ImageInUse"] == nil {
		t.Error("the details of IMAGE_IN_USE are not documented")
	}
}

// The details of a refusal have the shape that the document gives for its code.
// contract: E-04
func TestImageInUse(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	i := s.Create("default", api.CreateInstance{})
	r := s.Operator.Do("DELETE", api.ImagePath("default", i.ImageID), nil).Refused(409, "IMAGE_IN_USE")
	if ids, _ := r.Details["instanceIds"].([]any); len(ids) != 1 || ids[0] != i.ID || r.Details["count"] != 1.0 || len(r.Details) != 2 {
		t.Errorf("details %v", r.Details)
	}
}

// A server that stops lets what it accepted finish, and held answers come back
// at once.
func TestStopEndsHeldAnswers(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	rev := n.Sync(0).Revision
	type result struct {
		a   *apptest.Answer
		err error
	}
	held := make(chan result)
	go func() {
		a, err := n.Try("POST", api.NodePath("n1", "sync"), api.SyncRequest{Revision: rev, Instances: []api.ObservedInstance{}, WaitSeconds: 60})
		held <- result{a, err}
	}()
	s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200) // by now it most likely has come
	begun := time.Now()
	s.Stop()
	r := <-held
	if r.err == nil && r.a.Status != 200 {
		t.Errorf("the held sync is answered %d %s", r.a.Status, r.a.Body)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("the stop took %v", took)
	}
}

// Nothing that a caller sends can stand for text in a log line of its own.
func TestLogLinesStayLines(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	s.As("").Do("GET", "/v1/x%0alevel=ERROR%20msg=forged", nil).Want(404)
	if s.Logged("\nlevel=ERROR") {
		t.Error("a path made a log line")
	}
}

// The secrets of a whole life: tokens and user-data went through, in good and in
// bad requests, and apptest looks for them in the log when the test ends.
func TestSecretsStayOutOfLogs(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		const secret = "user-data with a password in it: hunter2hunter2"
		s.Secret(secret)
		s.Secret(*text(secret))
		n := s.Node("n1")
		member := s.Member("alpha")
		i := n.Stopped("alpha", api.CreateInstance{UserData: text(secret)})
		member.Do("PUT", api.InstancePath("alpha", i.ID, "user-data"), secret).Want(200)
		blob(t, n, i.ID, []byte(secret))
		member.Do("POST", api.InstancePath("alpha", ""), `{"userData":"`+*text(secret)+`","name":`)
		member.Do("POST", api.InstancePath("alpha", ""), `{"userData":"`+*text(secret)+`","name":7,"x":"`+secret+`"}`).Want(400)
		member.Do("POST", api.InstancePath("alpha", ""), `{"`+secret+`":1}`).Want(400)
		s.As(member.Token()+"x").Do("GET", "/v1/whoami", nil).Want(401)
		s.LoseDatabase()
		for _, c := range []*apptest.Client{member, s.Operator} {
			if a := c.Do("PUT", api.InstancePath("alpha", i.ID, "user-data"), secret); a.Status != 500 || strings.Contains(string(a.Body), "hunter2") {
				t.Errorf("%d %s", a.Status, a.Body)
			}
		}
	})
}

// Only what is asked for comes back: no token in any list or answer but the one
// that made it.
func TestTokenIsShownOnce(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	var made api.NewToken
	a := s.Operator.Do("POST", "/v1/tokens", api.CreateToken{Role: "project", ProjectID: "default"}).Want(201).Decode(&made)
	if !regexp.MustCompile(`^oct_[A-Za-z0-9_-]{43}$`).MatchString(made.Secret) {
		t.Errorf("the secret is %q", made.Secret)
	}
	if strings.Count(string(a.Body), made.Secret) != 1 {
		t.Errorf("%s", a.Body)
	}
	if a := s.Operator.Do("GET", "/v1/tokens", nil).Want(200); strings.Contains(string(a.Body), made.Secret) || strings.Contains(string(a.Body), `"token":`) {
		t.Errorf("a list shows a secret: %s", a.Body)
	}
}
