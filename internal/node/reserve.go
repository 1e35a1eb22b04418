package node

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/node/host"
)

// keeper keeps the memory reservation of a single-node install for the host's own
// services (contract N-10).
type keeper struct {
	path string
	poke chan struct{} // capacity 1: the wish may have changed

	mu   sync.Mutex
	wish *int64 // bytes to keep; nil: none of ours
	why  error  // why that is not so
}

func newKeeper(path string) *keeper { return &keeper{path: path, poke: make(chan struct{}, 1)} }

// kept is what was set, on disk before it is, so that another agent can take it
// back. A boot does that by itself.
type kept struct {
	Bytes  int64  `json:"bytes"`
	BootID string `json:"bootId"`
}

// set is the server's word, which every heartbeat brings.
func (k *keeper) set(n *api.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wish = nil
	if n.EnforceReservation {
		k.wish = &n.ReservedMemoryBytes
	}
	nudge(k.poke)
}

// trouble is why the reservation is not enforced; nil where it is, or need not be.
func (k *keeper) trouble() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.why
}

// keepMemory keeps the host as it is wished. The first wish is brought about whatever
// was before, since somebody may have changed it.
func (a *agent) keepMemory(ctx context.Context) {
	k := a.keeper
	var now *int64 // what is in force by this agent's hand
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.poke:
		}
		k.mu.Lock()
		wish := k.wish
		k.mu.Unlock()
		if wish != nil && now != nil && *wish == *now {
			continue
		}
		call, cancel := context.WithTimeout(ctx, hostTimeout)
		err := a.keep(call, wish)
		cancel()
		if now = wish; err != nil {
			now = nil // tried again with the next heartbeat
		}
		k.mu.Lock()
		before := k.why
		k.why = err
		k.mu.Unlock()
		if err != nil && (before == nil || before.Error() != err.Error()) {
			a.log.Warn("the memory reservation is not enforced on this machine; it is tried again", "error", err)
		}
	}
}

// keep brings a wish about; nil takes back what this node's agents did.
func (a *agent) keep(ctx context.Context, wish *int64) error {
	if wish != nil {
		b, err := json.Marshal(kept{*wish, a.facts.bootID()})
		if err == nil {
			err = writeFile(a.keeper.path, b)
		}
		if err == nil {
			err = a.cfg.Host.KeepMemory(ctx, *wish)
		}
		return err
	}
	var was kept
	b, err := os.ReadFile(a.keeper.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(b, &was)
	}
	if err == nil && was.BootID == a.facts.bootID() {
		err = a.cfg.Host.KeepMemory(ctx, 0)
	}
	if err != nil && !errors.Is(err, host.ErrNoSystemd) {
		return err
	}
	return os.Remove(a.keeper.path)
}

// hostTrouble are the findings on what the agent was to do to the machine, and
// could not.
func (a *agent) hostTrouble(found map[string]string) {
	switch why := a.keeper.trouble(); {
	case errors.Is(why, host.ErrNoSystemd):
		found[findingNoSystemd] = "the memory reservation is not enforced on this machine: " + why.Error()
	case why != nil:
		found[findingReservation] = "the memory reservation is not enforced on this machine: " + why.Error()
	}
	a.power.mu.Lock()
	defer a.power.mu.Unlock()
	if a.power.lacks && found[findingNoSystemd] == "" {
		found[findingNoSystemd] = "the node cannot be shut down or rebooted from here: " + host.ErrNoSystemd.Error()
	}
}
