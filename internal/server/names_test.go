package server_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
)

// schemaAt follows references, and names through objects and lists of objects.
func schemaAt(doc *huma.OpenAPI, s *huma.Schema, names ...string) *huma.Schema {
	for {
		for s != nil && s.Ref != "" {
			s = doc.Components.Schemas.SchemaFromRef(s.Ref)
		}
		if s != nil && s.Items != nil {
			s = s.Items
			continue
		}
		if s == nil || len(names) == 0 {
			return s
		}
		s, names = s.Properties[names[0]], names[1:]
	}
}

// slips are wrong spellings of every name that a body may have, in objects within
// objects, too: the path as the client would write it, the body, and what was meant.
func slips(doc *huma.OpenAPI, s *huma.Schema, path string, wrap func(string) string) (out [][3]string) {
	if s = schemaAt(doc, s); s == nil || s.AdditionalProperties == true {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		slip := name + name[len(name)-1:]
		out = append(out, [3]string{path + slip, wrap(`{"` + slip + `":1}`), name})
		inner, before, after, at := s.Properties[name], `{"`+name+`":`, "}", path+name+"."
		if inner.Items != nil {
			before, after, at = before+"[", "]"+after, path+name+"[0]."
		}
		out = append(out, slips(doc, inner, at, func(b string) string { return wrap(before + b + after) })...)
	}
	return out
}

// Every route of tenants and operators, every field of its body and of the objects
// within: one that is misspelled is refused, and the name that was meant is given.
// contract: E-05 E-02
func TestMisspelledFieldsOfEveryRoute(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	in := newInputs(t, s)
	doc, tried := s.Server.OpenAPI(), 0
	for route, schema := range jsonRoutes(s.Server) {
		for _, c := range slips(doc, schema, "", func(b string) string { return b }) {
			path, body, meant := c[0], c[1], c[2]
			r := in.send(route, body).Refused(400, "INVALID_INPUT")
			i := slices.Index(r.Paths(), path)
			if i < 0 || !strings.Contains(r.Fields[i].Message, "did you mean "+meant+"?") {
				t.Errorf("%s %s: %+v; want %s, and %s suggested", route, body, r.Fields, path, meant)
			}
			tried++
		}
	}
	if tried < 60 {
		t.Errorf("only %d fields were misspelled", tried)
	}
}

// Names of the wire are exact: those of the published documents and those fixed beside
// them, of each shape, with the values that a name may have.
// contract: N-04 N-07 N-09 N-11 N-12 N-17 N-18 N-19 N-23 U-06 U-07 U-08 U-09 U-10 U-11 U-12 U-14 U-16 U-17 U-18
func TestNamesOnTheWire(t *testing.T) {
	doc := apptest.Start(t, apptest.Options{}).Server.OpenAPI()
	const node, instance = "/v1/compute/nodes/{nodeId}", "/v1/projects/{projectId}/compute/instances/{instanceId}"
	answer := func(o *huma.Operation) *huma.Schema { return o.Responses["200"].Content["application/json"].Schema }
	body := func(o *huma.Operation) *huma.Schema { return o.RequestBody.Content["application/json"].Schema }
	theNode, theInstance := answer(doc.Paths[node].Get), answer(doc.Paths[instance].Get)
	for _, c := range []struct {
		of    *huma.Schema
		at    string // below it
		names string
	}{
		{theNode, "", `hostname role region availabilityZone architecture state capabilities committedCapabilities reservationSource reservedVCPUs
			reservedMemoryBytes powerAction id displayName capacity committableVCPUs committableMemoryBytes committedVCPUs committedMemoryBytes lastSeenAt
			createdAt heartbeatIntervalSeconds declaredCapabilities detectedCapabilities liveness findings`},
		{theNode, "capacity", `totalVCPUs reservedVCPUs vcpuOvercommitRatio committedVCPUs totalMemoryBytes reservedMemoryBytes memoryOvercommitRatio
			committedMemoryBytes totalDiskBytes hasGPU hasNestedVirt hasSecureBoot hasTPM architecture kvmVersion sampledAt`},
		{theNode, "powerAction", "action state notBefore message powerOn generation offAt lastControlPlane"},
		{theNode, "powerAction powerOn", "button wakeOnLanMac"},
		{theNode, "liveness", "status reason since clockSkewMs"},
		{theNode, "findings", "code message since"},
		{theNode, "maintenance", "mode since by reason"},
		{answer(doc.Paths[node+"/drain"].Get), "", "safeToPowerOff"},
		{body(doc.Paths[node+"/heartbeat"].Put), "", "hostname role region availabilityZone architecture capacity capabilities bootId machineId wakeOnLanMac"},
		{body(doc.Paths[node].Patch), "", "displayName reservedVCPUs reservedMemoryBytes vcpuOvercommitRatio memoryOvercommitRatio declaredCapabilities"},
		{theInstance, "", `vcpus memoryBytes state health healthReason agentEnabled agentActivation agentStatus launchedAt networkInterfaces primaryPrivateIP
			placementGroupId desiredState metadataOptions id projectId name imageId instanceType nodeId stateMessage agentEnrollmentPending agentEnrolledAt
			rootVolumeId rootVolumeAutoProvisioned dataVolumes primaryInterfaceId primaryInterfaceAutoProvisioned placementGroupName userDataHash
			startOnNodeBoot forceStopping tags createdAt privateIpAddress`},
		{theInstance, "healthReason", "code message deadline since"},
		{theInstance, "agentStatus", "instanceId health lastHeartbeatAt version lastReconcileResult lastReconcileAt"},
		{theInstance, "networkInterfaces", "privateIp subnetId vpcId"},
		{theInstance, "dataVolumes", "device volumeId sourceSnapshotId"},
		{theInstance, "metadataOptions", "httpEndpoint httpTokens httpPutResponseHopLimit instanceMetadataTags"},
		{body(doc.Paths[strings.TrimSuffix(instance, "/{instanceId}")].Post), "", `name imageId instanceType vcpus memoryBytes rootVolumeBytes dataVolumes userData
			subnetIds floatingIPPool placementGroupId instanceProfile agentEnabled metadataOptions desiredState startOnNodeBoot publicKeys selectors countables tags`},
		{body(doc.Paths[instance].Patch), "", "name desiredState startOnNodeBoot tags"},
		{body(doc.Paths[instance+"/stop"].Post), "", "force deadlineSeconds"},
		{body(doc.Paths[instance+"/enable-agent"].Post), "", "force"},
	} {
		s := schemaAt(doc, c.of, strings.Fields(c.at)...)
		for _, name := range strings.Fields(c.names) {
			if s == nil || s.Properties[name] == nil {
				t.Errorf("%q has no %s", c.at, name)
			}
		}
	}
	for _, c := range []struct {
		of           *huma.Schema
		name, values string
	}{
		{theNode, "role", "hybrid hypervisor control-plane storage"},
		{theNode, "state", "ready maintenance draining shutting-down rebooting off"},
		{theNode, "reservationSource", "reported computed operator"},
		{theNode, "liveness status", "ok suspect unreachable"},
		{theNode, "powerAction action", "shutdown reboot"},
		{theNode, "powerAction state", "shutting-down rebooting off done failed"},
		{theInstance, "state", "creating running stopping stopped starting rebooting migrating terminating terminated error"},
		{theInstance, "health", "healthy degraded unhealthy migrating unknown agent_disabled"},
		{theInstance, "healthReason code", "agent_pending agent_never_reported agent_gone_quiet agent_disabled agent_enrollment_pending"},
		{theInstance, "agentActivation", "automatic install-command"},
		{theInstance, "desiredState", "running stopped"},
		{theInstance, "metadataOptions httpEndpoint", "enabled disabled"},
		{theInstance, "metadataOptions httpTokens", "optional required"},
		{theInstance, "metadataOptions instanceMetadataTags", "enabled disabled"},
	} {
		s, want := schemaAt(doc, c.of, strings.Fields(c.name)...), strings.Fields(c.values)
		var got []string
		for _, v := range s.Enum {
			got = append(got, v.(string))
		}
		if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
			t.Errorf("%s is one of %v, want %v", c.name, got, want)
		}
	}
}

