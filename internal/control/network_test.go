package control_test

import (
	"net/http"
	"net/netip"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// contract: U-12
func TestAddresses(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		shop, n := s.Member("shop"), s.Node("n1")
		created := s.Create("shop", api.CreateInstance{})
		if created.PrimaryPrivateIP != "" || created.PrivateIPAddress != "" || len(created.NetworkInterfaces) != 0 {
			t.Errorf("an unscheduled instance has an address: %+v", created.NetworkInterfaces)
		}
		a := n.Drive("shop", created.ID, compute.StateRunning)
		f := a.NetworkInterfaces[0]
		if a.PrimaryPrivateIP == "" || a.PrimaryPrivateIP != a.PrivateIPAddress || a.PrimaryPrivateIP != f.PrivateIP ||
			a.PrimaryInterfaceID != f.ID || !a.PrimaryInterfaceAutoProvisioned || f.SubnetID == "" || f.VPCID == "" {
			t.Errorf("the interface of %+v", a)
		}
		address := netip.MustParseAddr(f.PrivateIP)
		if !vpc.Usable(vpc.DefaultCIDR, address) {
			t.Errorf("address %s is not usable in %s", address, vpc.DefaultCIDR)
		}
		d, _ := n.Desired(a.ID)
		if len(d.Interfaces) != 1 || d.Interfaces[0].Address != f.PrivateIP || d.Interfaces[0].MAC != f.MAC {
			t.Errorf("the node was told %+v, the tenant %+v", d.Interfaces, f)
		}

		other := n.Launch("default", api.CreateInstance{})
		if o := other.NetworkInterfaces[0]; o.SubnetID == f.SubnetID || o.VPCID == f.VPCID || o.PrivateIP != f.PrivateIP {
			t.Errorf("another project's first address %+v beside %+v: want the same address in a network of its own", o, f)
		}
		b := n.Launch("shop", api.CreateInstance{SubnetIDs: []string{f.SubnetID}})
		if o := b.NetworkInterfaces[0]; o.SubnetID != f.SubnetID || o.PrivateIP == f.PrivateIP || o.MAC == f.MAC {
			t.Errorf("a second instance got %+v beside %+v", o, f)
		}

		var subnets api.List[api.Subnet]
		shop.Do("GET", "/v1/projects/shop/compute/subnets", nil).Want(http.StatusOK).Decode(&subnets)
		if len(subnets.Items) != 1 || subnets.Items[0].ID != f.SubnetID || !subnets.Items[0].Default {
			t.Errorf("subnets %+v", subnets)
		}
		refused := shop.Do("POST", api.InstancePath("shop", ""), api.CreateInstance{Name: "x", ImageID: a.ImageID, InstanceType: "m1.tiny",
			SubnetIDs: []string{other.NetworkInterfaces[0].SubnetID}}).Refused(http.StatusBadRequest, "INVALID_INPUT")
		if len(refused.Fields) != 1 || refused.Fields[0].Path != "subnetIds[0]" {
			t.Errorf("another project's subnet: %+v", refused)
		}

		// It keeps the address over a stop and a start.
		shop.Do("POST", api.InstancePath("shop", a.ID, "stop"), nil).Want(http.StatusAccepted)
		n.Drive("shop", a.ID, compute.StateStopped)
		shop.Do("POST", api.InstancePath("shop", a.ID, "start"), nil).Want(http.StatusAccepted)
		if again := n.Drive("shop", a.ID, compute.StateRunning); again.PrimaryPrivateIP != a.PrimaryPrivateIP {
			t.Errorf("address %s before the restart, %s after", a.PrimaryPrivateIP, again.PrimaryPrivateIP)
		}
	})
}

// A freed address rests for a lease time.
//
// lesson 29
func TestFreedAddressRests(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	a := n.Launch("default", api.CreateInstance{})
	s.Operator.Do("DELETE", api.InstancePath("default", a.ID), nil).Want(http.StatusAccepted)
	n.Drive("default", a.ID, compute.StateTerminated)
	if b := n.Launch("default", api.CreateInstance{}); b.PrimaryPrivateIP == a.PrimaryPrivateIP {
		t.Errorf("%s was given out again at once", b.PrimaryPrivateIP)
	}
}

