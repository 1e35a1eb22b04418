package control_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// On a node that nobody hears of, intent is recorded only. Once an operator says that
// it is dead, what was to end has ended and gives back what it held, what ran is
// stopped behind a new epoch, and nothing starts elsewhere. Coming back, the node
// takes down and removes what is its no longer.
// contract: U-21 N-20 N-23 lesson 3 lesson 4
func TestDeclareOff(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := booted(s, "n1", "one")
		n.Sync(0)
		image := s.Image("default")
		create := func(in api.CreateInstance) string {
			in.ImageID = image
			return n.Launch("default", in).ID
		}
		ended := create(api.CreateInstance{Name: "web", DataVolumes: []api.DataVolumeInput{{SizeBytes: 1 << 30}}})
		stopped, started, running := create(api.CreateInstance{}), create(api.CreateInstance{}), create(api.CreateInstance{})
		wanted := create(api.CreateInstance{DesiredState: "running"})
		do(s, "stop", started, nil).Want(202)
		n.Drive("default", started, compute.StateStopped)
		declare := func(body any) *apptest.Answer {
			return s.Operator.Do("POST", api.NodePath("n1", "declare-off"), body)
		}
		if r := declare(nil).Refused(409, "INVALID_STATE"); !strings.Contains(r.Message, "outcrop node shutdown n1") {
			t.Error(r.Message)
		}
		s.Operator.Do("POST", api.NodePath("nope", "declare-off"), nil).Refused(404, "NOT_FOUND")

		s.Clock.Advance(4 * time.Minute) // n1 falls silent
		n2 := booted(s, "n2", "one")
		terminate(s, ended)
		do(s, "stop", stopped, nil).Want(202)
		do(s, "start", started, nil).Want(202)
		volumes := volumesOf(t, s, ended)
		address := s.Operator.Instance("default", ended).PrimaryPrivateIP
		used := get(s, "n1").CommittedVCPUs
		intact := func(when string) {
			t.Helper()
			for id, state := range map[string]string{ended: "terminating", stopped: "stopping", started: "starting", running: "running", wanted: "running"} {
				if got := s.Operator.Instance("default", id); got.State != state || got.PrimaryPrivateIP == "" {
					t.Errorf("%s: %s at %q, want %s", when, got.State, got.PrimaryPrivateIP, state)
				}
			}
			if got := get(s, "n1"); got.CommittedVCPUs != used || got.State != "ready" {
				t.Errorf("%s: %s, %d vCPUs", when, got.State, got.CommittedVCPUs)
			}
		}
		intact("before")
		s.Restart()
		if r := declare(nil).Refused(409, "INVALID_STATE"); !strings.Contains(r.Message, "try again in 3m") {
			t.Error(r.Message) // this server does not know yet
		}
		s.Clock.Advance(4 * time.Minute)
		beatOf(n2, "one")

		becomes := map[string]string{ended: "terminated", stopped: "stopped", started: "stopped", running: "stopped", wanted: "stopped"}
		check := func(out api.DeclaredOff) {
			t.Helper()
			if len(out.Instances) != len(becomes) {
				t.Errorf("%+v", out)
			}
			for _, i := range out.Instances {
				if i.Becomes != becomes[i.ID] || (i.Releases != nil) != (i.ID == ended) {
					t.Errorf("%+v", i)
				}
				if r := i.Releases; r != nil && (i.Name != "web" || !slices.Equal(r.PrivateIPs, []string{address}) || len(r.VolumeIDs) != 2 || len(r.Detached) != 0) {
					t.Errorf("%+v", r)
				}
			}
		}
		var out api.DeclaredOff
		declare(`{"dryRun":true}`).Want(200).Decode(&out)
		check(out)
		if !out.DryRun || out.DeclaredOffAt != nil {
			t.Errorf("%+v", out)
		}
		intact("after the preview")

		declare(`{"reason":"it burns"}`).Want(200).Decode(&out)
		check(out)
		if out.DryRun || out.DeclaredOffAt == nil || !s.Logged("it burns") {
			t.Errorf("%+v", out)
		}
		var again api.DeclaredOff
		declare(nil).Want(200).Decode(&again)
		if len(again.Instances) != 4 || !again.DeclaredOffAt.Equal(*out.DeclaredOffAt) {
			t.Errorf("the same again: %+v", again)
		}
		for id, state := range becomes {
			got := s.Operator.Instance("default", id)
			if got.State != state || got.NodeID != "n1" {
				t.Errorf("%s on %s, want %s", got.State, got.NodeID, state)
			}
			if state == "stopped" {
				if r := do(s, "start", id, nil).Refused(409, "NODE_NOT_UP"); !strings.Contains(r.Message, "off") {
					t.Error(r.Message)
				}
			}
		}
		if left := volumesOf(t, s, ended); len(left) != 0 {
			t.Errorf("of %v are left %v", volumes, left)
		}
		if got := get(s, "n1"); got.State != "off" || got.CommittedVCPUs != used-1 || got.DeclaredOffAt == nil {
			t.Errorf("%s, %d vCPUs", got.State, got.CommittedVCPUs)
		}
		if s.Create("default", api.CreateInstance{ImageID: image, Name: "web"}).Name != "web" {
			t.Error("its name is not free")
		}
		place(t, s)
		n2.Settle()
		for id := range becomes {
			if _, told := n2.Desired(id); told {
				t.Errorf("n2 is told to run %s", id)
			}
		}
		power(s, "reboot", "n1", nil).Refused(409, "NODE_NOT_UP")
		// What is asked to end later ends at once, too.
		terminate(s, running)
		judge(t, s)
		if got := s.Operator.Instance("default", running); got.State != "terminated" {
			t.Errorf("terminated later: %s", got.State)
		}

		// It was alive: its VMs run still, of older epochs.
		if b := beatOf(n, "one"); b.State != "ready" || b.DeclaredOffAt != nil || !s.Logged("declared off is back") {
			t.Errorf("back as %s", b.State)
		}
		found := func() bool {
			return slices.ContainsFunc(get(s, "n1").Findings, func(f api.Finding) bool { return f.Code == "WasDeclaredOff" && f.NextStep != "" })
		}
		if !found() {
			t.Errorf("%+v", get(s, "n1").Findings)
		}
		told := n.Sync(0)
		for id, state := range becomes {
			d, ok := n.Desired(id)
			if want := map[string]string{"terminated": "gone", "stopped": "stopped"}[state]; id != running && id != wanted && (!ok || d.Goal != want) {
				t.Errorf("%s: it is told %v %q", state, ok, d.Goal)
			}
		}
		if gone := slices.DeleteFunc(told.Volumes, func(v api.KeptVolume) bool { return !v.Gone }); len(gone) != 1 {
			t.Errorf("volumes to remove: %v", gone)
		}
		n.Drive("default", wanted, compute.StateRunning)
		do(s, "start", stopped, nil).Want(202)
		n.Drive("default", stopped, compute.StateRunning)
		n.Settle()
		if _, ok := n.Desired(ended); ok {
			t.Error("it is told to remove what it said is gone")
		}
		s.Clock.Advance(24 * time.Hour)
		if beatOf(n, "one"); found() {
			t.Error("the finding stands for ever")
		}
	})
}

// A node that was shut down may be declared off at once, and then forgotten.
// contract: U-21 N-19
func TestDeclareOffThenDelete(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := booted(s, "n1", "one")
		n.Sync(0)
		id := n.Launch("default", api.CreateInstance{}).ID
		power(s, "shutdown", "n1", `{"force":true}`).Want(202)
		s.Clock.Advance(2 * time.Minute)
		judge(t, s)
		if got := get(s, "n1"); got.State != "off" {
			t.Fatalf("%s", got.State)
		}
		s.Operator.Do("POST", api.NodePath("n1", "declare-off"), nil).Want(200)
		terminate(s, id)
		judge(t, s)
		s.Operator.Do("DELETE", api.NodePath("n1"), nil).Want(204)
		judge(t, s)
	})
}
