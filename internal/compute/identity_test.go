package compute_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

var claimTime = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// claims plays claims of "machine/boot" at one node: ok, a refusal, or a copy that is
// told from the node.
func claims(t *testing.T, n *compute.Node, script ...string) {
	t.Helper()
	for i, step := range script {
		who, want, _ := strings.Cut(step, " ")
		machine, boot, _ := strings.Cut(who, "/")
		now := claimTime.Add(time.Duration(i) * time.Minute)
		clash, refused, _ := n.Claim(compute.Claimant{Hostname: "h-" + machine, MachineID: machine, BootID: boot}, now)
		got := "ok"
		switch {
		case refused && clash.First:
			got = "refused"
		case refused:
			got = "again"
		case clash != nil:
			got = "copy"
		}
		if got != want {
			t.Fatalf("step %d, %s: %s, want %s (%+v)", i, who, got, want, n.Identity)
		}
		if !refused {
			n.Facts.Hostname = "h-" + machine
			n.Liveness = compute.Liveness{SeenAt: now, BootID: boot}
		}
	}
}

// contract: N-21
// lesson 7
func TestClaim(t *testing.T) {
	for name, script := range map[string][]string{
		"one machine, many boots":                 {"m/b1 ok", "m/b1 ok", "m/b2 ok", "m/b3 ok", "m/b3 ok"},
		"another machine":                         {"m/b1 ok", "x/b9 refused", "m/b1 ok", "x/b9 again", "m/b2 ok", "x/b9 again"},
		"another machine boots":                   {"m/b1 ok", "x/b8 refused", "x/b9 refused", "m/b1 ok"},
		"two others":                              {"m/b1 ok", "x/b9 refused", "y/b7 refused", "x/b9 again"},
		"no machine id says nothing":              {"m/b1 ok", "/b1 ok", "m/b1 ok"},
		"the machine id comes later":              {"/b1 ok", "m/b1 ok", "x/b1 refused"},
		"no boot says nothing":                    {"m/b1 ok", "m/ ok", "m/b1 ok", "m/ ok", "m/b2 ok"},
		"a copied disk":                           {"m/b1 ok", "m/b2 ok", "m/b1 copy", "m/b2 again", "m/b1 ok", "m/b2 again"},
		"a copied disk, and then the first boots": {"m/b1 ok", "m/b2 ok", "m/b1 copy", "m/b3 ok", "m/b2 again", "m/b3 ok"},
		"the copy boots":                          {"m/b1 ok", "m/b2 ok", "m/b1 copy", "m/b4 ok", "m/b1 copy", "m/b4 again", "m/b2 again", "m/b1 ok"},
	} {
		t.Run(name, func(t *testing.T) { claims(t, &compute.Node{ID: "n1"}, script...) })
	}
}

// A clash names both machines, stands as a finding with a next step, and goes when
// nobody has made the claim for an hour. What is written of it is bounded.
//
// contract: N-21
// lesson 7
func TestClashIsShown(t *testing.T) {
	n := &compute.Node{ID: "n1"}
	claims(t, n, "m/b1 ok")
	first, refused, changed := n.Claim(compute.Claimant{Hostname: "h-x", MachineID: "x", BootID: "b9"}, claimTime.Add(time.Minute))
	want := &compute.Clash{First: true,
		Holder:   compute.Claimant{Hostname: "h-m", MachineID: "m", BootID: "b1", SeenAt: claimTime},
		Claimant: compute.Claimant{Hostname: "h-x", MachineID: "x", BootID: "b9", SeenAt: claimTime.Add(time.Minute)}}
	if !refused || !changed || !reflect.DeepEqual(first, want) {
		t.Errorf("%+v, refused %v, changed %v", first, refused, changed)
	}
	if _, _, changed := n.Claim(want.Claimant, claimTime.Add(2*time.Minute)); changed {
		t.Error("every claim is written")
	}
	if _, _, changed := n.Claim(want.Claimant, claimTime.Add(6*time.Minute)); !changed {
		t.Error("a claim that goes on is forgotten")
	}
	if n.Calm("b1") {
		t.Error("a heartbeat of the node takes the short path while a claim stands")
	}
	codes := func() (out []string) {
		for _, f := range n.Findings() {
			if out = append(out, f.Code); f.Code == compute.FindingClone && (!strings.Contains(f.Message, "machine id x, boot b9") || !strings.Contains(f.Next, "readmit n1")) {
				t.Errorf("finding %+v", f)
			}
		}
		return out
	}
	if !slices.Contains(codes(), compute.FindingClone) {
		t.Error("no finding")
	}
	mine := compute.Claimant{MachineID: "m", BootID: "b1"}
	last := claimTime.Add(6 * time.Minute)
	if _, _, changed := n.Claim(mine, last.Add(compute.ClaimStands-time.Microsecond)); changed || !slices.Contains(codes(), compute.FindingClone) {
		t.Error("gone too soon")
	}
	if _, _, changed := n.Claim(mine, last.Add(compute.ClaimStands)); !changed || slices.Contains(codes(), compute.FindingClone) || !n.Calm("b1") {
		t.Error("it stays for ever")
	}

	before := n.Identity
	held := fmt.Sprintf("%+v", before)
	for i := range 100 {
		n.Claim(compute.Claimant{MachineID: fmt.Sprint("x", i)}, claimTime)
		boot := fmt.Sprint("boot", i)
		n.Claim(compute.Claimant{MachineID: "m", BootID: boot}, claimTime)
		n.Liveness.BootID = boot
	}
	if len(n.Identity.Claimants) != 4 || len(n.Identity.Left) != 16 {
		t.Errorf("%d claimants, %d boots", len(n.Identity.Claimants), len(n.Identity.Left))
	}
	if fmt.Sprintf("%+v", before) != held {
		t.Error("a record that others share was changed in place")
	}
}

func TestKeyID(t *testing.T) {
	key := make([]byte, 32)
	id := compute.KeyID(key)
	if id != "SHA256:Zmh6rfhivXdsj8GLjp+OIAiXFIVu4jOzkCpZHQ1fKSU" || !compute.ValidKeyID(id) {
		t.Error(id)
	}
	for _, bad := range []string{"", "SHA256:", id[1:], id + "A", id[:len(id)-1], "SHA256:" + strings.Repeat("-", 43), id[:len(id)-1] + "V"} {
		if compute.ValidKeyID(bad) {
			t.Errorf("%q is taken for a fingerprint", bad)
		}
	}
}
