package control

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// wakeFor is how long a packet may be sent after it was asked for.
const wakeFor = 2 * time.Minute

// labelRack says that nodes share a segment more surely than their zone does.
const labelRack = "topology.rack"

// WakeNode lets a Wake-on-LAN packet be sent to a node that is off, by another one
// of its segment: the server may stand anywhere.
func (c *Control) WakeNode(ctx context.Context, who iam.Caller, id string, in api.WakeRequest) (api.WakeSent, error) {
	if err := iam.Allow(who, iam.WakeNode, iam.Scope{NodeID: id}); err != nil {
		return api.WakeSent{}, err
	}
	var w store.Wake
	err := c.db.Write(ctx, func(tx *store.Tx) error {
		n, err := c.node(tx, id)
		if err != nil {
			return err
		}
		mac, err := c.mayWake(&n, tx.Now)
		if err != nil {
			return err
		}
		if w, err = tx.WakeOf(id); !errors.Is(err, store.ErrNotFound) {
			return err // one is under way
		}
		via, err := c.wakeVia(tx, &n, in.Via)
		if err != nil {
			return err
		}
		w = store.Wake{ID: rand.Text(), NodeID: id, Via: via, MAC: mac.String(), Expires: tx.Now.Add(wakeFor)}
		return tx.InsertWake(&w)
	})
	if err != nil {
		return api.WakeSent{}, err
	}
	c.log.InfoContext(ctx, "wake a node", "node", id, "mac", w.MAC, "via", w.Via, "by", who.Name)
	c.hub.nudge(w.Via)
	return api.WakeSent{ID: w.ID, NodeID: w.NodeID, WakeOnLanMAC: w.MAC, Via: w.Via, ExpiresAt: w.Expires}, nil
}

// whenDown is what to do about a node that is on its way down, or down and back.
func whenDown(n *compute.Node) string {
	switch n.State() {
	case compute.NodeShuttingDown:
		return "; wake it when it is off, see: outcrop node get " + n.ID
	case compute.NodeRebooting:
		return "; it comes back by itself, see: outcrop node get " + n.ID
	}
	return ""
}

// mayWake refuses a node that is up, or that cannot be woken.
func (c *Control) mayWake(n *compute.Node, now time.Time) (net.HardwareAddr, error) {
	if n.State() != compute.NodeOff && c.reachable(n, now) {
		return nil, fault.Coded(fault.Conflict, fault.InvalidState, "node %q is up (%s)%s", n.ID, n.State(), whenDown(n))
	}
	if n.Facts.WakeOnLanMAC == "" {
		return nil, fault.Coded(fault.Conflict, fault.InvalidState,
			"node %q reported no network card that can wake it; power it on by hand, and give its agent --wake-mac for the next time", n.ID)
	}
	mac, err := net.ParseMAC(n.Facts.WakeOnLanMAC)
	if err != nil || len(mac) != 6 {
		return nil, fault.Coded(fault.Conflict, fault.InvalidState, "node %q reported %q as its card's address, which is no Ethernet one; power it on by hand", n.ID, n.Facts.WakeOnLanMAC)
	}
	return mac, nil
}

// wakeVia is the node that sends: the one that was named, else one that is up in
// the same rack, or where the node's rack is not declared, in the same zone.
func (c *Control) wakeVia(tx *store.Tx, n *compute.Node, named string) (string, error) {
	able := func(v *compute.Node) bool {
		return v.ID != n.ID && v.Liveness.BootID != "" && c.isUp(v, tx.Now)
	}
	if named != "" {
		v, err := tx.Node(named)
		if err != nil {
			return "", notFound(err, "there is no node %q to send the packet; list them with: outcrop node list", named)
		}
		if !able(&v) {
			return "", fault.Coded(fault.Conflict, fault.InvalidState, "node %q cannot send the packet: it is not up, or it is the one to wake; name another with --via", named)
		}
		return named, nil
	}
	rack, via := n.Spec.DeclaredCapabilities[labelRack], ""
	err := eachNode(tx, func(v *compute.Node) bool {
		if v.Facts.Region == n.Facts.Region && v.Facts.AvailabilityZone == n.Facts.AvailabilityZone &&
			(rack == "" || rack == v.Spec.DeclaredCapabilities[labelRack]) && able(v) {
			via = v.ID
		}
		return via == ""
	})
	if err != nil || via != "" {
		return via, err
	}
	where := "zone " + n.Facts.AvailabilityZone
	if rack != "" {
		where = "rack " + rack
	}
	return "", fault.Coded(fault.Conflict, fault.InvalidState,
		"no other node of %s is up to send the packet; name one of the same network segment with --via, or power %q on by hand", where, n.ID)
}

// desiredWakes is what a node is to send.
func desiredWakes(tx *store.Tx, nodeID string) (out []api.DesiredWake, err error) {
	all, err := tx.WakesVia(nodeID)
	for _, w := range all {
		out = append(out, api.DesiredWake{ID: w.ID, MAC: w.MAC})
	}
	return out, err
}

// hearWakes takes in what a node says of the packets that it was to send.
func (c *Control) hearWakes(ctx context.Context, nodeID string, reports []api.WakeReport) error {
	if len(reports) == 0 {
		return nil
	}
	asked := map[string]bool{} // so that it costs nothing what a node says of others
	if err := c.db.Read(ctx, func(tx *store.Tx) error {
		all, err := tx.WakesAsked(nodeID)
		for _, w := range all {
			asked[w.ID] = true
		}
		return err
	}); err != nil {
		return err
	}
	for _, r := range reports {
		if !asked[r.ID] {
			continue
		}
		delete(asked, r.ID)
		var w store.Wake
		err := c.db.Write(ctx, func(tx *store.Tx) (err error) {
			w, err = tx.TakeWake(nodeID, r.ID)
			return err
		})
		if errors.Is(err, store.ErrNotFound) {
			continue // it was too late, or is told twice
		}
		if err != nil {
			return err
		}
		text := "node " + nodeID + " sent a Wake-on-LAN packet; the host has to boot now"
		if r.Error != "" {
			text = "node " + nodeID + " could not send a Wake-on-LAN packet: " + cut(r.Error, maxMessage)
		}
		c.log.InfoContext(ctx, "wake a node", "node", w.NodeID, "via", nodeID, "error", r.Error)
		err = c.movePower(ctx, w.NodeID, func(p *compute.PowerAction, _ time.Time) bool { return p.Woken(text) })
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	return nil
}
