package control_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
	"github.com/outcrop-cloud/outcrop/internal/node"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

func do(s *apptest.System, verb, id string, body any) *apptest.Answer {
	return s.Operator.Do("POST", api.InstancePath("default", id, verb), body)
}

func terminate(s *apptest.System, id string) {
	s.Operator.Do("DELETE", api.InstancePath("default", id), nil).Want(202)
}

func expire(t *testing.T, s *apptest.System) {
	t.Helper()
	if err := s.Control.Expire(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What an instance looks like before it has a node, on it, and after its end.
// contract: U-06 U-11 U-19 U-20
func TestInstanceShape(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		i := s.Create("default", api.CreateInstance{InstanceType: "m1.large", Tags: map[string]string{"a": "b"}})
		if i.State != "creating" || i.NodeID != "" || i.InstanceType != "m1.large" || i.VCPUs != 2 || i.MemoryBytes != 4*gib || i.LaunchedAt != nil ||
			!compute.ValidInstanceID(i.ID) || !strings.HasPrefix(i.RootVolumeID, "vol-") || !i.RootVolumeAutoProvisioned || i.Tags["a"] != "b" {
			t.Errorf("created as %+v", i)
		}
		n := s.Node("n1")
		got := n.Drive("default", i.ID, compute.StateRunning)
		if got.NodeID != "n1" || got.LaunchedAt == nil || got.RootVolumeID != i.RootVolumeID {
			t.Errorf("running as %+v", got)
		}
		d, _ := n.Desired(i.ID)
		if len(d.Volumes) != 1 || !d.Volumes[0].Root || d.Volumes[0].SizeBytes != 32*gib || d.Volumes[0].ID != i.RootVolumeID {
			t.Errorf("the node is told of volumes %+v", d.Volumes)
		}
		custom := s.Create("default", api.CreateInstance{ImageID: i.ImageID, VCPUs: 3, MemoryBytes: 96 << 20, RootVolumeBytes: 1 << 20})
		if custom.InstanceType != "" || custom.VCPUs != 3 || custom.MemoryBytes != 96<<20 {
			t.Errorf("a shape of its own: %+v", custom)
		}
		terminate(s, i.ID)
		if got := n.Drive("default", i.ID, compute.StateTerminated); got.UserDataHash != "" {
			t.Errorf("%+v", got)
		}
		if volumes := volumesOf(t, s, i.ID); len(volumes) != 0 {
			t.Errorf("volumes are left: %+v", volumes)
		}
		forget := func() {
			t.Helper()
			if err := s.Control.Forget(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.Clock.Advance(time.Hour - time.Minute)
		forget()
		if got := s.Operator.Instance("default", i.ID); got.State != "terminated" {
			t.Errorf("within the hour: %s", got.State)
		}
		s.Clock.Advance(2 * time.Minute)
		forget()
		s.Operator.Do("GET", api.InstancePath("default", i.ID), nil).Refused(404, "NOT_FOUND")
	})
}

func volumesOf(t *testing.T, s *apptest.System, id string) (out []compute.Volume) {
	t.Helper()
	if err := s.DB.Read(t.Context(), func(tx *store.Tx) error {
		d, err := tx.DetailsOf(id)
		if err == nil {
			out = d.Volumes
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// An id that was given once is never given again, whatever the case of its
// letters: ids become DNS names.
// contract: U-20
func TestIDsAreNeverReused(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		i := s.Create("default", api.CreateInstance{})
		terminate(s, i.ID)
		s.Clock.Advance(2 * time.Hour)
		if err := s.Control.Forget(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{i.ID, strings.ToLower(i.ID), strings.ToUpper(i.ID)} {
			err := s.DB.Write(t.Context(), func(tx *store.Tx) error {
				again := compute.Instance{ID: id, ProjectID: "default", CreatedAt: tx.Now}
				return tx.InsertInstance(&again, nil)
			})
			if err != store.ErrIDTaken {
				t.Errorf("%s again: %v", id, err)
			}
		}
	})
}

// An instance waits while there is no node, and while room may come; it fails
// with the reason when no node could ever take it, and may be started again.
// contract: N-03 N-23 U-19 // lesson 18
func TestPlacement(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		image := s.Image("default")
		first := s.Create("default", api.CreateInstance{ImageID: image})
		place(t, s)
		if got := s.Operator.Instance("default", first.ID); got.State != "creating" || got.NodeID != "" || !strings.Contains(got.StateMessage, "no node has reported yet") {
			t.Errorf("without a node: %s %q", got.State, got.StateMessage)
		}
		n := s.NodeToken("n1")
		h := apptest.Machine("n1")
		h.Capacity.TotalVCPUs, h.Capacity.ReservedVCPUs = 4, 1
		n.Beat(h)
		n.Drive("default", first.ID, compute.StateRunning)
		if got := get(s, "n1"); got.CommittedVCPUs != 1 || got.CommittedMemoryBytes != 256<<20 {
			t.Errorf("committed %d, %d", got.CommittedVCPUs, got.CommittedMemoryBytes)
		}

		huge := s.Create("default", api.CreateInstance{ImageID: image, VCPUs: 4, MemoryBytes: gib})
		place(t, s)
		got := s.Operator.Instance("default", huge.ID)
		if got.State != "error" || !strings.Contains(got.StateMessage, "no node can take the instance") || strings.Contains(got.StateMessage, "n1") {
			t.Errorf("too large for any: %s %q", got.State, got.StateMessage)
		}
		exact := s.Create("default", api.CreateInstance{ImageID: image, VCPUs: 2, MemoryBytes: gib})
		n.Drive("default", exact.ID, compute.StateRunning) // 3 committable, 1 in use
		next := s.Create("default", api.CreateInstance{ImageID: image})
		place(t, s)
		if got := s.Operator.Instance("default", next.ID); got.State != "creating" || got.NodeID != "" {
			t.Errorf("no room at this moment: %s on %q %q", got.State, got.NodeID, got.StateMessage)
		}
		terminate(s, first.ID)
		n.Drive("default", first.ID, compute.StateTerminated)
		n.Drive("default", next.ID, compute.StateRunning) // the room that came free

		late := s.Create("default", api.CreateInstance{ImageID: image})
		s.Clock.Advance(3 * time.Minute)
		n.Beat(h)
		place(t, s)
		if got := s.Operator.Instance("default", late.ID); got.State != "error" {
			t.Errorf("after its patience: %s %q", got.State, got.StateMessage)
		}
		// More of the machine: what failed can be started again.
		h.Capacity.TotalVCPUs = 16
		n.Beat(h)
		do(s, "start", huge.ID, nil).Want(202)
		n.Drive("default", huge.ID, compute.StateRunning)
	})
}

// Parallel creates never take the same room twice.
// contract: N-11 // lesson 12 // lesson 16
func TestPlacementNeverOvercommits(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		image := s.Image("default")
		n := s.NodeToken("n1")
		h := apptest.Machine("n1")
		h.Capacity.TotalVCPUs = 10
		n.Beat(h)
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() { s.Create("default", api.CreateInstance{ImageID: image}) })
		}
		wg.Wait()
		place(t, s)
		var list api.List[api.Instance]
		s.Operator.Do("GET", api.InstancePath("default", ""), nil).Want(200).Decode(&list)
		placed := 0
		for _, i := range list.Items {
			if i.NodeID != "" {
				placed++
			}
		}
		if got := get(s, "n1"); placed != 10 || got.CommittedVCPUs != 10 {
			t.Errorf("%d placed, %d committed of 10", placed, got.CommittedVCPUs)
		}
	})
}

