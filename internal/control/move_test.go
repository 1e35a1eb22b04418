package control_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

func migrate(s *apptest.System, id string, in api.MigrateInstance) *apptest.Answer {
	return s.Operator.Do("POST", api.InstancePath("default", id, "migrate"), in)
}

// books fails the test where what is written down does not agree.
func books(t *testing.T, s *apptest.System) {
	t.Helper()
	var audit api.Audit
	s.Operator.Do("GET", "/v1/compute/audit", nil).Want(200).Decode(&audit)
	for _, f := range audit.Findings {
		t.Errorf("the books do not agree: %s %s on %s: %s", f.Code, f.InstanceID, f.NodeID, f.Message)
	}
}

func committed(s *apptest.System, node string) int64 {
	var n api.Node
	s.Operator.Do("GET", api.NodePath(node), nil).Want(200).Decode(&n)
	return n.CommittedMemoryBytes
}

// A running instance with a data volume goes to another node with all that was
// written, and keeps its name, address and volumes.
// contract: U-07 U-21 // lesson 4 // lesson 17
func TestMigrate(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
		both := []*machine{a, b}
		s.Operator.Do("POST", api.NodePath("n2", "cordon"), nil).Want(200)
		i := s.Create("default", api.CreateInstance{DataVolumes: []api.DataVolumeInput{{SizeBytes: 1 << 20}}})
		place(t, s)
		settle(both...)
		s.Operator.Do("POST", api.NodePath("n2", "uncordon"), nil).Want(200)
		i = s.Operator.Instance("default", i.ID)
		if i.State != "running" || i.NodeID != "n1" {
			t.Fatalf("%s on %s", i.State, i.NodeID)
		}
		a.write(i.ID, "the guest's work")
		a.files[i.DataVolumes[0].VolumeID] = "data"
		before := committed(s, "n1")

		var moving api.Instance
		migrate(s, i.ID, api.MigrateInstance{}).Want(202).Decode(&moving)
		if m := moving.Migration; moving.State != "migrating" || moving.Health != "migrating" || m == nil || m.TargetNodeID != "n2" || m.Phase != "stopping" {
			t.Fatalf("%+v %+v", moving, moving.Migration)
		}
		if committed(s, "n1") != before || committed(s, "n2") != before {
			t.Error("both sides are not held while it moves")
		}
		// Nothing is told to the other node before this one has said that the VM is down.
		b.sync()
		if len(b.told.Instances) != 0 {
			t.Errorf("the target was told %+v", b.told.Instances)
		}
		a.sync()
		if d := a.told.Instances[0]; d.Goal != "stopped" || d.StopWithinMS <= 0 || len(a.told.Uploads) != 0 {
			t.Errorf("the source was told %+v, uploads %v", d, a.told.Uploads)
		}
		a.act()
		a.sync() // at rest
		if m := s.Operator.Instance("default", i.ID).Migration; m == nil || m.Phase != "carrying" {
			t.Errorf("%+v", m)
		}
		s.Restart() // whatever is under way goes on
		settle(both...)

		after := s.Operator.Instance("default", i.ID)
		if after.State != "running" || after.NodeID != "n2" || after.Migration != nil {
			t.Fatalf("%s on %s: %s\n%s", after.State, after.NodeID, after.StateMessage, timeline(t, s, "default", i.ID))
		}
		if got := b.files[i.RootVolumeID]; got != "the guest's work" {
			t.Errorf("the root volume holds %q", got)
		}
		if got := b.files[i.DataVolumes[0].VolumeID]; got != "data" {
			t.Errorf("the data volume holds %q", got)
		}
		if len(a.files) != 0 || len(a.vms) != 0 {
			t.Errorf("left on the source: %v %v", a.files, a.vms)
		}
		if after.PrimaryPrivateIP != i.PrimaryPrivateIP || after.NetworkInterfaces[0] != i.NetworkInterfaces[0] || after.RootVolumeID != i.RootVolumeID || after.Name != i.Name {
			t.Errorf("it is another one: %+v", after)
		}
		if committed(s, "n1") != 0 || committed(s, "n2") != before {
			t.Errorf("n1 holds %d, n2 %d of %d", committed(s, "n1"), committed(s, "n2"), before)
		}
		books(t, s)

		// And back: the first node has nothing of it any more, so it may go there.
		b.write(i.ID, "more work")
		migrate(s, i.ID, api.MigrateInstance{TargetNodeID: "n1"}).Want(202)
		settle(both...)
		if back := s.Operator.Instance("default", i.ID); back.State != "running" || back.NodeID != "n1" || a.files[i.RootVolumeID] != "more work" {
			t.Errorf("%s on %s with %q\n%s", back.State, back.NodeID, a.files[i.RootVolumeID], timeline(t, s, "default", i.ID))
		}
		books(t, s)
	})
}

