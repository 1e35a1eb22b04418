package control_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

const (
	project = compute.DefaultProject
	gpu     = "capability.gpu.nvidia-l40s"
	quick   = 20 * time.Second // how long the placement loop may take in a test
)

// placed waits until the instance has a node or has failed.
func placed(t testing.TB, s *apptest.System, id string) api.Instance {
	t.Helper()
	return until(t, s, id, func(i *api.Instance) bool { return i.NodeID != "" || i.State == string(compute.StateError) })
}

func until(t testing.TB, s *apptest.System, id string, ok func(*api.Instance) bool) api.Instance {
	t.Helper()
	for end := time.Now().Add(quick); ; {
		i := s.Operator.Instance(project, id)
		if ok(&i) {
			return i
		}
		if time.Now().After(end) {
			t.Fatalf("%s stays %s on %q: %s", id, i.State, i.NodeID, i.StateMessage)
		}
	}
}

// declare sets labels of a node.
func declare(s *apptest.System, node string, labels map[string]string) api.Node {
	in := map[string]*string{}
	for k, v := range labels {
		in[k] = &v
	}
	var out api.Node
	s.Operator.Do("PATCH", api.NodePath(node), api.PatchNode{DeclaredCapabilities: in}).Want(200).Decode(&out)
	return out
}

func makeGroup(s *apptest.System, in api.CreatePlacementGroup) (g api.PlacementGroup) {
	s.Operator.Do("POST", "/v1/projects/default/compute/placement-groups", in).Want(201).Decode(&g)
	return g
}

func explain(s *apptest.System, c *apptest.Client, in api.CreateInstance) (e api.PlacementExplanation) {
	in.Name, in.InstanceType = "vm", cmp.Or(in.InstanceType, "m1.tiny")
	if in.VCPUs > 0 {
		in.InstanceType = ""
	}
	c.Do("POST", "/v1/projects/default/compute/placement/explain", in).Want(200).Decode(&e)
	return e
}

// Parallel creates never break a group's rule, and each is told why it waits.
// contract: U-14 N-12
// lesson 16
func TestParallelCreatesKeepTheGroupsRule(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		for n := range 6 {
			id := fmt.Sprintf("n%d", n)
			s.Node(id)
			declare(s, id, map[string]string{compute.LabelRack: fmt.Sprintf("r%d", n/2)})
		}
		s.Node("stray") // declares no rack: the level does not exist there
		g := makeGroup(s, api.CreatePlacementGroup{Name: "web", Kind: "spread", Level: "rack"})
		image := s.Image(project)
		ids := make([]string, 8)
		var wg sync.WaitGroup
		for n := range ids {
			wg.Go(func() {
				ids[n] = s.Create(project, api.CreateInstance{ImageID: image, PlacementGroupID: g.ID}).ID
			})
		}
		wg.Wait()
		racks := map[string]int{}
		waiting := 0
		for _, id := range ids {
			i := until(t, s, id, func(i *api.Instance) bool { return i.NodeID != "" || i.StateMessage != "" })
			if i.PlacementGroupID != g.ID || i.PlacementGroupName != "web" {
				t.Errorf("%s is in group %q %q", id, i.PlacementGroupID, i.PlacementGroupName)
			}
			if i.NodeID == "" {
				waiting++
				if !strings.Contains(i.StateMessage, "ruled out by the placement group, at the level of the rack") ||
					!strings.Contains(i.StateMessage, "1 node has no declared rack") {
					t.Errorf("%s waits without the reason: %s", id, i.StateMessage)
				}
				continue
			}
			var node api.Node
			s.Operator.Do("GET", api.NodePath(i.NodeID), nil).Want(200).Decode(&node)
			racks[node.Capabilities[compute.LabelRack]]++
		}
		if waiting != 5 || len(racks) != 3 || racks[""] > 0 {
			t.Errorf("%d wait, members by rack %v; want 5, and one in each of three racks", waiting, racks)
		}
		s.Operator.Do("PATCH", "/v1/projects/default/compute/placement-groups/"+g.ID, `{"strict":false}`).Want(200)
		for _, id := range ids { // best effort takes them all
			if i := placed(t, s, id); i.NodeID == "" {
				t.Errorf("%s: %s", id, i.StateMessage)
			}
		}
		var v api.List[api.GroupViolation]
		s.Operator.Do("GET", "/v1/projects/default/compute/placement-groups/"+g.ID+"/violations", nil).Want(200).Decode(&v)
		if len(v.Items) == 0 || v.Items[0].Domain == "" && len(v.Items[0].NodeIDs) == 0 {
			t.Errorf("violations: %+v", v.Items)
		}
	})
}