// No two instances get one address, however many are made at once.
//
// lesson 30
func TestAddressesAreUniqueInAStorm(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		image := s.Image("default")
		var wg sync.WaitGroup
		ids := make([]string, 40)
		for i := range ids {
			wg.Go(func() { ids[i] = s.Create("default", api.CreateInstance{ImageID: image}).ID })
		}
		wg.Wait()
		seen := map[string]string{}
		for _, id := range ids {
			i := n.Drive("default", id, compute.StateRunning)
			if other := seen[i.PrimaryPrivateIP]; other != "" {
				t.Errorf("%s and %s both have %s", other, id, i.PrimaryPrivateIP)
			}
			seen[i.PrimaryPrivateIP] = id
		}
	})
}

// contract: U-12
func TestFloatingIPIsRefusedByName(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	r := s.Operator.Do("POST", api.InstancePath("default", ""), api.CreateInstance{Name: "x", ImageID: s.Image("default"), InstanceType: "m1.tiny",
		FloatingIPPool: "public", InstanceProfile: "p"}).Refused(http.StatusBadRequest, "INVALID_INPUT")
	if len(r.Fields) != 2 || r.Fields[0].Path != "floatingIPPool" || r.Fields[1].Path != "instanceProfile" {
		t.Errorf("refusal %+v", r)
	}
}

// contract: U-18
func TestMetadataOptions(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	i := n.Launch("default", api.CreateInstance{})
	if want := (api.MetadataOptions{HTTPEndpoint: "enabled", HTTPTokens: "required", HTTPPutResponseHopLimit: 1, InstanceMetadataTags: "disabled"}); i.MetadataOptions != want {
		t.Errorf("defaults %+v, want %+v", i.MetadataOptions, want)
	}
	set := n.Launch("default", api.CreateInstance{MetadataOptions: &api.MetadataOptions{HTTPTokens: "optional", HTTPPutResponseHopLimit: 2}})
	if want := (api.MetadataOptions{HTTPEndpoint: "enabled", HTTPTokens: "optional", HTTPPutResponseHopLimit: 2, InstanceMetadataTags: "disabled"}); set.MetadataOptions != want {
		t.Errorf("at launch %+v, want %+v", set.MetadataOptions, want)
	}
	path := api.InstancePath("default", i.ID, "modify-metadata-options")
	s.Operator.Do("POST", path, api.MetadataOptions{HTTPEndpoint: "disabled", InstanceMetadataTags: "enabled"}).Want(http.StatusAccepted).Decode(&i)
	n.Sync(0)
	d, _ := n.Desired(i.ID)
	want := api.MetadataOptions{HTTPEndpoint: "disabled", HTTPTokens: "required", HTTPPutResponseHopLimit: 1, InstanceMetadataTags: "enabled"}
	if i.MetadataOptions != want || d.Metadata != want || i.State != "running" {
		t.Errorf("after the action: tenant %+v, node %+v, want %+v on a running instance", i.MetadataOptions, d.Metadata, want)
	}
	for _, bad := range []string{`{}`, `{"httpEndpoint":"off"}`, `{"httpTokens":"never"}`, `{"httpPutResponseHopLimit":65}`, `{"httpPutResponseHopLimit":0}`, `{"instanceMetadataTags":""}`} {
		s.Operator.Do("POST", path, bad).Refused(http.StatusBadRequest, "INVALID_INPUT")
	}
	for _, good := range []string{`{"httpPutResponseHopLimit":1}`, `{"httpPutResponseHopLimit":64}`} {
		s.Operator.Do("POST", path, good).Want(http.StatusAccepted)
	}
}