// What is on its way can be given up at every step until the switch, by the caller,
// by the node, by time and by either node's absence. It runs again where it was.
// contract: U-21 // lesson 19
func TestMigrateGivenUp(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		for _, c := range []struct {
			name string
			do   func(t *testing.T, a, b *machine, id string)
			why  string
		}{
			{"cancelled before it is down", func(t *testing.T, a, b *machine, id string) {
				s.Operator.Do("POST", api.InstancePath("default", id, "migrate/cancel"), nil).Want(202)
			}, "cancelled"},
			{"cancelled while it is carried", func(t *testing.T, a, b *machine, id string) {
				rest(a)
				s.Operator.Do("POST", api.InstancePath("default", id, "migrate/cancel"), nil).Want(202)
			}, "cancelled"},
			{"not readable", func(t *testing.T, a, b *machine, id string) {
				rest(a)
				a.unread[id] = "the volume is missing"
				a.sync()
			}, "the volume is missing"},
			{"out of time", func(t *testing.T, a, b *machine, id string) {
				rest(a)
				s.Clock.Advance(59 * time.Second) // beats are still in time
				a.Beat(apptest.Machine(a.ID))
				b.Beat(apptest.Machine(b.ID))
				s.Clock.Advance(2 * time.Second)
				if err := s.Control.Expire(t.Context()); err != nil {
					t.Fatal(err)
				}
			}, "did not arrive in time"},
			{"target cordoned", func(t *testing.T, a, b *machine, id string) {
				rest(a)
				s.Operator.Do("POST", api.NodePath(b.ID, "cordon"), nil).Want(200)
				if err := s.Control.TendMoves(t.Context()); err != nil {
					t.Fatal(err)
				}
			}, "is maintenance"},
			{"target cordoned at the last moment", func(t *testing.T, a, b *machine, id string) {
				rest(a)
				s.Operator.Do("POST", api.NodePath(b.ID, "cordon"), nil).Want(200)
				a.upload()
			}, "is maintenance"},
		} {
			t.Run(c.name, func(t *testing.T) {
				a, b := newMachine(t, s, "a-"+compute.NewID("")), newMachine(t, s, "b-"+compute.NewID(""))
				s.Operator.Do("POST", api.NodePath(b.ID, "cordon"), nil).Want(200)
				i := s.Create("default", api.CreateInstance{})
				place(t, s)
				settle(a, b)
				s.Operator.Do("POST", api.NodePath(b.ID, "uncordon"), nil).Want(200)
				a.write(i.ID, "work")
				migrate(s, i.ID, api.MigrateInstance{DeadlineSeconds: 60}).Want(202)
				a.sync()
				c.do(t, a, b, i.ID)
				settle(a, b)
				after := s.Operator.Instance("default", i.ID)
				if after.State != "running" || after.NodeID != a.ID || len(b.files) != 0 || committed(s, b.ID) != 0 {
					t.Errorf("%s on %s, target has %v and holds %d", after.State, after.NodeID, b.files, committed(s, b.ID))
				}
				if line := timeline(t, s, "default", i.ID); !strings.Contains(line, c.why) {
					t.Errorf("the timeline does not say why:\n%s", line)
				}
				if a.files[i.RootVolumeID] != "work" {
					t.Errorf("the root volume holds %q", a.files[i.RootVolumeID])
				}
				books(t, s)
				s.Operator.Do("DELETE", api.InstancePath("default", i.ID), nil).Want(202)
				settle(a, b)
				for _, m := range []*machine{a, b} {
					s.Operator.Do("DELETE", api.NodePath(m.ID), nil).Want(204)
				}
			})
		}
	})
}

// Room that a migration left behind is found.
// lesson 12
func TestAuditOfMigrations(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		i := n.Launch("default", api.CreateInstance{})
		if err := s.DB.Write(t.Context(), func(tx *store.Tx) error {
			a, err := tx.Allocation(i.ID, store.Holding)
			if err != nil {
				return err
			}
			a.Purpose = store.Moving
			return tx.Allocate(&a)
		}); err != nil {
			t.Fatal(err)
		}
		var audit api.Audit
		s.Operator.Do("GET", "/v1/compute/audit", nil).Want(200).Decode(&audit)
		if len(audit.Findings) != 1 || audit.Findings[0].Code != "AllocationOfNoMigration" || audit.Findings[0].Repair != "automatic" {
			t.Errorf("%+v", audit.Findings)
		}
	})
}

// rest lets the node take the VM down and say so.
func rest(m *machine) {
	m.act()
	m.sync()
	m.sync()
}

