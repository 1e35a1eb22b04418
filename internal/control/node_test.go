package control_test

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

func get(s *apptest.System, node string) (n api.Node) {
	s.Operator.Do("GET", api.NodePath(node), nil).Want(200).Decode(&n)
	return n
}

// The first heartbeat registers the node, the same again changes nothing but
// when it was seen, and all three ways to read a node agree.
// contract: N-05 N-07 N-23
func TestHeartbeatIsIdempotent(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.NodeToken("n1")
		h := apptest.Machine("n1")
		h.Capabilities = map[string]string{"capability.cpu.model": "x", "mine": "y"}
		s.Operator.Do("GET", api.NodePath("n1"), nil).Refused(404, "NOT_FOUND")
		first := n.Beat(h)
		if first.State != "ready" || first.ID != "n1" || first.Region != "local" || first.AvailabilityZone != "local-a" || first.HeartbeatIntervalSeconds != 60 || first.Liveness.Status != "ok" {
			t.Errorf("registered as %+v", first)
		}
		for range 3 {
			s.Clock.Advance(time.Minute)
			again := n.Beat(h)
			if !again.LastSeenAt.After(first.LastSeenAt) {
				t.Errorf("seen at %s, then at %s", first.LastSeenAt, again.LastSeenAt)
			}
			again.LastSeenAt, again.Liveness.Since = first.LastSeenAt, first.Liveness.Since
			if !reflect.DeepEqual(again, first) {
				t.Errorf("the same payload gives\n%+v\nafter\n%+v", again, first)
			}
		}
		answer := n.Do("PUT", api.NodePath("n1", "heartbeat"), h).Want(200)
		one := s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200)
		list := s.Operator.Do("GET", api.NodePath(""), nil).Want(200)
		if a, b := strings.TrimSpace(string(answer.Body)), strings.TrimSpace(string(one.Body)); a != b || strings.TrimSpace(string(list.Body)) != `{"items":[`+b+`]}` {
			t.Errorf("three shapes:\n%s\n%s\n%s", a, b, list.Body)
		}
		h.Capacity.TotalVCPUs = 32
		delete(h.Capabilities, "mine")
		if now := n.Beat(h); now.Capacity.TotalVCPUs != 32 || now.Capabilities["mine"] != "" || !now.CreatedAt.Equal(first.CreatedAt) {
			t.Errorf("a change is not taken: %+v", now)
		}
		if got := get(s, "n1"); got.Capacity.TotalVCPUs != 32 {
			t.Errorf("a change is not kept: %+v", got)
		}
	})
}

// Maintenance is the operator's: neither a heartbeat nor a restart, of agent or
// server, ends it, and nothing is placed meanwhile.
// contract: N-05 N-23 // lesson 9
func TestMaintenanceSurvives(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		setMode(t, s, "n1", compute.NodeMaintenance)
		h := apptest.Machine("n1")
		h.BootID = "another boot"
		if got := n.Beat(h); got.State != "maintenance" || got.Liveness.Status != "ok" {
			t.Errorf("after a beat: %s, %s", got.State, got.Liveness.Status)
		}
		s.Restart()
		h.Capacity.TotalVCPUs++
		if got := n.Beat(h); got.State != "maintenance" {
			t.Errorf("after a restart: %s", got.State)
		}
		i := s.Create("default", api.CreateInstance{})
		place(t, s)
		if got := s.Operator.Instance("default", i.ID); got.NodeID != "" || got.State != "creating" {
			t.Errorf("placed on %q, %s", got.NodeID, got.State)
		}
		setMode(t, s, "n1", "")
		place(t, s)
		if got := s.Operator.Instance("default", i.ID); got.NodeID != "n1" {
			t.Errorf("%s %s", got.State, got.StateMessage)
		}
	})
}

func setMode(t *testing.T, s *apptest.System, node string, mode compute.NodeState) {
	t.Helper()
	if err := s.DB.Write(t.Context(), func(tx *store.Tx) error {
		n, err := tx.Node(node)
		if err != nil {
			return err
		}
		n.Maintenance.Mode = mode
		return tx.UpdateNode(&n)
	}); err != nil {
		t.Fatal(err)
	}
}