// contract: U-16
func TestDesiredState(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		i := n.Launch("default", api.CreateInstance{DesiredState: "running"})
		path := api.InstancePath("default", i.ID)
		var out api.Instance
		s.Operator.Do("POST", path+"/stop", nil).Want(http.StatusAccepted).Decode(&out)
		if out.DesiredState != "running" || len(out.Warnings) != 1 {
			t.Errorf("a stop by hand changed the wish to %q, warnings %q", out.DesiredState, out.Warnings)
		}
		n.Drive("default", i.ID, compute.StateStopped, compute.StateStarting)
		n.Drive("default", i.ID, compute.StateRunning)

		s.Operator.Do("PATCH", path, `{"desiredState":"stopped"}`).Want(http.StatusOK).Decode(&out)
		if out.State != "running" {
			t.Errorf("setting a wish changed the state to %s at once", out.State)
		}
		n.Drive("default", i.ID, compute.StateStopped)
		out = api.Instance{}
		s.Operator.Do("PATCH", path, `{"desiredState":null}`).Want(http.StatusOK).Decode(&out)
		if out.DesiredState != "" {
			t.Errorf("null left the wish %q", out.DesiredState)
		}
		for _, bad := range []string{"starting", "stopping", "terminated", ""} {
			s.Operator.Do("PATCH", path, map[string]string{"desiredState": bad}).Refused(http.StatusBadRequest, "INVALID_INPUT")
		}
	})
}

// One that is to be stopped and failed on the way becomes so after a while: its VM is
// down.
// contract: U-16
func TestDesiredStoppedEndsAnError(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		n.Phase = func(api.DesiredInstance) (compute.Phase, string) { return compute.PhaseFailed, "no disk" }
		i := s.Create("default", api.CreateInstance{})
		n.Drive("default", i.ID, compute.StateError)
		n.Phase = nil
		s.Operator.Do("PATCH", api.InstancePath("default", i.ID), `{"desiredState":"stopped"}`).Want(http.StatusOK)
		if got := s.Operator.Instance("default", i.ID); got.State != "error" {
			t.Errorf("%s at once", got.State)
		}
		s.Clock.Advance(2 * time.Minute)
		other := n.Launch("default", api.CreateInstance{}) // a wish for it lets the platform look at all
		s.Operator.Do("PATCH", api.InstancePath("default", other.ID), `{"desiredState":"running"}`).Want(http.StatusOK)
		n.Drive("default", i.ID, compute.StateStopped)
	})
}

// contract: U-16
func TestStartOnNodeBoot(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	with := n.Launch("default", api.CreateInstance{StartOnNodeBoot: true})
	without := n.Launch("default", api.CreateInstance{})
	sync := func(boot string, phase compute.Phase) {
		t.Helper()
		in := api.SyncRequest{BootID: boot}
		for _, i := range []api.Instance{with, without} {
			d, _ := n.Desired(i.ID)
			in.Instances = append(in.Instances, api.ObservedInstance{ID: i.ID, Epoch: d.Epoch, Phase: string(phase)})
		}
		n.Do("POST", api.NodePath("n1", "sync"), in).Want(http.StatusOK)
	}
	sync("boot-1", compute.PhaseRunning)
	sync("boot-2", compute.PhaseStopped) // the machine booted, and libvirt has both shut off
	if i := s.Operator.Instance("default", with.ID); i.State != "starting" {
		t.Errorf("with the flag: %s, want starting", i.State)
	}
	if i := s.Operator.Instance("default", without.ID); i.State != "stopped" {
		t.Errorf("without the flag: %s, want stopped", i.State)
	}
}

