package control

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// Heartbeat records what a node says, body and answer in JSON, and answers with
// the node's record after the commit (contract N-01, N-05 to N-07). A node says
// the same again and again but for the moment of its sample: such a beat is
// written like any other, but neither decoded nor rendered anew.
func (c *Control) Heartbeat(ctx context.Context, who iam.Caller, nodeID string, body []byte) ([]byte, error) {
	if err := iam.Allow(who, iam.RecordHeartbeat, iam.Scope{NodeID: nodeID}); err != nil {
		return nil, err
	}
	last := c.beats.of(nodeID)
	if last != nil {
		if sampled, ok := last.again(body); ok {
			return c.beatAgain(ctx, who, last, sampled)
		}
	}
	if !compute.ValidNodeID(nodeID) {
		return nil, fault.InvalidFields([]fault.Field{{Path: "nodeId", Message: nodeIDRule}})
	}
	h, err := api.DecodeHeartbeat(body)
	if err != nil {
		return nil, err
	}
	b := store.Beat{NodeID: nodeID, Facts: c.facts(h), BootID: h.BootID}
	if h.Capacity.SampledAt != nil {
		b.SampledAt = *h.Capacity.SampledAt
	}
	if err := c.beat(ctx, who, &b); err != nil {
		return nil, err
	}
	if l := c.newLastBeat(body, &b); l != nil {
		c.beats.keep(l)
	}
	return json.Marshal(c.beatView(&b))
}

// beatAgain records a beat that says what the last one said.
func (c *Control) beatAgain(ctx context.Context, who iam.Caller, last *lastBeat, sampled time.Time) ([]byte, error) {
	b := store.Beat{NodeID: last.node.ID, Facts: last.node.Facts, Like: last.node, BootID: last.bootID, SampledAt: sampled}
	if err := c.beat(ctx, who, &b); err != nil {
		return nil, err
	}
	if b.Node != last.node || last.computed != c.computed() || !slices.EqualFunc(last.found, c.obs.findings(b.NodeID), sameFinding) {
		next := *last // another record than was rendered
		c.render(&next, b.Node)
		last = &next
		c.beats.keep(last)
	}
	skew := b.SampledAt.Sub(b.SeenAt)
	if last.answer == nil || skew.Abs() > maxSkew { // the one finding that depends on the moment
		return json.Marshal(c.beatView(&b))
	}
	return last.fill(b.SeenAt, b.SampledAt, skew), nil
}

// beat writes a beat.
func (c *Control) beat(ctx context.Context, who iam.Caller, b *store.Beat) error {
	if err := boundClaims(who, &b.Facts); err != nil {
		return err
	}
	if c.o.SingleNode {
		b.First = &c.o.FirstNode
	}
	b.SampledAt = b.SampledAt.UTC().Truncate(time.Microsecond) // as it will be read
	if err := c.db.Heartbeat(ctx, b); err != nil {
		return err
	}
	if b.Clash != nil {
		c.logClash(ctx, b.NodeID, b.Clash)
	}
	if b.Refused {
		return errClash(b.NodeID, b.Clash, true)
	}
	c.skews.note(b.NodeID, isSkewed(&compute.Liveness{SeenAt: b.SeenAt, SampledAt: b.SampledAt}), b.SeenAt)
	if b.Before != nil {
		c.logOverrides(ctx, b.Before, b.Node)
	}
	if b.Node.Maintenance.ReturnedAt.Equal(b.SeenAt) {
		c.returned(ctx, b.Node)
	}
	if b.Node.Power.EndedAt.Equal(b.SeenAt) {
		c.powerMoved(ctx, b.Node)
	}
	if b.Registered {
		c.log.InfoContext(ctx, "node registered", "node", b.NodeID, "role", string(b.Facts.Role))
		c.nodes.Add(1)
		c.place.poke()
	}
	return nil
}

// beatView is the record of a node that has just been seen.
func (c *Control) beatView(b *store.Beat) api.Node {
	n := *b.Node
	n.Liveness = compute.Liveness{SeenAt: b.SeenAt, SampledAt: b.SampledAt, BootID: b.BootID}
	return c.nodeView(&n, b.SeenAt)
}

// maxKept bounds a body that is kept.
const maxKept = 16 << 10

// lastBeat is what a node said last, and the answer to it.
type lastBeat struct {
	before, after []byte // of the body, around the moment of the sample
	bootID        string
	node          *compute.Node // as the store answered it; it is never changed
	// What a record shows beside the node's own row, as rendered.
	computed bool
	found    []api.Finding

	answer []byte // the record without the moments; nil where they were not found
	holes  []hole // where they go, in order
}

type hole struct {
	at int // in answer
	of markKind
}

type markKind uint8

const (
	markSeen markKind = iota
	markSampled
	markSkew
)