func place(t *testing.T, s *apptest.System) {
	t.Helper()
	if err := s.Control.Place(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Liveness goes by the platform's clock alone, and a server that was away judges
// nobody before a full window has passed.
// contract: N-06 N-23 // lesson 1 // lesson 2 // lesson 5 // lesson 6
func TestLiveness(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.NodeToken("n1")
		h := apptest.Machine("n1")
		wild := s.Clock.Now().Add(-1000 * time.Hour)
		h.Capacity.SampledAt = &wild
		if got := n.Beat(h); got.Liveness.Status != "ok" || !hasFinding(got, "ClockSkew") || *got.Liveness.ClockSkewMS > -1000*3600*1000 {
			t.Errorf("with a wrong clock: %+v %+v", got.Liveness, got.Findings)
		}
		seen := get(s, "n1").LastSeenAt
		at := func(after time.Duration, status string) {
			t.Helper()
			s.Clock.Advance(seen.Add(after).Sub(s.Clock.Now()))
			got := get(s, "n1")
			if got.Liveness.Status != status || !got.LastSeenAt.Equal(seen) || (status == "ok") != (got.Liveness.Reason == "") {
				t.Errorf("%v after the last beat: %+v, want %s", after, got.Liveness, status)
			}
		}
		at(89*time.Second, "ok")
		at(91*time.Second, "suspect")
		at(179*time.Second, "suspect")
		at(181*time.Second, "unreachable")
		s.Restart()
		restarted := s.Clock.Now()
		at(restarted.Sub(seen)+time.Second, "ok")
		at(restarted.Sub(seen)+91*time.Second, "suspect")
		at(restarted.Sub(seen)+181*time.Second, "unreachable")
		if got := n.Beat(h); got.Liveness.Status != "ok" || got.State != "ready" {
			t.Errorf("back again: %+v", got.Liveness)
		}
	})
}

func hasFinding(n api.Node, code string) bool {
	for _, f := range n.Findings {
		if f.Code == code && f.Message != "" {
			return true
		}
	}
	return false
}

// Since when a clock is off is kept from beat to beat, ends with the first that is right,
// and lies on both sides of the edge as it should.
// contract: N-04 N-23
func TestClockSkewStands(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.NodeToken("n1")
	beat := func(off time.Duration) (since time.Time, stands bool) {
		t.Helper()
		s.Clock.Advance(time.Minute)
		h := apptest.Machine("n1")
		sampled := s.Clock.Now().Add(off)
		h.Capacity.SampledAt = &sampled
		n.Beat(h)
		for _, f := range get(s, "n1").Findings {
			if f.Code == "ClockSkew" {
				if f.Since == nil || f.NextStep == "" {
					t.Fatalf("%v off: %+v", off, f)
				}
				return *f.Since, true
			}
		}
		return since, false
	}
	for _, off := range []time.Duration{0, 29 * time.Second, -29 * time.Second} {
		if _, stands := beat(off); stands {
			t.Errorf("%v off is found", off)
		}
	}
	first, _ := beat(31 * time.Second)
	again, stands := beat(-48 * time.Hour)
	if !stands || !again.Equal(first) || first.After(s.Clock.Now().Add(-time.Minute)) {
		t.Errorf("since %v, then %v", first, again)
	}
	beat(0)
	if later, stands := beat(time.Hour); !stands || !later.After(first) {
		t.Errorf("after it was right for a while: since %v", later)
	}
	s.Restart()
	if _, stands := beat(time.Hour); !stands {
		t.Error("a restart ends it")
	}
}

// The display name is the operator's and sticks; the id stays the id.
// contract: N-08
func TestDisplayName(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	patch := func(body string) (out api.Node) {
		t.Helper()
		s.Operator.Do("PATCH", api.NodePath("n1"), body).Want(200).Decode(&out)
		return out
	}
	if got := patch(`{"displayName":"stratum-01"}`); got.DisplayName != "stratum-01" || got.ID != "n1" {
		t.Errorf("%+v", got)
	}
	h := apptest.Machine("n1")
	h.Hostname = "renamed"
	if got := n.Beat(h); got.DisplayName != "stratum-01" || got.Hostname != "renamed" {
		t.Errorf("after a beat: %+v", got)
	}
	s.Restart()
	if got := n.Beat(h); got.DisplayName != "stratum-01" {
		t.Errorf("after a restart: %q", got.DisplayName)
	}
	if got := patch(`{}`); got.DisplayName != "stratum-01" {
		t.Errorf("a change of nothing: %q", got.DisplayName)
	}
	patch(`{"displayName":"` + strings.Repeat("é", 255) + `"}`)
	s.Operator.Do("PATCH", api.NodePath("n1"), `{"displayName":"`+strings.Repeat("é", 256)+`"}`).Refused(400, "INVALID_INPUT")
	if got := patch(`{"displayName":""}`); got.DisplayName != "" {
		t.Errorf("not cleared: %q", got.DisplayName)
	}
	s.Operator.Do("PATCH", api.NodePath("n2"), `{}`).Refused(404, "NOT_FOUND")
}

