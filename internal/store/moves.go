package store

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Moving is the purpose of the allocation that a migration holds on the node that it
// goes to. It does not count for the project.
const Moving = "migration"

// Settled reports whether the instance was in a migration when it was read, and is in
// none now.
func (i *Instance) Settled() bool { return i.moving && i.Move == nil }

func scanMove(text string) (m *compute.Move, err error) {
	if text != "" {
		m = new(compute.Move)
		err = json.Unmarshal([]byte(text), m)
	}
	return m, err
}

func moveText(m *compute.Move) (string, error) {
	if m == nil {
		return "", nil
	}
	b, err := json.Marshal(m)
	return string(b), err
}

// MovingInstances reads all instances that are in a migration.
func (tx *Tx) MovingInstances() ([]Instance, error) {
	return list(tx, instanceSelect+`WHERE move <> '' ORDER BY id`, nil, scanInstance)
}

// IncomingOn is how many migrations are on their way to the node.
func (tx *Tx) IncomingOn(nodeID string) (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM allocations WHERE node_id = $1 AND purpose = '`+Moving+`'`, []any{nodeID}, &n)
}

// NodesLeft are the nodes that still may have something of the instance, or of a
// volume that is attached to it.
func (tx *Tx) NodesLeft(instanceID string) ([]string, error) {
	return list(tx, `SELECT DISTINCT node_id FROM departures WHERE id = $1
		OR id IN (SELECT v.id FROM volumes v WHERE v.instance_id = $1 AND v.instance_id <> '') ORDER BY node_id`, []any{instanceID},
		func(scan scanFunc) (id string, err error) { return id, scan(&id) })
}

// Drain is the latest drain of a node.
type Drain struct {
	NodeID    string `json:"-"`
	Open      bool   `json:"-"`
	By        string
	Reason    string
	Since     time.Time
	Deadline  time.Time
	Parallel  int
	Strategy  compute.MaintenanceStrategy            // for all; empty for each instance's own
	Overrides map[string]compute.MaintenanceStrategy // by instance id
	Outcome   DrainOutcome
	EndedAt   time.Time
}

// DrainOutcome is how a drain ended.
type DrainOutcome string

const (
	DrainDone      DrainOutcome = "done"
	DrainLate      DrainOutcome = "deadline"
	DrainCancelled DrainOutcome = "cancelled"
)

// DrainItem is what a drain makes of one instance.
type DrainItem struct {
	NodeID     string `json:"-"`
	InstanceID string `json:"-"`
	Holds      bool   `json:"-"` // nobody but the drain starts it on this node by itself
	ProjectID  string
	Name       string
	Strategy   compute.MaintenanceStrategy
	State      DrainState
	Target     string // the node that it goes or went to
	Message    string
	WasRunning bool
	RetryAt    time.Time
	ChangedAt  time.Time
}

// DrainState is where a drain stands with an instance.
type DrainState string

const (
	DrainPending DrainState = "pending" // its turn is to come, or to come again
	DrainMoving  DrainState = "moving"
	DrainHolding DrainState = "stopping" // it is being stopped where it is
	DrainHeld    DrainState = "held"     // stopped where it is, until the node takes part again
	DrainOver    DrainState = "done"     // not on the node any more
	DrainFailed  DrainState = "failed"   // still there when the drain ended
)

const drainSelect = `SELECT node_id, open, doc FROM drains `

func scanDrain(scan scanFunc) (d Drain, err error) {
	var doc string
	var open bool
	var id string
	if err = scan(&id, &open, &doc); err == nil {
		err = json.Unmarshal([]byte(doc), &d)
	}
	d.NodeID, d.Open = id, open
	return d, err
}

// Drain reads the latest drain of a node; ErrNotFound where there never was one.
func (tx *Tx) Drain(nodeID string) (Drain, error) {
	return one(tx, drainSelect+`WHERE node_id = $1`, []any{nodeID}, scanDrain)
}

// LockDrain is Drain in a write: nobody else changes the drain or its items until the
// end of the transaction.
func (tx *Tx) LockDrain(nodeID string) (Drain, error) {
	return one(tx, `UPDATE drains SET open = open WHERE node_id = $1 RETURNING node_id, open, doc`, []any{nodeID}, scanDrain)
}

// OpenDrains reads the drains that go on.
func (tx *Tx) OpenDrains() ([]Drain, error) {
	return list(tx, drainSelect+`WHERE open ORDER BY node_id`, nil, scanDrain)
}

// NewDrain writes a drain in place of the node's last one and its items.
func (tx *Tx) NewDrain(d *Drain) error {
	if _, err := tx.exec(`DELETE FROM drain_items WHERE node_id = $1`, d.NodeID); err != nil {
		return err
	}
	return tx.PutDrain(d) // the row stays: it is what is locked
}

// PutDrain writes a drain.
func (tx *Tx) PutDrain(d *Drain) error {
	doc, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = tx.exec(`INSERT INTO drains (node_id, open, doc) VALUES ($1, $2, $3)
		ON CONFLICT (node_id) DO UPDATE SET open = excluded.open, doc = excluded.doc`, d.NodeID, d.Open, string(doc))
	return err
}

const drainItemSelect = `SELECT node_id, instance_id, holds, doc FROM drain_items `

func scanDrainItem(scan scanFunc) (d DrainItem, err error) {
	var doc, node, instance string
	var holds bool
	if err = scan(&node, &instance, &holds, &doc); err == nil {
		err = json.Unmarshal([]byte(doc), &d)
	}
	d.NodeID, d.InstanceID, d.Holds = node, instance, holds
	return d, err
}

// DrainItems reads what the node's latest drain makes of each instance.
func (tx *Tx) DrainItems(nodeID string) ([]DrainItem, error) {
	return list(tx, drainItemSelect+`WHERE node_id = $1 ORDER BY instance_id`, []any{nodeID}, scanDrainItem)
}

// PutDrainItem writes an item.
func (tx *Tx) PutDrainItem(d *DrainItem) error {
	d.ChangedAt = tx.Now
	doc, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = tx.exec(`INSERT INTO drain_items (node_id, instance_id, holds, doc) VALUES ($1, $2, $3, $4)
		ON CONFLICT (node_id, instance_id) DO UPDATE SET holds = excluded.holds, doc = excluded.doc`, d.NodeID, d.InstanceID, d.Holds, string(doc))
	return err
}

// HeldBy is the item of a drain that holds the instance on the node where it is;
// nil where none does.
func (tx *Tx) HeldBy(i *Instance) (*DrainItem, error) {
	d, err := one(tx, drainItemSelect+`WHERE instance_id = $1 AND holds AND node_id = $2`, []any{i.ID, i.NodeID}, scanDrainItem)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return &d, err
}
