package control_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// booted is a node whose agent says what boot it is of.
func booted(s *apptest.System, id, boot string) *apptest.Node {
	n := s.NodeToken(id)
	beatOf(n, boot)
	return n
}

// beatOf is a heartbeat of a boot, followed by the sync that its agent makes.
func beatOf(n *apptest.Node, boot string) api.Node {
	h := apptest.Machine(n.ID)
	h.BootID, n.BootID = boot, boot
	return n.Beat(h)
}

func power(s *apptest.System, verb, id string, body any) *apptest.Answer {
	return s.Operator.Do("POST", api.NodePath(id, verb), body)
}

func judge(t *testing.T, s *apptest.System) {
	t.Helper()
	if err := s.Control.Judge(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A shutdown from its request to the boot after it, also over restarts of the
// server, with the names of the wire; the state from before returns.
// contract: N-18 N-19 N-20 N-23 lesson 2
func TestShutdown(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := booted(s, "n1", "one")
		setMode(t, s, "n1", compute.NodeMaintenance)
		if strings.Contains(string(s.Operator.Do("GET", api.NodePath("n1"), nil).Body), "powerAction") {
			t.Error("a node that never had an action shows one")
		}
		n.Sync(0)
		var told api.SyncResponse
		var held sync.WaitGroup
		held.Go(func() { told = n.Sync(20) })

		answer := power(s, "shutdown", "n1", `{"notBeforeSeconds":30,"reason":"new memory"}`).Want(202)
		var wire struct {
			State       string
			PowerAction map[string]any
		}
		answer.Decode(&wire)
		got := slices.Sorted(func(yield func(string) bool) {
			for k := range wire.PowerAction {
				yield(k)
			}
		})
		if want := "[action generation lastControlPlane message notBefore powerOn state]"; fmt.Sprint(got) != want || wire.State != "shutting-down" {
			t.Errorf("%v in state %s, want %s", got, wire.State, want)
		}
		var asked api.Node
		answer.Decode(&asked)
		p := asked.PowerAction
		if p.Action != "shutdown" || p.State != "shutting-down" || p.Generation != 1 || p.LastControlPlane || !p.PowerOn.Button ||
			p.NotBefore.Sub(s.Clock.Now()).Round(time.Second) != 30*time.Second || p.Message != "the host goes down: new memory" {
			t.Errorf("%+v", p)
		}
		held.Wait() // the action is news that ends the hold
		if d := told.Power; d == nil || d.Action != "shutdown" || d.Generation != 1 || d.NotBeforeMS < 29000 || d.NotBeforeMS > 30000 {
			t.Errorf("the node is told %+v", told.Power)
		}
		if again := n.Sync(0); again.Changed || again.Power != nil {
			t.Errorf("it is told again: %+v", again)
		}
		n.Power = &api.PowerReport{Generation: 1, Stage: "acting", Message: "the host was asked"}
		n.Sync(0)
		if b := beatOf(n, "one"); b.State != "shutting-down" || b.PowerAction.Message != "the host was asked" {
			t.Errorf("the heartbeat's answer: %s %+v", b.State, b.PowerAction)
		}

		s.Clock.Advance(90 * time.Second)
		s.Restart()
		judge(t, s)
		state := func(want string) *api.PowerAction {
			t.Helper()
			n := get(s, "n1")
			if n.State != want {
				t.Fatalf("%s, want %s: %+v", n.State, want, n.PowerAction)
			}
			return n.PowerAction
		}
		state("shutting-down") // nobody is judged before a full window of this server
		s.Clock.Advance(91 * time.Second)
		judge(t, s)
		if p := state("off"); p.State != "off" || p.OffAt == nil || s.Clock.Now().Sub(*p.OffAt) > time.Second {
			t.Errorf("%+v", p)
		}
		s.Clock.Advance(24 * time.Hour)
		judge(t, s)
		for _, f := range get(s, "n1").Findings {
			if f.Code == "Unreachable" {
				t.Error("a node that is off on purpose is found unreachable")
			}
		}
		s.Restart()
		judge(t, s)
		state("off")
		if b := beatOf(n, "two"); b.State != "maintenance" || b.PowerAction.State != "done" || b.PowerAction.OffAt == nil {
			t.Errorf("after the boot: %s %+v", b.State, b.PowerAction)
		}
		if out := n.Sync(0); out.Power != nil {
			t.Errorf("a node that booted is told %+v", out.Power)
		}
	})
}