// The moments of a record that is rendered to be kept. They stand for those of a
// beat, and are so long ago that no real one is taken for them.
var (
	markedSeen    = time.Date(1, 2, 3, 4, 5, 6, 789_012_000, time.UTC)
	markedSampled = markedSeen.Add(1234567 * time.Microsecond)
	marks         = []struct {
		text  string
		of    markKind
		times int
	}{
		{markedSeen.Format(time.RFC3339Nano), markSeen, 2}, // lastSeenAt and liveness.since
		{markedSampled.Format(time.RFC3339Nano), markSampled, 1},
		{`"clockSkewMs":1234`, markSkew, 1},
	}
)

// newLastBeat is nil for a beat that is not worth keeping: long, without a moment
// or with one in an unusual place.
func (c *Control) newLastBeat(body []byte, b *store.Beat) *lastBeat {
	from, to, ok := sampleIn(body)
	if !ok || b.SampledAt.IsZero() || len(body) > maxKept {
		return nil
	}
	l := &lastBeat{before: body[:from], after: body[to:], bootID: b.BootID}
	c.render(l, b.Node)
	return l
}

// sampleIn finds the text of the body's sampledAt.
func sampleIn(body []byte) (from, to int, ok bool) {
	name := []byte(`"sampledAt"`)
	if bytes.Count(body, name) != 1 {
		return 0, 0, false
	}
	head, rest, _ := bytes.Cut(body, name)
	colon, rest, _ := bytes.Cut(rest, []byte(`"`))
	if string(bytes.TrimSpace(colon)) != ":" {
		return 0, 0, false
	}
	text, _, ok := bytes.Cut(rest, []byte(`"`))
	from = len(head) + len(name) + len(colon) + 1
	return from, from + len(text), ok
}

// again returns the moment of a body that is otherwise the same as the last. Only
// what JSON and RFC 3339 both read as it stands is taken.
func (l *lastBeat) again(body []byte) (sampled time.Time, ok bool) {
	if len(body) < len(l.before)+len(l.after) || !bytes.HasPrefix(body, l.before) || !bytes.HasSuffix(body, l.after) {
		return sampled, false
	}
	err := sampled.UnmarshalText(body[len(l.before) : len(body)-len(l.after)])
	return sampled, err == nil && api.PlausibleMoment(sampled) && !sampled.IsZero()
}

// render prepares the answer with the record n.
func (c *Control) render(l *lastBeat, n *compute.Node) {
	l.node, l.computed, l.found, l.answer, l.holes = n, c.computed(), c.obs.findings(n.ID), nil, nil
	text, err := json.Marshal(c.beatView(&store.Beat{Node: n, SeenAt: markedSeen, SampledAt: markedSampled, BootID: l.bootID}))
	if err != nil {
		return
	}
	for _, m := range marks {
		if bytes.Count(text, []byte(m.text)) != m.times {
			return // a label looks like a mark
		}
	}
	for len(text) > 0 {
		at, of, length := len(text), markKind(0), 0
		for _, m := range marks {
			if i := bytes.Index(text, []byte(m.text)); i >= 0 && i < at {
				at, of, length = i, m.of, len(m.text)
			}
		}
		l.answer = append(l.answer, text[:at]...)
		if length > 0 {
			l.holes = append(l.holes, hole{len(l.answer), of})
		}
		text = text[at+length:]
	}
	l.answer = slices.Clip(l.answer)
}

// fill puts a beat's moments into the answer.
func (l *lastBeat) fill(seen, sampled time.Time, skew time.Duration) []byte {
	out := make([]byte, 0, len(l.answer)+len(l.holes)*len(time.RFC3339Nano))
	from := 0
	for _, h := range l.holes {
		out = append(out, l.answer[from:h.at]...)
		from = h.at
		switch h.of {
		case markSeen:
			out = seen.AppendFormat(out, time.RFC3339Nano)
		case markSampled:
			out = sampled.AppendFormat(out, time.RFC3339Nano)
		case markSkew:
			out = strconv.AppendInt(append(out, `"clockSkewMs":`...), skew.Milliseconds(), 10)
		}
	}
	return append(out, l.answer[from:]...)
}

func sameFinding(a, b api.Finding) bool {
	same := a.Since == b.Since || a.Since != nil && b.Since != nil && a.Since.Equal(*b.Since)
	return same && a.Code == b.Code && a.Message == b.Message
}

// lastBeats are the last beats by node id.
type lastBeats struct {
	mu     sync.RWMutex
	byNode map[string]*lastBeat
}

func newLastBeats() *lastBeats { return &lastBeats{byNode: map[string]*lastBeat{}} }

func (s *lastBeats) of(nodeID string) *lastBeat {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byNode[nodeID]
}

func (s *lastBeats) keep(l *lastBeat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byNode[l.node.ID] = l
}

func (s *lastBeats) forget(nodeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byNode, nodeID)
}
