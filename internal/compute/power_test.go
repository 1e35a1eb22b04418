package compute

import (
	"testing"
	"time"
)

var powerStart = time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)

// Every state with every event.
// contract: N-18 N-19
func TestPowerMoves(t *testing.T) {
	states := []PowerState{"", PowerShuttingDown, PowerRebooting, PowerOff, PowerDone, PowerFailed}
	events := []PowerEvent{PowerSameBoot, PowerOverdue, PowerOtherBoot, PowerSilent, PowerRefused}
	want := map[PowerState][]PowerState{
		"":                {"", "", "", "", ""},
		PowerShuttingDown: {PowerShuttingDown, PowerFailed, PowerDone, PowerOff, PowerFailed},
		PowerRebooting:    {PowerRebooting, PowerFailed, PowerDone, PowerRebooting, PowerFailed},
		PowerOff:          {PowerShuttingDown, PowerFailed, PowerDone, PowerOff, PowerFailed},
		PowerDone:         {PowerDone, PowerDone, PowerDone, PowerDone, PowerDone},
		PowerFailed:       {PowerFailed, PowerFailed, PowerFailed, PowerFailed, PowerFailed},
	}
	if len(powerMoves) != len(states) {
		t.Errorf("the table has %d rows, want %d", len(powerMoves), len(states))
	}
	gone := powerStart.Add(-time.Minute)
	for _, s := range states {
		if len(powerMoves[s]) != len(events) {
			t.Errorf("%q: %d cells, want %d", s, len(powerMoves[s]), len(events))
		}
		for n, e := range events {
			p := PowerAction{State: s, Message: "before", GoneAt: gone}
			changed := p.See(e, "", powerStart)
			if p.State != want[s][n] || changed != (p.State != s) {
				t.Errorf("%q at %q: %q (changed %v), want %q", s, e, p.State, changed, want[s][n])
			}
			if !changed {
				if p.Message != "before" || p.GoneAt != gone || !p.EndedAt.IsZero() {
					t.Errorf("%q at %q: nothing changed, but %+v", s, e, p)
				}
				continue
			}
			if p.Message == "before" || p.Message == "" {
				t.Errorf("%q at %q: message %q", s, e, p.Message)
			}
			if ended := p.State == PowerDone || p.State == PowerFailed; ended != (p.EndedAt == powerStart) {
				t.Errorf("%q at %q: ended at %v", s, e, p.EndedAt)
			}
			switch {
			case p.State == PowerOff && p.GoneAt != powerStart, p.State == PowerShuttingDown && !p.GoneAt.IsZero():
				t.Errorf("%q at %q: gone at %v", s, e, p.GoneAt)
			}
		}
	}
	p := PowerAction{State: PowerRebooting}
	if p.See(PowerRefused, "no", powerStart); p.Message != "no" {
		t.Errorf("the host's own word is lost: %q", p.Message)
	}
}

// The node's state follows the action, and the one from before returns.
// contract: N-18 N-19 N-23
func TestPowerDecidesState(t *testing.T) {
	for _, before := range []NodeState{NodeReady, NodeMaintenance} {
		n := Node{Liveness: Liveness{SeenAt: powerStart, BootID: "one"}}
		if before != NodeReady {
			n.Maintenance.Mode = before
		}
		beat := func(boot string, at time.Duration, want NodeState) {
			t.Helper()
			now := powerStart.Add(at)
			n.Heard(boot, now)
			n.Liveness = Liveness{SeenAt: now, BootID: boot}
			if n.State() != want {
				t.Fatalf("from %s, after %v with boot %s: %s, want %s", before, at, boot, n.State(), want)
			}
		}
		n.BeginPower(PowerShutdown, powerStart, PowerDelay, 0, false)
		beat("one", time.Second, NodeShuttingDown)
		if n.Power.Judge(n.Liveness, powerStart.Add(60*time.Second), powerStart, time.Minute) {
			t.Fatal("a node that may beat any moment counts as gone")
		}
		n.Power.Judge(n.Liveness, powerStart.Add(3*time.Minute), powerStart, time.Minute)
		if n.State() != NodeOff {
			t.Fatalf("a silent node is %s", n.State())
		}
		beat("one", 4*time.Minute, NodeShuttingDown) // it was the network
		n.Power.Judge(n.Liveness, powerStart.Add(6*time.Minute), powerStart, time.Minute)
		beat("two", time.Hour, before)
		if n.Power.State != PowerDone || n.Power.Generation != 1 {
			t.Fatalf("%+v", n.Power)
		}

		n.BeginPower(PowerReboot, powerStart.Add(time.Hour), 0, time.Minute, true)
		if n.Power.Generation != 2 || n.Power.BootID != "two" || !n.Power.LastControlPlane {
			t.Fatalf("%+v", n.Power)
		}
		beat("two", time.Hour+6*time.Minute, NodeRebooting) // just in time
		beat("two", time.Hour+6*time.Minute+time.Second, before)
		if n.Power.State != PowerFailed {
			t.Fatalf("%+v", n.Power)
		}
	}
}