// Each verb in each state over the wire: accepted and done alike are 202, what is
// refused says why and changes nothing.
// contract: U-02 U-19
func TestVerbsOverTheWire(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	i := n.Launch("default", api.CreateInstance{})
	ok := func(verb string, state compute.InstanceState) {
		t.Helper()
		var got api.Instance
		do(s, verb, i.ID, nil).Want(202).Decode(&got)
		if got.State != string(state) {
			t.Errorf("%s: %s, want %s", verb, got.State, state)
		}
	}
	refused := func(verb string) {
		t.Helper()
		before := s.Operator.Instance("default", i.ID).State
		do(s, verb, i.ID, nil).Refused(409, "INVALID_STATE")
		if now := s.Operator.Instance("default", i.ID).State; now != before {
			t.Errorf("a refused %s made it %s", verb, now)
		}
	}
	ok("start", compute.StateRunning)
	ok("reboot", compute.StateRebooting)
	ok("reboot", compute.StateRebooting)
	ok("start", compute.StateRebooting)
	n.Drive("default", i.ID, compute.StateRunning)
	ok("stop", compute.StateStopping)
	ok("stop", compute.StateStopping)
	refused("start")
	refused("reboot")
	n.Drive("default", i.ID, compute.StateStopped)
	ok("stop", compute.StateStopped)
	refused("reboot")
	ok("start", compute.StateStarting)
	ok("start", compute.StateStarting)
	refused("reboot")
	n.Drive("default", i.ID, compute.StateRunning)
	terminate(s, i.ID)
	terminate(s, i.ID)
	for _, verb := range []string{"start", "stop", "reboot"} {
		refused(verb)
	}
	n.Drive("default", i.ID, compute.StateTerminated)
	terminate(s, i.ID)
	refused("start")
}

