package control

import "sync"

// nudge wakes one loop; it carries no data, so that the tick and the nudge share
// one path.
type nudge struct{ c chan struct{} }

func newNudge() *nudge { return &nudge{c: make(chan struct{}, 1)} }

func (n *nudge) poke() {
	select {
	case n.c <- struct{}{}:
	default: // a nudge is waiting already
	}
}

// hub wakes the held syncs of a node.
type hub struct {
	mu      sync.Mutex
	waiting map[string]chan struct{}
}

func newHub() *hub { return &hub{waiting: map[string]chan struct{}{}} }

// wait returns a channel that is closed at the node's next nudge. Take it before
// looking whether there is something to do.
func (h *hub) wait(nodeID string) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.waiting[nodeID]
	if ch == nil {
		ch = make(chan struct{})
		h.waiting[nodeID] = ch
	}
	return ch
}

func (h *hub) nudge(nodeID string) {
	if nodeID == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch := h.waiting[nodeID]; ch != nil {
		close(ch)
		delete(h.waiting, nodeID)
	}
}