// Terminate beats a migration at every step.
// contract: U-02 U-21
func TestTerminateWhileMigrating(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a, b := newMachine(t, s, "n1"), newMachine(t, s, "n2")
		for name, before := range map[string]func(){
			"accepted": func() {}, "told": a.sync, "down": func() { a.sync(); a.act() }, "at rest": func() { a.sync(); rest(a) },
			"first volume here": func() { a.sync(); rest(a); a.upload() },
		} {
			t.Run(name, func(t *testing.T) {
				i := s.Create("default", api.CreateInstance{Selectors: nil, DataVolumes: []api.DataVolumeInput{{SizeBytes: 1 << 20}}})
				place(t, s)
				settle(a, b)
				from, to := a, b
				if s.Operator.Instance("default", i.ID).NodeID == "n2" {
					from, to = b, a
				}
				if from != a { // the steps are the first machine's
					migrate(s, i.ID, api.MigrateInstance{TargetNodeID: "n1"}).Want(202)
					settle(a, b)
					from, to = a, b
				}
				migrate(s, i.ID, api.MigrateInstance{}).Want(202)
				before()
				s.Operator.Do("DELETE", api.InstancePath("default", i.ID), nil).Want(202)
				settle(a, b)
				if after := s.Operator.Instance("default", i.ID); after.State != "terminated" {
					t.Errorf("%s", after.State)
				}
				if len(from.files)+len(to.files)+len(from.vms)+len(to.vms) != 0 || committed(s, "n1")+committed(s, "n2") != 0 {
					t.Errorf("left: %v %v %v %v", from.files, to.files, from.vms, to.vms)
				}
				books(t, s)
			})
		}
	})
}

// A migration is refused with what would help.
// contract: N-20 N-23 // lesson 18
func TestMigrateRefused(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		a := newMachine(t, s, "n1")
		i := s.Create("default", api.CreateInstance{})
		if r := migrate(s, i.ID, api.MigrateInstance{}).Refused(409, "INVALID_STATE"); !strings.Contains(r.Message, "creating") {
			t.Error(r.Message)
		}
		place(t, s)
		settle(a)
		if r := migrate(s, i.ID, api.MigrateInstance{}).Refused(409, "NO_ROOM"); r.Details["reasons"] == nil {
			t.Errorf("%+v", r)
		}
		b := newMachine(t, s, "n2")
		s.Operator.Do("POST", api.NodePath("n2", "cordon"), api.CordonNode{Reason: "new disks"}).Want(200)
		for node, want := range map[string]string{"n2": "bring it back from maintenance", "n1": "already"} {
			a := migrate(s, i.ID, api.MigrateInstance{TargetNodeID: node}).Want(409)
			if !strings.Contains(string(a.Body), want) {
				t.Errorf("to %s: %s", node, a.Body)
			}
		}
		if r := migrate(s, i.ID, api.MigrateInstance{TargetNodeID: "n3"}).Refused(404, "NOT_FOUND"); !strings.Contains(r.Message, "outcrop node list") {
			t.Error(r.Message)
		}
		s.Member("beta").Do("POST", api.InstancePath("beta", i.ID, "migrate"), nil).Want(http.StatusForbidden)
		s.Operator.Do("POST", api.NodePath("n2", "uncordon"), nil).Want(200)
		s.Operator.Do("POST", api.InstancePath("default", i.ID, "migrate/cancel"), nil).Refused(409, "INVALID_STATE")

		// The node that it is to go to stays as long, and a second migration has to wait.
		migrate(s, i.ID, api.MigrateInstance{}).Want(202)
		s.Operator.Do("DELETE", api.NodePath("n2"), nil).Refused(409, "NODE_IN_USE")
		migrate(s, i.ID, api.MigrateInstance{}).Refused(409, "INVALID_STATE")
		for _, verb := range []string{"start", "stop", "reboot", "create-image"} {
			s.Operator.Do("POST", api.InstancePath("default", i.ID, verb), map[string]string{"create-image": `{"name":"x"}`}[verb]).Refused(409, "INVALID_STATE")
		}
		s.Operator.Do("POST", api.InstancePath("default", i.ID, "migrate/cancel"), nil).Want(202)
		settle(a, b)

		// A node that nobody hears of cannot be emptied.
		s.Clock.Advance(10 * time.Minute)
		b.Beat(apptest.Machine("n2"))
		migrate(s, i.ID, api.MigrateInstance{}).Refused(409, "NODE_UNREACHABLE")
		if i := s.Operator.Instance("default", i.ID); i.State != "running" || !slices.Contains([]string{"n1"}, i.NodeID) {
			t.Errorf("%s on %s", i.State, i.NodeID)
		}
	})
}