// Reservation, ratios and what follows from them.
// contract: N-09 N-11 N-04
func TestReservationAndCommittable(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.NodeToken("n1")
		h := apptest.Machine("n1")
		ratio := 2.3
		h.Capacity.TotalVCPUs, h.Capacity.ReservedVCPUs, h.Capacity.VCPUOvercommitRatio = 102, 2, &ratio
		h.Capacity.TotalMemoryBytes, h.Capacity.ReservedMemoryBytes = 1<<53+3, 2
		check := func(got api.Node, reserved, committable, memory int64, source string) {
			t.Helper()
			if got.ReservedVCPUs != reserved || got.CommittableVCPUs != committable || got.CommittableMemoryBytes != memory || got.ReservationSource != source {
				t.Errorf("reserved %d, committable %d and %d by %s; want %d, %d, %d by %s", got.ReservedVCPUs, got.CommittableVCPUs, got.CommittableMemoryBytes, got.ReservationSource, reserved, committable, memory, source)
			}
			if got.Capacity.ReservedVCPUs != h.Capacity.ReservedVCPUs || *got.Capacity.VCPUOvercommitRatio != 2.3 {
				t.Errorf("capacity is not as reported: %+v", got.Capacity)
			}
		}
		patch := func(body string) (out api.Node) {
			t.Helper()
			s.Operator.Do("PATCH", api.NodePath("n1"), body).Want(200).Decode(&out)
			return out
		}
		check(n.Beat(h), 2, 230, 1<<53+1, "reported")
		check(patch(`{"reservedVCPUs":52,"vcpuOvercommitRatio":1.1}`), 52, 55, 1<<53+1, "operator")
		h.Capacity.ReservedVCPUs = 4
		check(n.Beat(h), 52, 55, 1<<53+1, "operator") // nothing else changes it
		check(patch(`{"reservedVCPUs":null}`), 4, 107, 1<<53+1, "reported")
		check(patch(`{"vcpuOvercommitRatio":null}`), 4, 225, 1<<53+1, "reported")
		h.Capacity.ReservedVCPUs = 103 // above the total: a finding, and nothing fits
		got := n.Beat(h)
		check(got, 103, 0, 1<<53+1, "reported")
		if !hasFinding(got, "ReservationAboveTotal") {
			t.Errorf("findings %+v", got.Findings)
		}
	})
}

// On a single-node install the reservation is computed, in step with the node,
// until a second node comes.
// contract: N-09
func TestComputedReservation(t *testing.T) {
	s := apptest.Start(t, apptest.Options{SingleNode: true})
	n := s.Node("n1")
	if got := get(s, "n1"); got.ReservationSource != "computed" || got.ReservedVCPUs != 4 || got.ReservedMemoryBytes != 27487790695 { // 6 % of 64, 10 % of 256 GiB
		t.Errorf("%s %d %d", got.ReservationSource, got.ReservedVCPUs, got.ReservedMemoryBytes)
	}
	h := apptest.Machine("n1")
	h.Capacity.TotalVCPUs, h.Capacity.TotalMemoryBytes = 8, 16*gib
	if got := n.Beat(h); got.ReservedVCPUs != 2 || got.ReservedMemoryBytes != 6*gib {
		t.Errorf("a smaller node: %d %d", got.ReservedVCPUs, got.ReservedMemoryBytes)
	}
	s.Restart()
	if got := n.Beat(h); got.ReservationSource != "computed" {
		t.Errorf("after a restart: %s", got.ReservationSource)
	}
	s.Node("n2")
	if got := get(s, "n1"); got.ReservationSource != "reported" || got.ReservedVCPUs != 0 {
		t.Errorf("with a second node: %s %d", got.ReservationSource, got.ReservedVCPUs)
	}
	s.Operator.Do("DELETE", api.NodePath("n2"), nil).Want(http.StatusNoContent)
	if got := get(s, "n1"); got.ReservationSource != "computed" {
		t.Errorf("alone again: %s", got.ReservationSource)
	}
}

