package store

import (
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// DownNodes reads the nodes that are off, or on their way down or up again, in id
// order; see compute.Node.Down.
func (tx *Tx) DownNodes() ([]compute.Node, error) {
	return list(tx, nodeSelect+`WHERE n.down ORDER BY n.id`, nil, scanNode)
}

// Wake is a Wake-on-LAN packet that a node sends to wake another.
type Wake struct {
	ID      string
	NodeID  string // to wake
	Via     string // who sends
	MAC     string
	Expires time.Time
}

func scanWake(scan scanFunc) (w Wake, err error) {
	var expires int64
	err = scan(&w.ID, &w.NodeID, &w.Via, &w.MAC, &expires)
	w.Expires = fromMicros(expires)
	return w, err
}

const wakeSelect = `SELECT id, node_id, via, mac, expires_at FROM wakes `

// InsertWake lets the node that is to send it be told.
func (tx *Tx) InsertWake(w *Wake) error {
	if _, err := tx.exec(`INSERT INTO wakes (id, node_id, via, mac, expires_at) VALUES ($1, $2, $3, $4, $5)`,
		w.ID, w.NodeID, w.Via, w.MAC, micros(w.Expires)); err != nil {
		return err
	}
	return tx.TouchNode(w.Via)
}

// WakesVia reads what the node is to send and is not too late for.
func (tx *Tx) WakesVia(nodeID string) ([]Wake, error) {
	return list(tx, wakeSelect+`WHERE via = $1 AND expires_at > $2 ORDER BY id`, []any{nodeID, micros(tx.Now)}, scanWake)
}

// WakesAsked reads all that the node was asked to send and has not told of, whether it
// is too late for them or not.
func (tx *Tx) WakesAsked(via string) ([]Wake, error) {
	return list(tx, wakeSelect+`WHERE via = $1 ORDER BY id`, []any{via}, scanWake)
}

// WakeOf reads the one that is under way for the node; ErrNotFound.
func (tx *Tx) WakeOf(nodeID string) (Wake, error) {
	return one(tx, wakeSelect+`WHERE node_id = $1 AND expires_at > $2 ORDER BY id LIMIT 1`, []any{nodeID, micros(tx.Now)}, scanWake)
}

// TakeWake removes one that the node via has sent, or could not; ErrNotFound.
func (tx *Tx) TakeWake(via, id string) (Wake, error) {
	w, err := one(tx, `DELETE FROM wakes WHERE id = $1 AND via = $2 RETURNING id, node_id, via, mac, expires_at`, []any{id, via}, scanWake)
	if err != nil {
		return w, err
	}
	return w, tx.TouchNode(via)
}

// ForgetWakes removes those that are too late.
func (tx *Tx) ForgetWakes() error {
	_, err := tx.exec(`DELETE FROM wakes WHERE expires_at <= $1`, micros(tx.Now))
	return err
}
