package compute

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Identity is the machine that a node id is bound to (contract N-21), and who else
// has claimed the id. The slices are never changed in place: records are shared.
type Identity struct {
	MachineID string `json:",omitempty"` // of the first heartbeat or join that named one
	// Left are boots that have ended, the last one first. One that comes back shows
	// that two machines with one machine id are alive: somebody copied the disk.
	Left []string `json:",omitempty"`
	// Refused are the boots of such copies, the last one first.
	Refused   []string   `json:",omitempty"`
	Claimants []Claimant `json:",omitempty"` // the last one first
}

const (
	maxBoots     = 16
	maxClaimants = 4
	// ClaimStands is how long a claim by another machine is shown after the last time
	// that it was made.
	ClaimStands = time.Hour
	// claimNoted is how often a claim that is made again and again is written.
	claimNoted = 5 * time.Minute
)

// Claimant is a machine that says to be a node.
type Claimant struct {
	Hostname  string    `json:",omitempty"`
	MachineID string    `json:",omitempty"`
	BootID    string    `json:",omitempty"`
	Key       string    `json:",omitempty"` // fingerprint; empty where it showed none
	SeenAt    time.Time `json:",omitzero"`
}

// same reports whether c and d are one machine in one boot, whenever it was seen.
func (c Claimant) same(d Claimant) bool {
	return c.MachineID == d.MachineID && c.BootID == d.BootID && (c.Key == d.Key || c.Key == "" || d.Key == "")
}

// Clash is that two machines claim one node id.
type Clash struct {
	Holder, Claimant Claimant
	// Copy: both have the same machine id and are told apart by their boots.
	Copy bool
	// First: it was not known before, so it is worth a line in the log.
	First bool
}

// Claim takes in that a machine says to be the node. refused says that it is
// another one, which changes nothing but the note of it; without that, clash is a
// copy that is told from the node by this claim. changed says that the record has
// to be written. It comes before the liveness is written.
func (n *Node) Claim(c Claimant, now time.Time) (clash *Clash, refused, changed bool) {
	c.SeenAt = now
	id := &n.Identity
	if n.Foreign(c) {
		clash, changed = n.Dispute(c, now)
		return clash, true, changed
	}
	changed = id.forget(now)
	if id.MachineID == "" && c.MachineID != "" {
		id.MachineID, changed = c.MachineID, true
	}
	boot := n.Liveness.BootID
	if c.BootID == "" || boot == "" || boot == c.BootID {
		return nil, false, changed
	}
	if !slices.Contains(id.Left, c.BootID) { // the machine has booted
		id.Left = front(id.Left, boot, maxBoots)
		return nil, false, true
	}
	other := Claimant{Hostname: n.Facts.Hostname, MachineID: id.MachineID, BootID: boot, SeenAt: n.Liveness.SeenAt}
	id.Left = slices.DeleteFunc(slices.Clone(id.Left), func(b string) bool { return b == c.BootID })
	id.Refused = front(id.Refused, boot, maxBoots)
	id.Claimants = front(id.Claimants, other, maxClaimants)
	return &Clash{Holder: c, Claimant: other, Copy: true, First: true}, false, true
}

// Foreign reports whether the claimant is another machine than the node: its machine
// id is another, or its boot is a copy's. One that names neither says nothing.
func (n *Node) Foreign(c Claimant) bool {
	id := &n.Identity
	return id.MachineID != "" && c.MachineID != "" && id.MachineID != c.MachineID || slices.Contains(id.Refused, c.BootID)
}

// Dispute notes that another machine claims the node's id. changed says that the
// record has to be written.
func (n *Node) Dispute(c Claimant, now time.Time) (clash *Clash, changed bool) {
	c.SeenAt = now
	id := &n.Identity
	clash = &Clash{Claimant: c, First: true, Copy: slices.Contains(id.Refused, c.BootID), Holder: Claimant{
		Hostname: n.Facts.Hostname, MachineID: id.MachineID, BootID: n.Liveness.BootID, SeenAt: n.Liveness.SeenAt}}
	known := slices.IndexFunc(id.Claimants, c.same)
	if known >= 0 {
		clash.First = false
		if now.Sub(id.Claimants[known].SeenAt) < claimNoted {
			return clash, false
		}
	}
	others := slices.DeleteFunc(slices.Clone(id.Claimants), c.same)
	id.Claimants = front(others, c, maxClaimants)
	return clash, true
}

// forget drops claims that nobody has made for ClaimStands.
func (id *Identity) forget(now time.Time) bool {
	old := func(c Claimant) bool { return now.Sub(c.SeenAt) >= ClaimStands }
	if !slices.ContainsFunc(id.Claimants, old) {
		return false
	}
	id.Claimants = slices.DeleteFunc(slices.Clone(id.Claimants), old)
	return true
}

// front is a new slice with v before the rest, at most length long.
func front[T any](rest []T, v T, length int) []T {
	return slices.Concat([]T{v}, rest[:min(len(rest), length-1)])
}

// FindingClone: another machine claims the node's id.
const FindingClone = "CloneDetected"

func (n *Node) cloneFindings(add func(code, message, next string)) {
	if len(n.Identity.Claimants) == 0 {
		return
	}
	c := n.Identity.Claimants[0]
	message := fmt.Sprintf("%s claims to be this node and is refused; this node goes on", c)
	if more := len(n.Identity.Claimants) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	add(FindingClone, message, "give the other machine an id and a data folder of its own; if it is to take this node's place: outcrop node readmit "+n.ID)
}

// String names the machine.
func (c Claimant) String() string {
	s := "a machine"
	if c.Hostname != "" {
		s = fmt.Sprintf("machine %q", c.Hostname)
	}
	var marks []string
	for _, m := range []struct{ name, value string }{{"machine id", c.MachineID}, {"boot", c.BootID}, {"key", c.Key}} {
		if m.value != "" {
			marks = append(marks, m.name+" "+m.value)
		}
	}
	if !c.SeenAt.IsZero() {
		marks = append(marks, "seen "+c.SeenAt.UTC().Format(time.RFC3339))
	}
	if len(marks) == 0 {
		return s
	}
	return s + " (" + strings.Join(marks, ", ") + ")"
}