// Its boot may be heard of before what has become of its VMs, and before what they did
// in the boot before.
// contract: U-16 // lesson 9
func TestStartOnNodeBootIsNotLost(t *testing.T) {
	for name, report := range map[string]func(in *api.SyncRequest, id string){
		"nothing said yet": func(in *api.SyncRequest, id string) {
			in.Instances = []api.ObservedInstance{{ID: id, Phase: string(compute.PhaseUnknown)}}
		},
		"the hypervisor is not up yet": func(in *api.SyncRequest, _ string) { in.Unknown = true },
	} {
		for _, state := range []string{"running", "starting"} {
			t.Run(name+", "+state, func(t *testing.T) {
				s := apptest.Start(t, apptest.Options{})
				n := s.Node("n1")
				sync := func(in api.SyncRequest) {
					t.Helper()
					n.Do("POST", api.NodePath("n1", "sync"), in).Want(http.StatusOK)
				}
				i := n.Launch("default", api.CreateInstance{StartOnNodeBoot: true})
				d, _ := n.Desired(i.ID)
				if state == "starting" { // it ran again, and the node had no chance to say so
					do(s, "stop", i.ID, nil).Want(202)
					n.Drive("default", i.ID, compute.StateStopped)
					do(s, "start", i.ID, nil).Want(202)
					n.Sync(0)
					d, _ = n.Desired(i.ID)
				}
				before := api.ObservedInstance{ID: i.ID, Epoch: d.Epoch, Phase: string(compute.PhasePreparing)}
				if state == "running" {
					before.Phase = state
				}
				sync(api.SyncRequest{BootID: "boot-1", Instances: []api.ObservedInstance{before}})
				in := api.SyncRequest{BootID: "boot-2"}
				report(&in, i.ID)
				sync(in)
				in = api.SyncRequest{BootID: "boot-2", Instances: []api.ObservedInstance{{ID: i.ID, Epoch: d.Epoch, Phase: string(compute.PhaseStopped)}}}
				sync(in)
				sync(in)
				if got := s.Operator.Instance("default", i.ID); got.State != "starting" {
					t.Errorf("%s (%s), want starting", got.State, got.StateMessage)
				}
				n.Drive("default", i.ID, compute.StateRunning)
			})
		}
	}
}

// An image that is being made of an instance is not spoilt by its node's boot.
// contract: U-16 U-19
func TestNodeBootSparesImage(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	i := n.Stopped("default", api.CreateInstance{StartOnNodeBoot: true})
	d, _ := n.Desired(i.ID)
	sync := func(boot string) (out api.SyncResponse) {
		t.Helper()
		n.Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{BootID: boot, Instances: []api.ObservedInstance{{ID: i.ID, Epoch: d.Epoch, Phase: "stopped"}}}).Want(200).Decode(&out)
		return out
	}
	sync("boot-1")
	do(s, "create-image", i.ID, api.CreateImage{Name: "copy"}).Want(202)
	out := sync("boot-2")
	if len(out.Uploads) != 1 || out.Instances[0].Epoch != out.Uploads[0].Epoch {
		t.Errorf("uploads %+v, instance %+v", out.Uploads, out.Instances)
	}
	if got := s.Operator.Instance("default", i.ID); got.State != "stopped" {
		t.Errorf("%s", got.State)
	}
}

// contract: U-17
func TestForceStopping(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	i := n.Launch("default", api.CreateInstance{})
	path := api.InstancePath("default", i.ID, "stop")
	var out api.Instance
	s.Operator.Do("POST", path, nil).Want(http.StatusAccepted).Decode(&out)
	if out.ForceStopping {
		t.Error("a graceful stop counts as forced")
	}
	s.Operator.Do("POST", path, `{"force":true}`).Want(http.StatusAccepted).Decode(&out)
	n.Sync(0)
	if d, _ := n.Desired(i.ID); !out.ForceStopping || !d.Force {
		t.Errorf("forced: tenant sees %v, node is told %v", out.ForceStopping, d.Force)
	}
	if out = n.Drive("default", i.ID, compute.StateStopped); out.ForceStopping {
		t.Error("the flag outlives the stopping")
	}
}