// What an operator chose at install is written when the node first registers,
// and holds.
// contract: N-09
func TestReservationChosenAtInstall(t *testing.T) {
	one, two := int64(1), 2*gib
	s := apptest.Start(t, apptest.Options{SingleNode: true, FirstNode: compute.NodeSpec{ReservedVCPUs: &one, ReservedMemoryBytes: &two}})
	n := s.Node("n1")
	for range 2 {
		if got := get(s, "n1"); got.ReservationSource != "operator" || got.ReservedVCPUs != 1 || got.ReservedMemoryBytes != two {
			t.Errorf("%s %d %d", got.ReservationSource, got.ReservedVCPUs, got.ReservedMemoryBytes)
		}
		n.Beat(apptest.Machine("n1"))
		s.Restart()
	}
	// It was chosen for that machine: another one's is its own, as in every fleet.
	h := apptest.Machine("n2")
	h.Capacity.ReservedVCPUs, h.Capacity.ReservedMemoryBytes = 3, gib
	if got := s.NodeToken("n2").Beat(h); got.ReservationSource != "reported" || got.ReservedVCPUs != 3 || got.ReservedMemoryBytes != gib {
		t.Errorf("a second node: %s %d %d", got.ReservationSource, got.ReservedVCPUs, got.ReservedMemoryBytes)
	}
	if got := get(s, "n1"); got.ReservationSource != "operator" || got.ReservedVCPUs != 1 {
		t.Errorf("with a second node: %s %d", got.ReservationSource, got.ReservedVCPUs)
	}
}

// All roles are seen, two run instances.
// contract: N-03
func TestRoles(t *testing.T) {
	for role, runs := range map[string]bool{"hybrid": true, "hypervisor": true, "control-plane": false, "storage": false} {
		t.Run(role, func(t *testing.T) {
			s := apptest.Start(t, apptest.Options{})
			h := apptest.Machine("n1")
			h.Role = role
			s.NodeToken("n1").Beat(h)
			if got := get(s, "n1"); got.Role != role || got.CommittableVCPUs != 64 {
				t.Errorf("%+v", got)
			}
			i := s.Create("default", api.CreateInstance{})
			place(t, s)
			if got := s.Operator.Instance("default", i.ID); (got.NodeID == "n1") != runs {
				t.Errorf("placed on %q: %s %s", got.NodeID, got.State, got.StateMessage)
			}
		})
	}
}

// A node reaches what is placed on it and nothing else.
// contract: N-24 N-01
func TestNodesAreKeptApart(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n1 := s.Node("n1")
		i := n1.Launch("default", api.CreateInstance{UserData: text("secret of n1")})
		n2 := s.Node("n2")
		hash := strings.TrimPrefix(i.UserDataHash, "sha256:")
		var image api.Image
		s.Operator.Do("GET", api.ImagePath("default", i.ImageID), nil).Want(200).Decode(&image)
		for _, path := range []string{api.NodePath("n2", "blobs", hash), api.NodePath("n2", "images", image.SHA256), api.NodePath("n2", "blobs", strings.Repeat("0", 64))} {
			n2.Do("GET", path, nil).Refused(404, "NOT_FOUND")
		}
		n2.Do("PUT", api.NodePath("n2", "instances", i.ID, "console"), "forged").Refused(404, "NOT_FOUND")
		for _, path := range []string{api.NodePath("n1", "blobs", hash), api.NodePath("n1", "images", image.SHA256)} {
			n2.Do("GET", path, nil).Refused(403, "FORBIDDEN")
			n1.Do("GET", path, nil).Want(200)
		}
		n1.Do("PUT", api.NodePath("n1", "instances", i.ID, "console"), "true").Want(204)
		// A report on another's instance says nothing, whatever it says.
		for _, phase := range []string{"gone", "crashed", "stopped", "failed"} {
			d, _ := n1.Desired(i.ID)
			n2.Do("POST", api.NodePath("n2", "sync"), api.SyncRequest{Instances: []api.ObservedInstance{{ID: i.ID, Epoch: d.Epoch, Phase: phase, Message: "forged"}}}).Want(200)
			if got := s.Operator.Instance("default", i.ID); got.State != "running" {
				t.Errorf("another node said %s: %s", phase, got.State)
			}
		}
		var out api.SyncResponse
		n2.Do("POST", api.NodePath("n2", "sync"), api.SyncRequest{Instances: []api.ObservedInstance{}}).Want(200).Decode(&out)
		if len(out.Instances) != 0 {
			t.Errorf("n2 is told of %+v", out.Instances)
		}
		// Once it is gone, its own node has no claim any more either.
		s.Operator.Do("DELETE", api.InstancePath("default", i.ID), nil).Want(202)
		n1.Drive("default", i.ID, compute.StateTerminated)
		n1.Do("GET", api.NodePath("n1", "blobs", hash), nil).Refused(404, "NOT_FOUND")
		n1.Do("GET", api.NodePath("n1", "images", image.SHA256), nil).Refused(404, "NOT_FOUND")
	})
}