// Deleting a group leaves its members running and drops the reference.
// contract: U-14
func TestDeletedGroupLeavesItsMembers(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		g := makeGroup(s, api.CreatePlacementGroup{Name: "web", Kind: "spread"})
		i := n.Launch(project, api.CreateInstance{PlacementGroupID: g.ID})
		path := "/v1/projects/default/compute/placement-groups/" + g.ID
		var got api.PlacementGroup
		s.Operator.Do("GET", path, nil).Want(200).Decode(&got)
		if got.Members != 1 || !got.Strict || got.Level != "node" {
			t.Errorf("group: %+v", got)
		}
		s.Operator.Do("POST", "/v1/projects/default/compute/placement-groups", api.CreatePlacementGroup{Name: "web", Kind: "cluster"}).Refused(409, "ALREADY_EXISTS")
		s.Operator.Do("DELETE", path, nil).Want(204)
		s.Operator.Do("DELETE", path, nil).Refused(404, "NOT_FOUND")
		after := s.Operator.Instance(project, i.ID)
		if after.State != string(compute.StateRunning) || after.PlacementGroupID != "" || after.PlacementGroupName != "" || after.NodeID != "n1" {
			t.Errorf("after the group is gone: %+v", after)
		}
		again := makeGroup(s, api.CreatePlacementGroup{Name: "web", Kind: "spread"})
		if b := placed(t, s, s.Create(project, api.CreateInstance{PlacementGroupID: again.ID}).ID); b.NodeID != "n1" {
			t.Errorf("a new group sees the seats of the old one: %+v", b.StateMessage)
		}
		r := s.Operator.Do("POST", api.InstancePath(project, ""), api.CreateInstance{Name: "x", ImageID: i.ImageID, InstanceType: "m1.tiny", PlacementGroupID: g.ID}).Refused(400, "INVALID_INPUT")
		if !slices.Equal(r.Paths(), []string{"placementGroupId"}) {
			t.Errorf("fields %v", r.Paths())
		}
	})
}

// What an operator declares of a group that is wrong is named at its field.
// contract: E-02 U-14
func TestGroupRulesAreChecked(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	for body, field := range map[string]string{
		`{"name":"a","kind":"spread","partitions":2}`:    "partitions",
		`{"name":"a","kind":"partition","strict":false}`: "strict",
		`{"name":" a","kind":"spread"}`:                  "name",
		`{"name":"a","kind":"scatter"}`:                  "kind",
		`{"name":"a","kind":"spread","level":"row"}`:     "level",
		`{"name":"a","kind":"spread","levle":"rack"}`:    "levle",
	} {
		r := s.Operator.Do("POST", "/v1/projects/default/compute/placement-groups", []byte(body), apptest.Header("Content-Type", "application/json")).Refused(400, "INVALID_INPUT")
		if !slices.Equal(r.Paths(), []string{field}) {
			t.Errorf("%s: fields %v, want %s", body, r.Paths(), field)
		}
	}
}

