package server_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
)

// TestHeartbeatSchema: the document takes what the hand-written reader takes.
//
// contract: E-08 R-02 R-03 R-04 R-05 R-06
func TestHeartbeatSchema(t *testing.T) {
	e := sqliteGateway(t, nil)
	registry := e.openAPI.Components.Schemas
	schema := e.openAPI.Paths["/v1/hosts/heartbeat"].Post.RequestBody.Content["application/json"].Schema
	for _, c := range heartbeatCases() {
		body, err := json.Marshal(beat("h", c.field, c.v))
		if err != nil {
			t.Fatal(err)
		}
		var v any
		result := &huma.ValidateResult{}
		if err := json.Unmarshal(body, &v); err != nil {
			continue // a number that this reader cannot hold
		}
		huma.Validate(registry, schema, huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, v, result)
		// What no schema says, and null, which this validator lets stand for "absent".
		beyond := strings.ContainsRune(string(body), '\\') || reflect.DeepEqual(c.v, null) || c.field == "slotsUsed" && c.bad != "" && len(result.Errors) == 0
		if (len(result.Errors) == 0) != (c.bad == "") && !beyond {
			t.Errorf("%s = %v: the schema says %v, the reader refuses at %q", c.field, c.v, result.Errors, c.bad)
		}
	}
}

// TestGatewayDocument holds the served document to the published one.
//
// contract: E-08 R-07 R-08
func TestGatewayDocument(t *testing.T) {
	e := sqliteGateway(t, nil)
	a := e.do(request{method: "GET", path: "/openapi.json"})
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Security    []map[string][]string
			Parameters  []struct{ Name, In string }
			Responses   map[string]struct {
				Content map[string]struct {
					Schema struct {
						Ref string `json:"$ref"`
					}
				}
			}
		}
		Components struct {
			Schemas         map[string]json.RawMessage
			SecuritySchemes map[string]map[string]any
		}
	}
	if err := json.Unmarshal(a.body, &doc); err != nil || a.status != 200 {
		t.Fatal(&a, err)
	}
	op := doc.Paths["/v1/hosts/heartbeat"]["post"]
	if op.OperationID != "record-host-heartbeat" || len(op.Security) != 1 || op.Security[0]["AppId"] == nil || op.Security[0]["BearerAuth"] == nil {
		t.Errorf("the operation is %+v", op)
	}
	for _, name := range []string{"Signature", "Signature-Input", "Content-Digest"} {
		if !slices.ContainsFunc(op.Parameters, func(p struct{ Name, In string }) bool { return p.Name == name && p.In == "header" }) {
			t.Errorf("no header %s", name)
		}
	}
	for _, status := range []string{"200", "400", "401", "403"} {
		if _, ok := op.Responses[status]; !ok {
			t.Errorf("no response %s", status)
		}
	}
	if s := doc.Components.SecuritySchemes; s["AppId"]["in"] != "header" || s["AppId"]["name"] != "X-Outerlayer-App-Id" || s["BearerAuth"]["scheme"] != "bearer" {
		t.Errorf("security schemes %v", s)
	}
	ids := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, o := range methods {
			if o.OperationID == "" || ids[o.OperationID] {
				t.Errorf("%s %s has the id %q", method, path, o.OperationID)
			}
			ids[o.OperationID] = true
		}
	}
	var host struct {
		Required   []string
		Properties map[string]struct {
			Ref   string `json:"$ref"`
			Type  any
			AnyOf []map[string]any
			Enum  []string
		}
	}
	if err := json.Unmarshal(doc.Components.Schemas["HeartbeatHost"], &host); err != nil {
		t.Fatal(err)
	}
	want := []string{"host", "cliVersion", "runnerProtocol", "pollSeconds", "slotsUsed", "slotsTotal", "lastHeartbeatAt", "lastSuccessAt", "lastError", "lastUpdate", "lowDisk", "blocked", "status", "runnerVersion"}
	slices.Sort(want)
	slices.Sort(host.Required)
	if !slices.Equal(host.Required, want) || len(host.Properties) != len(want) {
		t.Errorf("required %v of %v, want %v", host.Required, host.Properties, want)
	}
	for _, name := range []string{"lastError", "lastUpdate", "lowDisk", "blocked"} {
		if p := host.Properties[name]; len(p.AnyOf) != 2 || p.AnyOf[1]["type"] != "null" {
			t.Errorf("%s cannot be null: %+v", name, p)
		}
	}
	if !slices.Equal(host.Properties["status"].Enum, []string{"ok", "failing", "outdated", "stale"}) {
		t.Errorf("status %v", host.Properties["status"].Enum)
	}
}