// A stop's deadline reaches the node as what is left of it, and only comes
// nearer; force is now.
// contract: U-17 U-19 // lesson 20
func TestStopDeadline(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	i := n.Launch("default", api.CreateInstance{})
	n.Phase = func(api.DesiredInstance) (compute.Phase, string) { return compute.PhasePreparing, "" } // it takes its time
	stop := func(body string, most, least int64, force bool) {
		t.Helper()
		do(s, "stop", i.ID, body).Want(202)
		n.Sync(0)
		d, _ := n.Desired(i.ID)
		if d.Goal != "stopped" || d.StopWithinMS > most || d.StopWithinMS < least || d.Force != force {
			t.Errorf("%s: within %d ms, force %v; want %d to %d, %v", body, d.StopWithinMS, d.Force, least, most, force)
		}
	}
	stop(`{"deadlineSeconds":600}`, 600_000, 599_000, false)
	stop(`{"deadlineSeconds":3600}`, 600_000, 599_000, false)
	s.Clock.Advance(100 * time.Second)
	stop(`{}`, 90_000, 89_000, false)
	stop(`{"deadlineSeconds":30}`, 30_000, 29_000, false)
	stop(`{"deadlineSeconds":3600}`, 30_000, 29_000, false)
	stop(`{"force":true}`, 1, 1, true)
	stop(`{"deadlineSeconds":3600}`, 1, 1, true)
	if got := s.Operator.Instance("default", i.ID); !got.ForceStopping {
		t.Error("forceStopping is not shown")
	}
	do(s, "stop", i.ID, `{"deadlineSeconds":3601}`).Refused(400, "INVALID_INPUT")
	do(s, "stop", i.ID, `{"deadlineSeconds":-1}`).Refused(400, "INVALID_INPUT")
	n.Phase = nil
	if got := n.Drive("default", i.ID, compute.StateStopped); got.ForceStopping {
		t.Error("forceStopping stays")
	}
	j := n.Launch("default", api.CreateInstance{ImageID: i.ImageID})
	n.Phase = func(api.DesiredInstance) (compute.Phase, string) { return compute.PhasePreparing, "" }
	do(s, "stop", j.ID, `{"deadlineSeconds":0}`).Want(202)
	n.Sync(0)
	if d, _ := n.Desired(j.ID); !d.Force && d.StopWithinMS > 1 {
		t.Errorf("a deadline of 0: %+v", d)
	}
}

// Terminate wins over every other state, deadline and failure.
// contract: U-19 // lesson 19
func TestTerminateWins(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	image := s.Image("default")
	n := s.Node("n1")
	stuck := func(api.DesiredInstance) (compute.Phase, string) { return compute.PhaseFailed, "libvirt is stuck" }
	for name, bring := range map[string]func(id string){
		"creating":  func(id string) {},
		"running":   func(id string) { n.Drive("default", id, compute.StateRunning) },
		"stopping":  func(id string) { n.Drive("default", id, compute.StateRunning); do(s, "stop", id, nil).Want(202) },
		"rebooting": func(id string) { n.Drive("default", id, compute.StateRunning); do(s, "reboot", id, nil).Want(202) },
		"error": func(id string) {
			n.Phase = stuck
			n.Drive("default", id, compute.StateError)
		},
	} {
		n.Phase = nil
		id := s.Create("default", api.CreateInstance{ImageID: image, UserData: text(name)}).ID
		place(t, s)
		bring(id)
		terminate(s, id)
		n.Phase = stuck // and stays so for days
		for range 3 {
			n.Sync(0)
			n.Act()
			s.Clock.Advance(24 * time.Hour)
			n.Beat(apptest.Machine("n1"))
			expire(t, s)
		}
		n.Sync(0)
		if got := s.Operator.Instance("default", id); got.State != "terminating" {
			t.Errorf("%s: %s %s", name, got.State, got.StateMessage)
		}
		n.Phase = nil
		n.Drive("default", id, compute.StateTerminated)
	}
	if got := get(s, "n1"); got.CommittedVCPUs != 0 {
		t.Errorf("%d vCPUs are still committed", got.CommittedVCPUs)
	}
}