// Countables are consumed; an absent one is not reported, which is not zero; free is
// clamped when an operator shrinks a total, and guests keep what they hold.
// contract: N-13 N-14 N-17
// lesson 13
func TestCountables(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		s.Node("plain")
		declare(s, "n1", map[string]string{gpu: "2"})
		one := api.CreateInstance{Countables: map[string]int64{gpu: 1}}
		a := n.Launch(project, one)
		if a.Countables[gpu] != 1 || a.NodeID != "n1" {
			t.Errorf("%+v", a)
		}
		n.Launch(project, one)
		var node api.Node
		s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&node)
		if node.CommittedCapabilities[gpu] != 2 || node.FreeCapabilities[gpu] != 0 || node.Capabilities[gpu] != "2" {
			t.Errorf("committed %v, free %v of %v", node.CommittedCapabilities, node.FreeCapabilities, node.Capabilities)
		}
		if body := string(s.Operator.Do("GET", api.NodePath("plain"), nil).Want(200).Body); strings.Contains(body, "ommittedCapabilities") || strings.Contains(body, "freeCapabilities") {
			t.Errorf("a node that holds nothing and reports none: %s", body)
		}
		e := explain(s, s.Operator, api.CreateInstance{ImageID: a.ImageID, Countables: one.Countables})
		codes := map[string]int{}
		for _, r := range e.Reasons {
			codes[r.Code] = r.Nodes
		}
		if e.Fits || !e.EverFits || codes["COUNTABLE"] != 1 || codes["NOT_REPORTED"] != 1 || e.Nearest == nil || e.Nearest.NodeID != "n1" {
			t.Errorf("explained as %+v", e)
		}
		declare(s, "n1", map[string]string{gpu: "1"})
		s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&node)
		if node.CommittedCapabilities[gpu] != 2 || node.FreeCapabilities[gpu] != 0 || !stands(node.Findings, "CountableOverAllocated") {
			t.Errorf("shrunk: committed %v, free %v, findings %+v", node.CommittedCapabilities, node.FreeCapabilities, node.Findings)
		}
		if i := s.Operator.Instance(project, a.ID); i.State != string(compute.StateRunning) {
			t.Errorf("a guest lost what it holds: %+v", i)
		}
		var c api.Capacity
		s.Operator.Do("GET", "/v1/compute/capacity", nil).Want(200).Decode(&c)
		if k := c.Total.Countables[gpu]; k.Nodes != 1 || k.Total != 1 || k.Committed != 2 || k.Free != 0 {
			t.Errorf("capacity: %+v", k)
		}
		s.Operator.Do("DELETE", api.InstancePath(project, a.ID), nil).Want(202)
		n.Drive(project, a.ID, compute.StateTerminated)
		s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&node)
		if node.CommittedCapabilities[gpu] != 1 {
			t.Errorf("after a terminate %v are committed", node.CommittedCapabilities)
		}
	})
}

func stands(list []api.Finding, code string) bool {
	return slices.ContainsFunc(list, func(f api.Finding) bool { return f.Code == code && f.NextStep != "" && f.Since != nil })
}

// Conditions on labels are kept with the instance and met; what is wrong with one is
// named at its place.
// contract: N-12 N-13 N-14
// lesson 17
func TestSelectors(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		s.Node("a")
		s.Node("b")
		declare(s, "b", map[string]string{"pool": "web", "capability.sec.tpm": "true"})
		i := placed(t, s, s.Create(project, api.CreateInstance{Selectors: []string{"pool in (web, batch)", "capability.sec.tpm=true,!old"}}).ID)
		if i.NodeID != "b" || !slices.Equal(i.Selectors, []string{"pool in (web, batch)", "capability.sec.tpm=true", "!old"}) {
			t.Errorf("on %q with %q", i.NodeID, i.Selectors)
		}
		never := placed(t, s, s.Create(project, api.CreateInstance{Selectors: []string{"pool=gone"}}).ID)
		if never.State != string(compute.StateError) || !strings.Contains(never.StateMessage, "2 nodes do not match pool=gone") ||
			!strings.Contains(never.StateMessage, "drop the selector pool=gone") {
			t.Errorf("%s: %s", never.State, never.StateMessage)
		}
		if strings.Contains(never.StateMessage, `"a"`) || strings.Contains(never.StateMessage, " b ") {
			t.Errorf("a tenant reads nodes' names: %s", never.StateMessage)
		}
		r := s.Operator.Do("POST", api.InstancePath(project, ""), api.CreateInstance{Name: "x", ImageID: i.ImageID, InstanceType: "m1.tiny",
			Selectors: []string{"pool=web", "pool==", "capability.sec.tpm>=1"}, Countables: map[string]int64{"pool": 1}}).Refused(400, "INVALID_INPUT")
		if want := []string{"countables.pool", "selectors[1]", "selectors[2]"}; !slices.Equal(slices.Sorted(slices.Values(r.Paths())), want) {
			t.Errorf("fields %v, want %v", r.Paths(), want)
		}
	})
}