// lesson 26
func TestRerun(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	i := n.Stopped("default", api.CreateInstance{})
	start := func(body any) (guestID string, warnings int) {
		t.Helper()
		var out api.Instance
		s.Operator.Do("POST", api.InstancePath("default", i.ID, "start"), body).Want(http.StatusAccepted).Decode(&out)
		n.Drive("default", i.ID, compute.StateRunning)
		d, _ := n.Desired(i.ID)
		s.Operator.Do("POST", api.InstancePath("default", i.ID, "stop"), nil).Want(http.StatusAccepted)
		n.Drive("default", i.ID, compute.StateStopped)
		return d.CloudInitID, len(out.Warnings)
	}
	if id, w := start(nil); id != i.ID || w != 0 {
		t.Errorf("a start told cloud-init %s with %d warnings, want the instance's own id and none", id, w)
	}
	again, w := start(api.StartInstance{Rerun: true})
	if again == i.ID || w != 1 {
		t.Errorf("a rerun told cloud-init %s with %d warnings", again, w)
	}
	if id, _ := start(nil); id != again {
		t.Errorf("the start after told %s, want %s: nothing runs again by itself", id, again)
	}
}

// contract: U-07 U-08 U-09 U-10
func TestAgentReports(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		i := n.Launch("default", api.CreateInstance{AgentEnabled: ptr(true), UserData: ptr("IyEvYmluL3NoCg==")})
		report := func(r api.AgentReport) {
			t.Helper()
			r.InstanceID = i.ID
			n.Do("POST", api.NodePath("n1", "agent-reports"), api.AgentReports{Reports: []api.AgentReport{r}}).Want(http.StatusNoContent)
		}
		see := func(health, reason, status string) api.Instance {
			t.Helper()
			got := s.Operator.Instance("default", i.ID)
			code := ""
			if got.HealthReason != nil {
				code = got.HealthReason.Code
			}
			var alone api.AgentStatus
			s.Operator.Do("GET", api.InstancePath("default", i.ID, "agent-status"), nil).Want(http.StatusOK).Decode(&alone)
			if got.Health != health || code != reason || got.AgentStatus.Health != status || !reflect.DeepEqual(*got.AgentStatus, alone) {
				t.Errorf("health %q (%q), agent %+v and %+v; want %q (%q), %q", got.Health, code, *got.AgentStatus, alone, health, reason, status)
			}
			return got
		}
		see("unknown", "agent_pending", "unknown")
		if got := see("unknown", "agent_pending", "unknown"); got.HealthReason.Deadline == nil || !got.HealthReason.Deadline.Equal(got.LaunchedAt.Add(15*time.Minute)) {
			t.Errorf("the deadline is %v, launched at %v", got.HealthReason.Deadline, got.LaunchedAt)
		}
		report(api.AgentReport{Version: "1.2", ReconcileResult: "ok", Boot: &api.BootReport{Status: "done", UserDataHash: i.UserDataHash}})
		got := see("healthy", "", "healthy")
		if got.AgentStatus.Version != "1.2" || got.AgentStatus.LastReconcileResult != "ok" || got.Boot == nil || got.Boot.Status != "done" || got.Boot.UserDataHash != got.UserDataHash {
			t.Errorf("agent %+v, boot %+v", got.AgentStatus, got.Boot)
		}
		s.Restart()
		see("healthy", "", "healthy")
		s.Clock.Advance(4 * time.Minute)
		see("unhealthy", "agent_gone_quiet", "unhealthy")

		// Only GET by id carries the two.
		var list api.List[api.Instance]
		s.Operator.Do("GET", api.InstancePath("default", ""), nil).Want(http.StatusOK).Decode(&list)
		if l := list.Items[0]; l.AgentStatus != nil || l.HealthReason != nil || l.Health != "unhealthy" {
			t.Errorf("in a list: %+v", l)
		}

		s.Operator.Do("POST", api.InstancePath("default", i.ID, "disable-agent"), nil).Want(http.StatusAccepted)
		see("agent_disabled", "agent_disabled", "agent_disabled")
		report(api.AgentReport{Version: "1.3"})
		if got := see("agent_disabled", "agent_disabled", "agent_disabled"); got.AgentStatus.Version != "1.2" {
			t.Error("an agent that is not wanted was heard")
		}
	})
}

