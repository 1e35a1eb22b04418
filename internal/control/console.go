package control

import (
	"context"
	"encoding/base64"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// MaxConsoleBytes is how much of a console's end is kept and shown.
const MaxConsoleBytes = 256 << 10

// consoleWait is how long a caller waits for the node to send the console.
const consoleWait = 20 * time.Second

// consoles passes console output from nodes to waiting callers. Nothing of it is
// kept: the node has the log.
type consoles struct {
	mu      sync.Mutex
	waiting map[string]map[string][]chan []byte // node, instance
}

func newConsoles() *consoles { return &consoles{waiting: map[string]map[string][]chan []byte{}} }

func (k *consoles) ask(nodeID, id string) (answer <-chan []byte, cancel func()) {
	ch := make(chan []byte, 1)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waiting[nodeID] == nil {
		k.waiting[nodeID] = map[string][]chan []byte{}
	}
	k.waiting[nodeID][id] = append(k.waiting[nodeID][id], ch)
	return ch, func() { k.drop(nodeID, id, ch) }
}

func (k *consoles) drop(nodeID, id string, ch chan []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := k.waiting[nodeID][id]
	for i, c := range list {
		if c == ch {
			k.waiting[nodeID][id] = append(list[:i], list[i+1:]...)
			break
		}
	}
	if len(k.waiting[nodeID][id]) == 0 {
		delete(k.waiting[nodeID], id)
	}
	if len(k.waiting[nodeID]) == 0 {
		delete(k.waiting, nodeID)
	}
}

func (k *consoles) wanted(nodeID string) (ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.waiting[nodeID] {
		ids = append(ids, id)
	}
	return ids
}

func (k *consoles) deliver(nodeID, id string, b []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ch := range k.waiting[nodeID][id] {
		ch <- b // has room for the one answer
	}
	delete(k.waiting[nodeID], id)
}

// GetConsole answers the end of an instance's serial console, as its node has it
// at this moment.
func (c *Control) GetConsole(ctx context.Context, who iam.Caller, project, id string) (api.Console, error) {
	if err := iam.Allow(who, iam.GetConsole, iam.Scope{ProjectID: project}); err != nil {
		return api.Console{}, err
	}
	var i store.Instance
	err := c.db.Read(ctx, func(tx *store.Tx) (err error) {
		i, err = instance(tx, project, id)
		return err
	})
	if err != nil {
		return api.Console{}, err
	}
	if i.NodeID == "" || i.State == compute.StateTerminated {
		return api.Console{}, fault.Coded(fault.Conflict, fault.InvalidState, "the instance is %s and on no node: there is no console", i.State)
	}
	answer, cancel := c.cons.ask(i.NodeID, id)
	defer cancel()
	c.hub.nudge(i.NodeID)
	wait := time.NewTimer(consoleWait)
	defer wait.Stop()
	select {
	case b := <-answer:
		return api.Console{InstanceID: id, Output: base64.StdEncoding.EncodeToString(b), At: c.now()}, nil
	case <-wait.C:
		return api.Console{}, fault.Coded(fault.Conflict, fault.NodeUnreachable, "node %q did not send the console in %s; see: outcrop node get %s", i.NodeID, consoleWait, i.NodeID)
	case <-ctx.Done():
		return api.Console{}, ctx.Err()
	}
}

// PutConsole takes console output from the node of an instance; another node's
// instance is not found (contract N-24).
func (c *Control) PutConsole(ctx context.Context, who iam.Caller, nodeID, id string, b []byte) error {
	if err := iam.Allow(who, iam.PutConsole, iam.Scope{NodeID: nodeID}); err != nil {
		return err
	}
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		i, err := tx.InstanceByID(id)
		if err == nil && i.NodeID != nodeID {
			err = store.ErrNotFound
		}
		return notFound(err, "there is no instance %q on node %q", id, nodeID)
	})
	if err == nil {
		c.cons.deliver(nodeID, id, b)
	}
	return err
}