// A tenant sees counts, an operator names.
// lesson 18
func TestExplainNamesNodesToOperatorsOnly(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		s.Node("secret-host")
		image := s.Image(project)
		huge := api.CreateInstance{ImageID: image, VCPUs: 65, MemoryBytes: 1 << 30}
		tenant := s.Member(project)
		in := huge
		in.Name = "vm"
		body := string(tenant.Do("POST", "/v1/projects/default/compute/placement/explain", in).Want(200).Body)
		if strings.Contains(body, "secret-host") || !strings.Contains(body, `"fits":false`) || !strings.Contains(body, "65 needed, at most 64 free") {
			t.Errorf("a tenant is told %s", body)
		}
		if e := explain(s, s.Operator, huge); e.EverFits || e.Nearest == nil || e.Nearest.NodeID != "secret-host" || e.Reasons[0].NodeIDs[0] != "secret-host" {
			t.Errorf("an operator is told %+v", e)
		}
		if e := explain(s, tenant, api.CreateInstance{ImageID: image}); !e.Fits || e.NodeID != "" || strings.Contains(e.Message, "secret") {
			t.Errorf("a fit, told to a tenant: %+v", e)
		}
		if e := explain(s, s.Operator, api.CreateInstance{ImageID: image}); !e.Fits || e.NodeID != "secret-host" {
			t.Errorf("a fit, told to an operator: %+v", e)
		}
		var list api.List[api.Instance]
		s.Operator.Do("GET", api.InstancePath(project, ""), nil).Want(200).Decode(&list)
		if len(list.Items) != 0 {
			t.Errorf("explaining made %d instances", len(list.Items))
		}
	})
}

// Parallel creates never run over a quota or a node's room.
// lesson 12 13 16
func TestParallelCreatesKeepQuotaAndRoom(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		h := apptest.Machine("n1")
		h.Capacity.TotalVCPUs = 3
		s.NodeToken("n1").Beat(h)
		image := s.Image(project)
		quota := "/v1/projects/default/quota"
		s.Operator.Do("PATCH", quota, `{"vcpus":5,"memoryBytes":1099511627776}`).Want(200)
		var mu sync.Mutex
		var ids []string
		refused := 0
		var wg sync.WaitGroup
		for range 9 {
			wg.Go(func() {
				a := s.Operator.Do("POST", api.InstancePath(project, ""), api.CreateInstance{Name: "vm", ImageID: image, InstanceType: "m1.tiny"})
				mu.Lock()
				defer mu.Unlock()
				if a.Status == 202 {
					var i api.Instance
					a.Decode(&i)
					ids = append(ids, i.ID)
					return
				}
				refused++
				r := a.Refused(409, "QUOTA_EXCEEDED")
				over := r.Details["exceeded"].([]any)[0].(map[string]any)
				if over["resource"] != "vcpus" || over["asked"] != 1.0 || over["used"] != 5.0 || over["limit"] != 5.0 {
					t.Errorf("details %+v", r.Details)
				}
			})
		}
		wg.Wait()
		if len(ids) != 5 || refused != 4 {
			t.Fatalf("%d made and %d refused, want 5 and 4", len(ids), refused)
		}
		onNode := 0
		for _, id := range ids {
			if until(t, s, id, func(i *api.Instance) bool { return i.NodeID != "" || i.StateMessage != "" }).NodeID != "" {
				onNode++
			}
		}
		var node api.Node
		s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&node)
		if onNode != 3 || node.CommittedVCPUs != 3 {
			t.Errorf("%d placed, %d vCPUs committed, want the node's 3", onNode, node.CommittedVCPUs)
		}
		var q api.Quota
		s.Member(project).Do("GET", quota, nil).Want(200).Decode(&q)
		if q.Used.Instances != 5 || q.Used.VCPUs != 5 || *q.Limits.VCPUs != 5 || q.Limits.Instances != nil || q.Used.DiskBytes != 5*(2<<30) {
			t.Errorf("quota: %+v used %+v", q.Limits, q.Used)
		}
		// A lower limit takes nothing away, and a raised one lets more in.
		s.Operator.Do("PATCH", quota, `{"vcpus":1}`).Want(200)
		s.Operator.Do("POST", api.InstancePath(project, ""), api.CreateInstance{Name: "vm", ImageID: image, InstanceType: "m1.tiny"}).Refused(409, "QUOTA_EXCEEDED")
		s.Operator.Do("PATCH", quota, `{"vcpus":null,"instances":5}`).Want(200)
		r := s.Operator.Do("POST", api.InstancePath(project, ""), api.CreateInstance{Name: "vm", ImageID: image, InstanceType: "m1.tiny"}).Refused(409, "QUOTA_EXCEEDED")
		if !strings.Contains(r.Message, "quota of instances is 5, 5 are used, 1 more were asked for") {
			t.Errorf("message %q", r.Message)
		}
		s.Operator.Do("PATCH", quota, `{"vcpus":-1}`).Refused(400, "INVALID_INPUT")
	})
}