// contract: U-09 U-10
func TestEnrollment(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n, stranger := s.Node("n1"), s.Node("n2")
	i := n.Launch("default", api.CreateInstance{})
	if i.AgentEnabled || i.AgentActivation != "install-command" {
		t.Errorf("an image without the agent: enabled %v, activation %q", i.AgentEnabled, i.AgentActivation)
	}
	enable := func(body any) (out api.EnabledAgent) {
		t.Helper()
		s.Operator.Do("POST", api.InstancePath("default", i.ID, "enable-agent"), body).Want(http.StatusAccepted).Decode(&out)
		return out
	}
	out := enable(nil)
	if !out.AgentEnrollmentPending || out.Health != "unknown" || out.InstallCommand == "" {
		t.Errorf("enabled: %+v", out)
	}
	code := out.InstallCommand[len(out.InstallCommand)-26:]
	s.Secret(code)
	report := func(from *apptest.Node, code string) {
		t.Helper()
		from.Do("POST", api.NodePath(from.ID, "agent-reports"), api.AgentReports{Reports: []api.AgentReport{{InstanceID: i.ID, InstallCode: code}}}).Want(http.StatusNoContent)
	}
	pending := func(want bool) {
		t.Helper()
		got := s.Operator.Instance("default", i.ID)
		if got.AgentEnrollmentPending != want || (got.AgentEnrolledAt == nil) != want || (got.AgentStatus.Health == "enrollment_pending") != want {
			t.Errorf("pending %v, enrolled at %v, agent %q; want pending %v", got.AgentEnrollmentPending, got.AgentEnrolledAt, got.AgentStatus.Health, want)
		}
	}
	report(n, "")
	report(n, "wrong")
	report(stranger, code) // another node cannot enroll it
	pending(true)
	report(n, code)
	pending(false)
	if again := enable(nil); again.InstallCommand == out.InstallCommand {
		t.Error("a second enrollment got the same one-time command")
	}
	report(n, code) // the old code is of no use any more
	if got := s.Operator.Instance("default", i.ID); !got.AgentEnrollmentPending {
		t.Error("a used code enrolled again")
	}
}

// contract: U-09
func TestAutomaticActivation(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	var img api.Image
	s.Operator.Do("POST", api.ImagePath("default", "")+"?name=shipped&tag=stratum.dev/agent-activation%3Dautomatic", apptest.DiskImage()).Want(http.StatusCreated).Decode(&img)
	i := n.Launch("default", api.CreateInstance{ImageID: img.ID})
	if !i.AgentEnabled || i.AgentActivation != "automatic" || i.AgentEnrolledAt != nil {
		t.Errorf("an image that ships the agent: %+v", i)
	}
	s.Operator.Do("POST", api.InstancePath("default", i.ID, "disable-agent"), nil).Want(http.StatusAccepted)
	var out api.EnabledAgent
	s.Operator.Do("POST", api.InstancePath("default", i.ID, "enable-agent"), nil).Want(http.StatusAccepted).Decode(&out)
	if out.InstallCommand != "" || out.AgentEnrollmentPending || out.AgentEnrolledAt == nil {
		t.Errorf("enabled: %+v", out)
	}
	n.Sync(0)
	if d, _ := n.Desired(i.ID); !d.AgentEnabled || d.AgentActivation != "automatic" {
		t.Errorf("the node is told %+v", d)
	}
	s.Operator.Do("POST", api.InstancePath("default", i.ID, "enable-agent"), `{"force":true}`).Want(http.StatusAccepted).Decode(&out)
	if out.AgentActivation != "install-command" || out.InstallCommand == "" {
		t.Errorf("forced: %+v", out)
	}
	s.Operator.Do("POST", api.InstancePath("default", i.ID, "enable-agent"), nil).Want(http.StatusAccepted).Decode(&out)
	if out.AgentActivation != "install-command" {
		t.Error("force was not for good")
	}
	declined := n.Launch("default", api.CreateInstance{ImageID: img.ID, AgentEnabled: ptr(false)})
	if declined.AgentEnabled || declined.Health != "agent_disabled" {
		t.Errorf("declined at create: %+v", declined)
	}
}

func ptr[T any](v T) *T { return &v }