// A reboot is over by the boot id alone; a host that does not act has failed.
// contract: N-18 N-19 N-20
func TestReboot(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := booted(s, "n1", "one")
		var out api.Node
		begin := func(generation int64) {
			t.Helper()
			power(s, "reboot", "n1", nil).Want(202).Decode(&out)
			if out.State != "rebooting" || out.PowerAction.Generation != generation || out.PowerAction.PowerOn != nil {
				t.Fatalf("%s %+v", out.State, out.PowerAction)
			}
		}
		begin(1)
		for range 3 { // silence says nothing
			s.Clock.Advance(time.Minute)
			judge(t, s)
		}
		if b := beatOf(n, "one"); b.State != "rebooting" {
			t.Errorf("a beat of the same boot makes it %s", b.State)
		}
		if b := beatOf(n, ""); b.State != "rebooting" {
			t.Errorf("a beat without a boot id makes it %s", b.State)
		}
		if b := beatOf(n, "two"); b.State != "ready" || b.PowerAction.State != "done" {
			t.Errorf("the next boot makes it %s, %+v", b.State, b.PowerAction)
		}

		begin(2)
		for range 6 {
			s.Clock.Advance(time.Minute)
			out = beatOf(n, "two")
		}
		if out.State != "ready" || out.PowerAction.State != "failed" || !strings.Contains(out.PowerAction.Message, "journalctl") {
			t.Errorf("a host that goes on: %s %+v", out.State, out.PowerAction)
		}

		begin(3)
		n.Power = &api.PowerReport{Generation: 3, Stage: "failed", Message: "no systemd here"}
		if told := n.Sync(0); told.Power != nil {
			t.Errorf("after its refusal the node is told %+v", told.Power)
		}
		if got := get(s, "n1"); got.State != "ready" || got.PowerAction.Message != "the host did not act: no systemd here" {
			t.Errorf("a host that refused: %s %+v", got.State, got.PowerAction)
		}

		begin(4)
		n.Power = &api.PowerReport{Generation: 9} // this server is a backup of long ago
		n.Sync(0)
		if got := get(s, "n1"); got.PowerAction.State != "failed" {
			t.Errorf("a node that knows of a later action: %+v", got.PowerAction)
		}
		begin(10)
	})
}

// What is refused, with what to do.
// contract: N-18 N-20 E-02 E-04
func TestPowerRefusals(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := booted(s, "n1", "one")
		power(s, "shutdown", "nope", nil).Refused(404, "NOT_FOUND")
		r := power(s, "shutdown", "n1", `{"notBeforeSeconds":-1,"forced":true}`).Refused(400, "INVALID_INPUT")
		if fmt.Sprint(r.Paths()) != "[forced notBeforeSeconds]" {
			t.Errorf("%v", r.Fields)
		}
		s.Node("old") // its agent reports no boot id
		power(s, "reboot", "old", nil).Refused(409, "INVALID_STATE")

		id := n.Launch("default", api.CreateInstance{}).ID
		r = power(s, "reboot", "n1", nil).Refused(409, "INSTANCES_RUNNING")
		if d, _ := json.Marshal(r.Details); string(d) != `{"count":1,"instanceIds":["`+id+`"]}` || !strings.Contains(r.Message, "outcrop node drain n1") {
			t.Errorf("%s: %s", r.Message, d)
		}
		do(s, "stop", id, nil).Want(202)
		n.Drive("default", id, compute.StateStopped)

		var first, again api.Node
		power(s, "reboot", "n1", nil).Want(202).Decode(&first)
		s.Clock.Advance(time.Second)
		power(s, "reboot", "n1", `{"force":true}`).Want(202).Decode(&again)
		if *first.PowerAction != *again.PowerAction {
			t.Errorf("the same again is %+v after %+v", again.PowerAction, first.PowerAction)
		}
		power(s, "shutdown", "n1", nil).Refused(409, "POWER_IN_PROGRESS")
		beatOf(n, "two")

		power(s, "shutdown", "n1", nil).Want(202)
		s.Clock.Advance(10 * time.Minute)
		judge(t, s)
		power(s, "shutdown", "n1", nil).Want(202) // it is what was asked for
		if r := power(s, "reboot", "n1", nil).Refused(409, "POWER_IN_PROGRESS"); !strings.Contains(r.Message, "outcrop node wake n1") {
			t.Error(r.Message)
		}
		gone := booted(s, "n2", "one")
		s.Clock.Advance(10 * time.Minute)
		if r := power(s, "shutdown", "n2", `{"force":true}`).Refused(409, "NODE_UNREACHABLE"); !strings.Contains(r.Message, "declare-off n2") {
			t.Error(r.Message)
		}
		beatOf(gone, "one")
		power(s, "shutdown", "n2", nil).Want(202)
	})
}