// Two servers on one database place in parallel and break no rule: each sees what
// the other has committed before it decides.
// lesson 16
func TestTwoServersPlaceTogether(t *testing.T) {
	s := apptest.Start(t, apptest.Options{Kind: "postgres"})
	other := secondServer(t, s)
	const racks = 12
	for n := range 2 * racks {
		id := fmt.Sprintf("n%02d", n)
		s.Node(id)
		declare(s, id, map[string]string{compute.LabelRack: fmt.Sprintf("r%d", n/2)})
	}
	g := makeGroup(s, api.CreatePlacementGroup{Name: "web", Kind: "spread", Level: "rack"})
	image := s.Image(project)
	var wg sync.WaitGroup
	ids := make([]string, racks)
	for n := range ids {
		wg.Go(func() {
			c := s.Control
			if n%2 == 1 {
				c = other
			}
			i, err := c.CreateInstance(t.Context(), iam.System, project, api.CreateInstance{Name: "vm", ImageID: image, InstanceType: "m1.tiny", PlacementGroupID: g.ID}, "")
			if err != nil {
				t.Error(err)
			}
			ids[n] = i.ID
		})
	}
	wg.Wait()
	nodes := map[string]bool{}
	for _, id := range ids {
		i := placed(t, s, id)
		var node api.Node
		s.Operator.Do("GET", api.NodePath(i.NodeID), nil).Want(200).Decode(&node)
		rack := node.Capabilities[compute.LabelRack]
		if nodes[rack] {
			t.Errorf("two members in %s", rack)
		}
		nodes[rack] = true
	}
	var a api.Audit
	s.Operator.Do("GET", "/v1/compute/audit", nil).Want(200).Decode(&a)
	if a.Compared.Instances != racks || a.Compared.Allocations != racks || len(a.Findings) != 0 {
		t.Errorf("audit: %+v", a)
	}
}

// secondServer runs the loops of another server on the same database.
func secondServer(t *testing.T, s *apptest.System) *control.Control {
	t.Helper()
	o := s.Database()
	db := storetest.Open(t, o)
	c, err := control.New(control.Options{DB: db, Dir: t.TempDir(), Now: s.Clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	running := make(chan error, 1)
	go func() { running <- c.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-running; err != nil {
			t.Error(err)
		}
	})
	return c
}

// What the books say wrongly is found, both ways, and mended where it is certain.
// lesson 9 12
func TestAuditFindsAndMends(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		a := n.Stopped(project, api.CreateInstance{})
		n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{BootID: "b", Instances: []api.ObservedInstance{
			{ID: a.ID, Phase: string(compute.PhaseStopped)}, {ID: "i-000000000", Phase: string(compute.PhaseRunning)}}}).Want(200)
		if err := s.DB.Write(t.Context(), func(tx *store.Tx) error { return tx.Release(a.ID) }); err != nil {
			t.Fatal(err)
		}
		var found api.Audit
		s.Operator.Do("GET", "/v1/compute/audit", nil).Want(200).Decode(&found)
		if len(found.Findings) != 2 || found.Findings[0].Code != "InstanceNotAccounted" || found.Findings[0].Repair != "automatic" ||
			found.Findings[1].Code != "UnknownVM" || found.Findings[1].InstanceID != "i-000000000" || found.Findings[1].Repair != "none" {
			t.Errorf("found %+v", found)
		}
		var node api.Node
		s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&node)
		if node.CommittedVCPUs != 0 {
			t.Errorf("looking mended: %d", node.CommittedVCPUs)
		}
		s.Restart() // the audit runs at a start
		for end := time.Now().Add(quick); node.CommittedVCPUs != 1 || node.CommittedDiskBytes != 2<<30; {
			s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&node)
			if time.Now().After(end) {
				t.Fatalf("nothing was mended: %+v", node)
			}
		}
		s.Operator.Do("GET", "/v1/compute/audit", nil).Want(200).Decode(&found)
		if len(found.Findings) != 0 { // the new server has heard of no VM yet
			t.Errorf("found after mending %+v", found)
		}
	})
}