// A state in transition that takes too long ends in an error that says so, after
// which start or terminate goes on; many that wait for a silent node do not keep
// the others from it.
// contract: U-19 U-21
func TestDeadlinesExpire(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		image := s.Image("default")
		n := s.Node("n1")
		slow := func(api.DesiredInstance) (compute.Phase, string) { return compute.PhasePreparing, "" }
		i := s.Create("default", api.CreateInstance{ImageID: image})
		place(t, s)
		n.Phase = slow
		n.Settle()
		beat := func(d time.Duration) {
			for range d / time.Minute {
				s.Clock.Advance(time.Minute)
				n.Beat(apptest.Machine("n1"))
				n.Sync(0)
			}
			expire(t, s)
		}
		beat(compute.CreateDeadline - time.Minute)
		if got := s.Operator.Instance("default", i.ID); got.State != "creating" {
			t.Errorf("%s", got.State)
		}
		beat(2 * time.Minute)
		if got := s.Operator.Instance("default", i.ID); got.State != "error" || got.StateMessage == "" {
			t.Errorf("%s %q", got.State, got.StateMessage)
		}
		n.Phase = nil
		do(s, "start", i.ID, nil).Want(202)
		n.Drive("default", i.ID, compute.StateRunning)
	})
}

// What a node could not hear of it has not failed to do: when it is back, it has its
// time anew, also after a server's restart.
// contract: U-16 U-21
func TestSilentNodeHasTimeAnew(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		image := s.Image("default")
		stopped, started := n.Launch("default", api.CreateInstance{ImageID: image}).ID, n.Launch("default", api.CreateInstance{ImageID: image}).ID
		do(s, "stop", started, nil).Want(202)
		n.Drive("default", started, compute.StateStopped)
		do(s, "stop", stopped, `{"force":true}`).Want(202)
		do(s, "start", started, nil).Want(202)
		// At first it is heard and hears nothing, so that it knows of no start and no stop.
		for range 20 {
			s.Clock.Advance(time.Minute)
			n.Beat(apptest.Machine("n1"))
			n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{Revision: "1", Instances: []api.ObservedInstance{}}).Want(200)
			expire(t, s)
		}
		for _, away := range []time.Duration{150 * time.Second, time.Hour} { // suspect, unreachable
			s.Clock.Advance(away)
			expire(t, s)
			n.Beat(apptest.Machine("n1"))
			expire(t, s)
			n.Sync(0)
			expire(t, s)
			if away == time.Hour {
				s.Restart()
				n.Sync(0)
				expire(t, s)
			}
			for id, state := range map[string]string{stopped: "stopping", started: "starting"} {
				if got := s.Operator.Instance("default", id); got.State != state {
					t.Errorf("after %v: %s (%s), want %s", away, got.State, got.StateMessage, state)
				}
			}
		}
		n.Drive("default", stopped, compute.StateStopped)
		n.Drive("default", started, compute.StateRunning)
	})
}