// A server that has just started judges nobody, and a beat without a boot id shows
// no boot.
// contract: N-06 N-19 lesson 2
func TestPowerPatience(t *testing.T) {
	n := Node{Liveness: Liveness{SeenAt: powerStart, BootID: "one"}}
	n.BeginPower(PowerShutdown, powerStart, time.Hour, 0, false)
	later := powerStart.Add(30 * time.Minute)
	if n.Power.Judge(n.Liveness, later, powerStart, time.Minute) {
		t.Error("gone before it was to go")
	}
	restarted := powerStart.Add(3 * time.Hour)
	for after, gone := range map[time.Duration]bool{0: false, 90 * time.Second: false, 91 * time.Second: true} {
		p := n.Power
		if p.Judge(n.Liveness, restarted.Add(after), restarted, time.Minute) != gone {
			t.Errorf("%v after a start of the server: gone is not %v", after, gone)
		}
	}
	if n.Power.heard("", powerStart) || n.Power.State != PowerShuttingDown {
		t.Errorf("a beat without a boot id: %+v", n.Power)
	}

	n.BeginPower(PowerReboot, powerStart, 0, 0, false)
	if n.Power.Judge(n.Liveness, powerStart.Add(2*time.Minute), powerStart, time.Minute) {
		t.Error("silence says something of a reboot")
	}
	late := powerStart.Add(PowerPatience + time.Second)
	if !n.Power.Judge(n.Liveness, late, powerStart, time.Minute) || n.Power.State != PowerRebooting || n.Power.Message != powerLate {
		t.Errorf("a reboot that takes long: %+v", n.Power)
	}
	if n.Power.Judge(n.Liveness, late, powerStart, time.Minute) {
		t.Error("it is noted again and again")
	}
}

// What an agent says: progress, a refusal, and a generation from before a backup.
// contract: N-18 N-19
func TestPowerTold(t *testing.T) {
	open := PowerAction{Action: PowerReboot, State: PowerRebooting, Generation: 3}
	for _, c := range []struct {
		name       string
		generation int64
		stage      PowerStage
		message    string
		want       PowerState
		text       string
		then       int64
	}{
		{"progress", 3, PowerStopping, "2 guests go down", PowerRebooting, "2 guests go down", 3},
		{"nothing to say", 3, PowerActing, "", PowerRebooting, "", 3},
		{"refused", 3, PowerGaveUp, "no systemd", PowerFailed, "the host did not act: no systemd", 3},
		{"refused without a word", 3, PowerGaveUp, "", PowerFailed, "the host did not act: it did not say why", 3},
		{"an older one", 2, PowerGaveUp, "no systemd", PowerRebooting, "", 3},
		{"a later one", 7, "", "", PowerFailed, "the node knows of a later action than this server does; ask again", 7},
	} {
		p := open
		changed := p.Told(c.generation, c.stage, c.message, powerStart)
		if p.State != c.want || p.Message != c.text || p.Generation != c.then || changed != (p != open) {
			t.Errorf("%s: %+v, changed %v", c.name, p, changed)
		}
	}
	var none PowerAction
	if !none.Told(7, "", "", powerStart) || none.Generation != 7 || none.Open() || none.Action != "" {
		t.Errorf("a node with an action from before a backup: %+v", none)
	}
	done := PowerAction{State: PowerDone, Generation: 3, Message: "m"}
	if done.Told(3, PowerStopping, "late word", powerStart) {
		t.Errorf("a word on what is over: %+v", done)
	}
}