// Readiness says what is wrong where, since when, and what to do; it outlives a
// restart.
// contract: N-16 N-23
func TestReadiness(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		s.Node("fine")
		h := apptest.Machine("old")
		h.Capabilities = map[string]string{"capability.host.binaries_stale": "true", "capability.host.binaries_commit": "abc123",
			"capability.host.binaries_source": "os-image", "capability.host.dev_mode": "true"}
		began := s.Clock.Now()
		n := s.NodeToken("old")
		n.Beat(h)
		read := func() (out api.List[api.NodeReadiness]) {
			s.Operator.Do("GET", "/v1/compute/readiness", nil).Want(200).Decode(&out)
			return out
		}
		first := read()
		if len(first.Items) != 1 || first.Items[0].NodeID != "old" || !first.Items[0].Schedulable || len(first.Items[0].Findings) != 2 ||
			!stands(first.Items[0].Findings, "HostBinariesStale") || !stands(first.Items[0].Findings, "DevModeOn") {
			t.Fatalf("%+v", first.Items)
		}
		f := first.Items[0].Findings[0]
		if !strings.Contains(f.Message, "abc123") || !strings.Contains(f.NextStep, "operating system image") || f.Since.Before(began) {
			t.Errorf("%+v", f)
		}
		s.Clock.Advance(time.Minute)
		delete(h.Capabilities, "capability.host.dev_mode")
		n.Beat(h)
		s.Restart()
		s.Clock.Advance(4 * time.Minute)
		s.Clock.Advance(4 * time.Minute)
		again := read()
		if len(again.Items) != 2 || again.Items[0].NodeID != "fine" || again.Items[0].Schedulable || !stands(again.Items[0].Findings, "Unreachable") {
			t.Fatalf("%+v", again.Items)
		}
		if k := again.Items[1].Findings; len(k) != 2 || k[1].Code != "HostBinariesStale" || !k[1].Since.Equal(*f.Since) {
			t.Errorf("after a restart %+v, want it to stand since %v", k, f.Since)
		}
		var all api.List[api.NodeReadiness]
		s.Operator.Do("GET", "/v1/compute/readiness?all=true&limit=1", nil).Want(200).Decode(&all)
		if len(all.Items) != 1 || all.NextCursor == "" {
			t.Errorf("first page %+v", all)
		}
		s.Operator.Do("GET", "/v1/compute/readiness?all=true&limit=1&cursor="+all.NextCursor, nil).Want(200).Decode(&all)
		if len(all.Items) != 1 || all.Items[0].NodeID != "old" {
			t.Errorf("second page %+v", all)
		}
	})
}