// What never was is absent, and not null, zero or false.
// contract: N-12 N-14 N-17 N-18 U-04 U-08 U-14 U-16
func TestAbsentIsAbsent(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		i := n.Launch("default", api.CreateInstance{})
		names := func(path string) map[string]json.RawMessage {
			var m map[string]json.RawMessage
			s.Operator.Do("GET", path, nil).Want(200).Decode(&m)
			return m
		}
		node, instance := names(api.NodePath("n1")), names(api.InstancePath("default", i.ID))
		for _, name := range []string{"powerAction", "committedCapabilities", "freeCapabilities", "declaredCapabilities", "maintenance", "declaredOffAt", "displayName"} {
			if v, ok := node[name]; ok {
				t.Errorf("a node that never had it: %s is %s", name, v)
			}
		}
		var capacity map[string]json.RawMessage
		if err := json.Unmarshal(node["capacity"], &capacity); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"hasGPU", "hasNestedVirt", "hasSecureBoot", "hasTPM", "kvmVersion"} {
			if v, ok := capacity[name]; ok {
				t.Errorf("a node that did not report it: %s is %s", name, v)
			}
		}
		for _, name := range []string{"userDataHash", "desiredState", "placementGroupId", "placementGroupName", "agentEnrolledAt", "dataVolumes", "tags", "floatingIpId", "primaryPublicIP", "publicDnsName", "stateMessage"} {
			if v, ok := instance[name]; ok {
				t.Errorf("an instance that never had it: %s is %s", name, v)
			}
		}
		h := apptest.Machine("n1")
		h.Capabilities = map[string]string{"hasGpu": "true", "cpuModel": "x", "migrationTransport": "down", "pool": "web"}
		n.Beat(h)
		if node := names(api.NodePath("n1")); string(node["detectedCapabilities"]) != `{"pool":"web"}` || strings.Contains(string(node["capabilities"]), "hasGpu") {
			t.Errorf("names of the past: %s, %s", node["detectedCapabilities"], node["capabilities"])
		}
		no := false
		h.Capacity.HasTPM, h.Capabilities = &no, map[string]string{"capability.net.sriov_vfs": "0", "capability.sec.tpm": "false"}
		n.Beat(h)
		node = names(api.NodePath("n1"))
		if !strings.Contains(string(node["capacity"]), `"hasTPM":false`) || string(node["freeCapabilities"]) != `{"capability.net.sriov_vfs":0}` || !strings.Contains(string(node["capabilities"]), `"capability.sec.tpm":"false"`) {
			t.Errorf("a false and a zero: %s, %s, %s", node["capacity"], node["freeCapabilities"], node["capabilities"])
		}
	})
}