// A forced action: guests stop as their node goes down, nothing is started there
// before it is back, and then what is to run does.
// contract: N-20 U-16
func TestForcedPower(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := booted(s, "n1", "one")
		n.Sync(0)
		wanted := n.Launch("default", api.CreateInstance{DesiredState: "running"}).ID
		atBoot := n.Launch("default", api.CreateInstance{StartOnNodeBoot: true}).ID
		neither := n.Launch("default", api.CreateInstance{}).ID
		var out api.Node
		power(s, "shutdown", "n1", `{"force":true}`).Want(202).Decode(&out)
		if s.Control.Place(t.Context()) != nil || s.Create("default", api.CreateInstance{}).NodeID != "" {
			t.Error("something is placed on a node that goes down")
		}
		var events api.List[api.Event]
		s.Operator.Do("GET", api.InstancePath("default", wanted, "events"), nil).Want(200).Decode(&events)
		if e := events.Items[len(events.Items)-1]; e.Event != "node-shutdown" {
			t.Errorf("the last event is %+v", e)
		}
		// The agent takes the guests down, as if they had powered off by themselves.
		n.Phase = func(api.DesiredInstance) (compute.Phase, string) { return compute.PhaseStopped, "" }
		n.Sync(0)
		n.Act()
		n.Sync(0)
		n.Phase = nil
		for _, id := range []string{wanted, atBoot, neither} {
			if got := s.Operator.Instance("default", id); got.State != "stopped" {
				t.Errorf("%s is %s", id, got.State)
			}
			do(s, "start", id, nil).Refused(409, "NODE_NOT_UP")
		}
		s.Clock.Advance(3 * time.Minute)
		judge(t, s)
		if r := do(s, "start", wanted, nil).Refused(409, "NODE_NOT_UP"); !strings.Contains(r.Message, "off") {
			t.Error(r.Message)
		}
		beatOf(n, "two")
		n.Drive("default", wanted, compute.StateRunning)
		n.Drive("default", atBoot, compute.StateRunning)
		if got := s.Operator.Instance("default", neither); got.State != "stopped" {
			t.Errorf("an instance that is not to run is %s", got.State)
		}
	})
}

// contract: N-18
func TestLastControlPlane(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		beat := func(n *apptest.Node, role compute.Role, boot string) {
			h := apptest.Machine(n.ID)
			h.Role, h.BootID = string(role), boot
			n.Beat(h)
		}
		a, b, other := s.NodeToken("a"), s.NodeToken("b"), s.NodeToken("other")
		beat(a, compute.RoleControlPlane, "a1")
		beat(b, compute.RoleHybrid, "b1")
		beat(other, compute.RoleHypervisor, "o1")
		last := func(id string, want bool) {
			t.Helper()
			var n api.Node
			power(s, "reboot", id, nil).Want(202).Decode(&n)
			if n.PowerAction.LastControlPlane != want {
				t.Errorf("%s: last control plane is not %v", id, want)
			}
		}
		last("other", false)
		last("a", false)
		last("b", true) // as a is on its way down
		beat(a, compute.RoleControlPlane, "a2")
		beat(b, compute.RoleHybrid, "b2")
		last("b", false)
		s.Clock.Advance(10 * time.Minute)
		beat(a, compute.RoleControlPlane, "a2")
		last("a", true) // as nobody hears of b
	})
}