// On a node that nobody hears of, stop and terminate are recorded, nothing is
// released, nothing fails, and nothing starts elsewhere; when the node is back it
// is done.
// contract: U-21 // lesson 3 // lesson 4
func TestUnreachableNodeKeepsIntent(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		image := s.Image("default")
		had := map[string]api.Instance{}
		create := func() string {
			i := n.Launch("default", api.CreateInstance{ImageID: image, UserData: text("kept"), DataVolumes: []api.DataVolumeInput{{SizeBytes: 1 << 20}}})
			had[i.ID] = i
			return i.ID
		}
		ended, stopped, started, running := create(), create(), create(), create()
		do(s, "stop", started, nil).Want(202)
		n.Drive("default", started, compute.StateStopped)
		s.Clock.Advance(4 * time.Minute) // n1 falls silent
		n2 := s.Node("n2")
		if got := get(s, "n1"); got.Liveness.Status != "unreachable" {
			t.Fatalf("%+v", got.Liveness)
		}
		terminate(s, ended)
		do(s, "stop", stopped, `{"deadlineSeconds":1}`).Want(202)
		do(s, "start", started, nil).Want(202)
		committed := get(s, "n1").CommittedVCPUs
		for range 3 {
			s.Clock.Advance(time.Hour)
			n2.Beat(apptest.Machine("n2"))
			expire(t, s)
			place(t, s)
			n2.Settle()
		}
		for id, state := range map[string]string{ended: "terminating", stopped: "stopping", started: "starting", running: "running"} {
			got := s.Operator.Instance("default", id)
			if got.State != state || got.NodeID != "n1" || got.UserDataHash == "" || got.PrimaryPrivateIP != had[id].PrimaryPrivateIP || got.Name != had[id].Name {
				t.Errorf("%s on %q, user-data %q, address %q; want %s on n1", got.State, got.NodeID, got.UserDataHash, got.PrimaryPrivateIP, state)
			}
			if v := volumesOf(t, s, id); len(v) != 2 {
				t.Errorf("%s: its volume is gone", state)
			}
			if _, told := n2.Desired(id); told {
				t.Errorf("%s: n2 is told to run it", state)
			}
		}
		if got := get(s, "n1").CommittedVCPUs; got != committed || got != 4 {
			t.Errorf("%d vCPUs are committed, %d before", got, committed)
		}
		s.Operator.Do("DELETE", api.NodePath("n1"), nil).Refused(409, "NODE_IN_USE")
		// Back again.
		n.Beat(apptest.Machine("n1"))
		n.Drive("default", ended, compute.StateTerminated)
		n.Drive("default", stopped, compute.StateStopped)
		n.Drive("default", started, compute.StateRunning)
		if got := get(s, "n1").CommittedVCPUs; got != 3 {
			t.Errorf("%d vCPUs are committed after the end of one", got)
		}
	})
}

// The console is what the node has at this moment.
// contract: U-19
func TestConsole(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	i := n.Launch("default", api.CreateInstance{})
	answers := make(chan *apptest.Answer)
	go func() {
		a, err := s.Operator.Try("GET", api.InstancePath("default", i.ID, "console"), nil)
		if err != nil {
			t.Error(err)
		}
		answers <- a
	}()
	for {
		out := n.Sync(5)
		if len(out.Consoles) == 0 {
			continue
		}
		if out.Consoles[0] != i.ID {
			t.Fatalf("asked for %v", out.Consoles)
		}
		break
	}
	const said = "login: \x00\xff"
	n.Do("PUT", api.NodePath("n1", "instances", i.ID, "console"), said).Want(204)
	var c api.Console
	(<-answers).Want(200).Decode(&c)
	if b, err := base64.StdEncoding.DecodeString(c.Output); err != nil || string(b) != said || c.InstanceID != i.ID {
		t.Errorf("%q, %v", b, err)
	}
	n.Do("PUT", api.NodePath("n1", "instances", i.ID, "console"), make([]byte, 256<<10)).Want(204)
	n.Do("PUT", api.NodePath("n1", "instances", i.ID, "console"), make([]byte, 256<<10+1)).Refused(413, "TOO_LARGE")
}

// The real node agent against the real server: launch, new user-data, next boot,
// end.
// contract: U-03 U-19
func TestRealAgent(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	dir := t.TempDir()
	token := s.Token(api.CreateToken{Role: "node", NodeID: "n1"})
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	vms, err := fake.New(fake.Options{Dir: filepath.Join(dir, "vms")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	zero := int64(0)
	go func() {
		ended <- node.Run(ctx, node.Config{ServerURL: s.URL, TokenFile: file, ID: "n1", DataDir: filepath.Join(dir, "node"), Hypervisor: vms, ReservedVCPUs: &zero, ReservedMemoryBytes: &zero})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	i := s.Create("default", api.CreateInstance{VCPUs: 1, MemoryBytes: 64 << 20, RootVolumeBytes: 1 << 20, UserData: text("first")})
	until := func(state string) {
		t.Helper()
		for begun := time.Now(); ; {
			got := s.Operator.Instance("default", i.ID)
			if got.State == state {
				return
			}
			if time.Since(begun) > 30*time.Second {
				t.Fatalf("%s (%s) after 30 s, want %s", got.State, got.StateMessage, state)
			}
			<-time.After(20 * time.Millisecond) // a real agent in real time
		}
	}
	until("running")
	do(s, "stop", i.ID, `{"force":true}`).Want(202)
	until("stopped")
	s.Operator.Do("PUT", api.InstancePath("default", i.ID, "user-data"), "second").Want(http.StatusOK)
	do(s, "start", i.ID, nil).Want(202)
	until("running")
	terminate(s, i.ID)
	until("terminated")
	if vm, err := vms.List(t.Context()); err != nil || len(vm) != 0 {
		t.Errorf("VMs are left: %+v, %v", vm, err)
	}
}