// A declared label wins over detection; that is logged once per change, and shown.
// contract: N-15 N-12
func TestOverrides(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		var log bytes.Buffer
		c, err := control.New(control.Options{DB: storetest.Open(t, o), Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		beat := func(tpm string) {
			t.Helper()
			h := apptest.Machine("n1")
			now := time.Now()
			h.Capacity.SampledAt = &now
			h.Capabilities = map[string]string{"capability.sec.tpm": tpm, "topology.rack": "mine"}
			body, err := json.Marshal(h)
			if err == nil {
				_, err = c.Heartbeat(t.Context(), iam.Caller{Role: iam.Node, NodeID: "n1"}, "n1", body)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		logged := func(want int) {
			t.Helper()
			if n := strings.Count(log.String(), "a declared label overrides what was detected"); n != want {
				t.Errorf("logged %d times, want %d:\n%s", n, want, log.String())
			}
		}
		beat("true")
		logged(0)
		no := "false"
		n, err := c.UpdateNode(t.Context(), iam.System, "n1", api.PatchNode{DeclaredCapabilities: map[string]*string{"capability.sec.tpm": &no}})
		if err != nil {
			t.Fatal(err)
		}
		logged(1)
		if len(n.Overrides) != 1 || n.Overrides[0] != (api.LabelOverride{Key: "capability.sec.tpm", Declared: "false", Detected: "true"}) ||
			n.Capabilities["capability.sec.tpm"] != "false" || n.DetectedCapabilities["capability.sec.tpm"] != "true" || n.Capabilities["topology.rack"] != "" {
			t.Errorf("%+v", n)
		}
		for range 3 {
			beat("true")
		}
		logged(1)
		beat("false") // they agree
		beat("true")
		logged(2)
		for key, value := range map[string]string{"capability.sec.tpm": "yes", "capability.net.sriov_vfs": "-1", "topology.az": "z", "topology.row": "r", "hasGpu": "true"} {
			_, err := c.UpdateNode(t.Context(), iam.System, "n1", api.PatchNode{DeclaredCapabilities: map[string]*string{key: &value}})
			if f := fault.From(err); f.Kind != fault.Invalid || len(f.Fields) != 1 || f.Fields[0].Path != "declaredCapabilities."+key {
				t.Errorf("%s=%s: %v", key, value, err)
			}
		}
	})
}

// Metrics name a node by its id, and a node that is gone has none.
// contract: N-08
func TestNodeMetrics(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	name := "Rack 1"
	s.Operator.Do("PATCH", api.NodePath("n1"), api.PatchNode{DisplayName: &name}).Want(200)
	declare(s, "n1", map[string]string{gpu: "4"})
	i := n.Launch(project, api.CreateInstance{Countables: map[string]int64{gpu: 1}})
	text := string(s.Operator.Do("GET", "/metrics", nil).Want(200).Body)
	for _, want := range []string{`outcrop_node_committed_vcpus{node_name="n1"} 1`, `outcrop_node_committable_vcpus{node_name="n1"} 64`,
		`outcrop_node_committed_countable_units{label="` + gpu + `",node_name="n1"} 1`, `outcrop_node_reachable{node_name="n1"} 1`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in the metrics", want)
		}
	}
	s.Operator.Do("DELETE", api.InstancePath(project, i.ID), nil).Want(202)
	n.Drive(project, i.ID, compute.StateTerminated)
	s.Operator.Do("DELETE", api.NodePath("n1"), nil).Want(204)
	if text := string(s.Operator.Do("GET", "/metrics", nil).Want(200).Body); strings.Contains(text, `node_name="n1"`) {
		t.Error("a deleted node still has metrics")
	}
}

// Capacity is summed up by region, zone and role; free counts only what takes new
// instances.
// contract: N-03 N-11 N-23
func TestCapacity(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		store := apptest.Machine("store")
		store.Role, store.AvailabilityZone = "storage", "far"
		s.NodeToken("store").Beat(store)
		n.Launch(project, api.CreateInstance{})
		var c api.Capacity
		s.Operator.Do("GET", "/v1/compute/capacity", nil).Want(200).Decode(&c)
		if len(c.Groups) != 2 || c.Groups[0].Role != "storage" || c.Groups[0].VCPUs.Free != 0 || c.Groups[0].VCPUs.Committable != 64 || c.Groups[0].Schedulable != 0 {
			t.Errorf("groups %+v", c.Groups)
		}
		if c.Total.Nodes != 2 || c.Total.Schedulable != 1 || c.Total.VCPUs != (api.CapacityAmount{Committable: 128, Committed: 1, Free: 63}) {
			t.Errorf("total %+v", c.Total)
		}
		s.Clock.Advance(4 * time.Minute)
		s.Clock.Advance(4 * time.Minute)
		s.Operator.Do("GET", "/v1/compute/capacity", nil).Want(200).Decode(&c)
		if c.Total.Unreachable != 2 || c.Total.Schedulable != 0 || c.Total.VCPUs.Free != 0 || c.Total.VCPUs.Committed != 1 {
			t.Errorf("with nobody reporting: %+v", c.Total)
		}
	})
}

// A node that is unreachable, or not ready, takes nothing; one that is back does.
// contract: N-06 N-23 N-03
func TestUnreachableNodesTakeNothing(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		image := s.Image(project)
		s.Clock.Advance(4 * time.Minute)
		i := until(t, s, s.Create(project, api.CreateInstance{ImageID: image}).ID, func(i *api.Instance) bool { return i.StateMessage != "" || i.NodeID != "" })
		if i.NodeID != "" || !strings.Contains(i.StateMessage, "1 node is unreachable") {
			t.Errorf("on %q: %s", i.NodeID, i.StateMessage)
		}
		n.Beat(apptest.Machine("n1"))
		s.Clock.Advance(6 * time.Second) // liveness is swept every five
		if i = placed(t, s, s.Create(project, api.CreateInstance{ImageID: image}).ID); i.NodeID != "n1" {
			t.Errorf("%s: %s", i.State, i.StateMessage)
		}
	})
}