// A node that is off is woken by another one of its segment.
// contract: N-18
func TestWake(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		beat := func(n *apptest.Node, mac, boot string) {
			h := apptest.Machine(n.ID)
			h.WakeOnLanMAC, h.BootID = mac, boot
			n.Beat(h)
		}
		a, b, c, plain := s.NodeToken("a"), s.NodeToken("b"), s.NodeToken("c"), s.NodeToken("plain")
		everybody := func() {
			beat(b, "3c:fd:fe:00:00:0b", "b1")
			beat(c, "", "c1")
		}
		everybody()
		beat(a, "3c:fd:fe:00:00:0a", "a1")
		beat(plain, "", "p1")
		power(s, "wake", "nope", nil).Refused(404, "NOT_FOUND")
		power(s, "wake", "a", nil).Refused(409, "INVALID_STATE") // it is up
		power(s, "shutdown", "a", nil).Want(202)
		if r := power(s, "wake", "a", nil).Refused(409, "INVALID_STATE"); !strings.Contains(r.Message, "wake it when it is off") { // not yet down
			t.Error(r.Message)
		}
		s.Clock.Advance(4 * time.Minute)
		judge(t, s)
		if p := get(s, "a").PowerAction; p.State != "off" || p.PowerOn.WakeOnLanMAC != "3c:fd:fe:00:00:0a" {
			t.Errorf("%+v", p)
		}
		if r := power(s, "wake", "plain", nil).Refused(409, "INVALID_STATE"); !strings.Contains(r.Message, "--wake-mac") {
			t.Error(r.Message) // nobody hears of it, and it has no such card
		}
		if r := power(s, "wake", "a", nil).Refused(409, "INVALID_STATE"); !strings.Contains(r.Message, "zone local-a") {
			t.Error(r.Message) // all others are away
		}
		everybody()
		power(s, "wake", "a", `{"via":"a"}`).Refused(409, "INVALID_STATE")
		power(s, "wake", "a", `{"via":"plain"}`).Refused(409, "INVALID_STATE")
		power(s, "wake", "a", `{"via":"nope"}`).Refused(404, "NOT_FOUND")

		rack := func(id, rack string) {
			s.Operator.Do("PATCH", api.NodePath(id), map[string]any{"declaredCapabilities": map[string]string{"topology.rack": rack}}).Want(200)
		}
		rack("a", "r1")
		if r := power(s, "wake", "a", nil).Refused(409, "INVALID_STATE"); !strings.Contains(r.Message, "rack r1") {
			t.Error(r.Message)
		}
		rack("c", "r1")
		b.Sync(0)
		c.Sync(0)
		var sent, again api.WakeSent
		power(s, "wake", "a", nil).Want(202).Decode(&sent)
		if sent.NodeID != "a" || sent.Via != "c" || sent.WakeOnLanMAC != "3c:fd:fe:00:00:0a" || sent.ID == "" || sent.ExpiresAt.Sub(s.Clock.Now()).Round(time.Second) != 2*time.Minute {
			t.Errorf("%+v", sent)
		}
		power(s, "wake", "a", nil).Want(202).Decode(&again)
		if again != sent {
			t.Errorf("the same again is %+v", again)
		}
		if out := b.Sync(0); len(out.Wakes) != 0 {
			t.Errorf("another node is told %v", out.Wakes)
		}
		if out := c.Sync(0); len(out.Wakes) != 1 || out.Wakes[0] != (api.DesiredWake{ID: sent.ID, MAC: sent.WakeOnLanMAC}) {
			t.Errorf("the sender is told %v", out.Wakes)
		}
		c.Woke = []api.WakeReport{{ID: sent.ID}}
		if out := c.Sync(0); len(out.Wakes) != 0 {
			t.Errorf("it is told again: %v", out.Wakes)
		}
		c.Sync(0) // the same word again changes nothing
		if p := get(s, "a").PowerAction; !strings.Contains(p.Message, "node c sent") {
			t.Error(p.Message)
		}

		c.Woke = nil
		power(s, "wake", "a", `{"via":"b"}`).Want(202).Decode(&sent)
		s.Clock.Advance(2 * time.Minute)
		if out := b.Sync(0); sent.Via != "b" || len(out.Wakes) != 0 {
			t.Errorf("what is too late is sent by %s: %v", sent.Via, out.Wakes)
		}
		if err := s.Control.Forget(t.Context()); err != nil {
			t.Fatal(err)
		}
		beat(a, "3c:fd:fe:00:00:0a", "a2")
		if got := get(s, "a"); got.State != "ready" || got.PowerAction.State != "done" {
			t.Errorf("%s %+v", got.State, got.PowerAction)
		}
	})
}

// On a single-node install the agent is told to keep the reservation, until there
// is a second node.
// contract: N-09 N-10
func TestReservationIsToBeEnforced(t *testing.T) {
	s := apptest.Start(t, apptest.Options{SingleNode: true})
	n := s.NodeToken("n1")
	h := apptest.Machine("n1")
	h.Capacity.SampledAt = new(time.Time)
	*h.Capacity.SampledAt = s.Clock.Now()
	for range 2 { // the second answer is rendered from the first
		if got := n.Beat(h); !got.EnforceReservation || got.ReservedMemoryBytes != compute.ComputedReservation(64, 256<<30).MemoryBytes {
			t.Errorf("alone: %v, %d bytes", got.EnforceReservation, got.ReservedMemoryBytes)
		}
	}
	s.Node("n2")
	for range 2 {
		if got := n.Beat(h); got.EnforceReservation {
			t.Error("with a second node, it is to be enforced still")
		}
	}
}