// A node's words reach people, so they are bounded and whole, and none of them
// ends its sync.
func TestOddReports(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		i := n.Launch("default", api.CreateInstance{})
		d, _ := n.Desired(i.ID)
		for _, id := range []string{"", "i-", "../..", "i-000000000", strings.Repeat("x", 5000)} {
			n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{Instances: []api.ObservedInstance{{ID: id, Epoch: 1, Phase: "running"}}}).Want(200)
		}
		for _, epoch := range []int64{0, -1, 1 << 62} {
			n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{Instances: []api.ObservedInstance{{ID: i.ID, Epoch: epoch, Phase: "gone"}}}).Want(200)
		}
		n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{Unknown: true, Instances: []api.ObservedInstance{}}).Want(200)
		n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{Instances: []api.ObservedInstance{}}).Want(200) // not reported is unknown, never off
		if got := s.Operator.Instance("default", i.ID); got.State != "running" {
			t.Fatalf("%s %s", got.State, got.StateMessage)
		}
		long := "x" + strings.Repeat("é", 5000) // its thousandth byte is half a character
		n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{Instances: []api.ObservedInstance{{ID: i.ID, Epoch: d.Epoch, Phase: "failed", Message: long}}}).Want(200)
		if got := s.Operator.Instance("default", i.ID); got.State != "error" || len(got.StateMessage) > 1100 || strings.Contains(got.StateMessage, "\ufffd") {
			t.Errorf("%s with %d bytes", got.State, len(got.StateMessage))
		}
	})
}

// Tokens: valid up to the very end, void from then on; revoked at once; those of
// a node and of a project end with it.
func TestTokens(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		valid := func(c *apptest.Client, want bool) {
			t.Helper()
			if got := c.Do("GET", "/v1/whoami", nil).Status; (got == 200) != want {
				t.Errorf("answered %d, want valid: %v", got, want)
			}
		}
		var made api.NewToken
		s.Operator.Do("POST", "/v1/tokens", api.CreateToken{Role: "operator", ExpiresInSeconds: 100}).Want(201).Decode(&made)
		c := s.As(made.Secret)
		s.Clock.Advance(made.ExpiresAt.Sub(s.Clock.Now()) - time.Millisecond)
		valid(c, true)
		s.Clock.Advance(time.Millisecond)
		valid(c, false)
		s.Operator.Do("POST", "/v1/tokens", api.CreateToken{Role: "operator", ExpiresInSeconds: 100 * 365 * 24 * 3600}).Want(201)
		s.Operator.Do("POST", "/v1/tokens", api.CreateToken{Role: "operator", ExpiresInSeconds: 100*365*24*3600 + 1}).Refused(400, "INVALID_INPUT")
		s.Operator.Do("POST", "/v1/tokens", api.CreateToken{Role: "project", ProjectID: "none"}).Refused(404, "NOT_FOUND")

		n := s.Node("n1")
		member := s.Member("alpha")
		valid(n.Client, true)
		valid(member, true)
		s.Operator.Do("DELETE", api.NodePath("n1"), nil).Want(204)
		valid(n.Client, false)
		s.Operator.Do("DELETE", "/v1/projects/alpha", nil).Want(204)
		valid(member, false)
		s.Restart()
		valid(n.Client, false)
		valid(member, false)
		var list api.List[api.Token]
		s.Operator.Do("GET", "/v1/tokens?limit=1000", nil).Want(200).Decode(&list)
		revoked := 0
		for _, tok := range list.Items {
			if tok.RevokedAt != nil {
				revoked++
			}
		}
		if revoked != 2 {
			t.Errorf("%d tokens are shown as revoked", revoked)
		}
	})
}
