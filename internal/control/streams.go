package control

import (
	"context"
	"crypto/rand"
	"io"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// streamWait is how long a caller waits for the node to dial in.
const streamWait = 30 * time.Second

// streams brings together a caller who wants a two-way console and the node that
// has it. The server never calls a node: the node's held sync tells it to dial.
type streams struct {
	mu      sync.Mutex
	waiting map[string]*stream // by stream id
}

type stream struct {
	api.ConsoleStream
	nodeID string
	dialed chan io.ReadWriteCloser // the node's end
}

func newStreams() *streams { return &streams{waiting: map[string]*stream{}} }

func (s *streams) add(nodeID, instanceID string) *stream {
	st := &stream{ConsoleStream: api.ConsoleStream{ID: rand.Text(), InstanceID: instanceID}, nodeID: nodeID, dialed: make(chan io.ReadWriteCloser, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[st.ID] = st
	return st
}

// take hands out a waiting stream once.
func (s *streams) take(id string) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.waiting[id]
	delete(s.waiting, id)
	return st
}

func (s *streams) wanted(nodeID string) (out []api.ConsoleStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.waiting {
		if st.nodeID == nodeID {
			out = append(out, st.ConsoleStream)
		}
	}
	return out
}

// OpenConsole waits for the node of a running instance to dial in, and answers
// its end of the two-way console. The caller closes it.
func (c *Control) OpenConsole(ctx context.Context, who iam.Caller, project, id string) (io.ReadWriteCloser, error) {
	if err := iam.Allow(who, iam.OpenConsole, iam.Scope{ProjectID: project}); err != nil {
		return nil, err
	}
	var i store.Instance
	err := c.db.Write(ctx, func(tx *store.Tx) (err error) {
		if i, err = instance(tx, project, id); err != nil {
			return err
		}
		if i.NodeID == "" || i.State == compute.StateStopped || i.State == compute.StateTerminated {
			return fault.Coded(fault.Conflict, fault.InvalidState, "the instance is %s: its console answers while it runs", i.State)
		}
		return event(tx, &i.Instance, who.Name, "console", "two-way console opened")
	})
	if err != nil {
		return nil, err
	}
	st := c.streams.add(i.NodeID, id)
	defer c.streams.take(st.ID)
	c.hub.nudge(i.NodeID)
	wait := time.NewTimer(streamWait)
	defer wait.Stop()
	select {
	case conn := <-st.dialed:
		return conn, nil
	case <-wait.C:
		// It may have dialed at this very moment.
		if c.streams.take(st.ID) == nil {
			return <-st.dialed, nil
		}
		return nil, fault.Coded(fault.Conflict, fault.NodeUnreachable, "node %q did not open the console in %s; see: outcrop node get %s", i.NodeID, streamWait, i.NodeID)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ClaimStream says whether the node may dial the stream, once; Deliver must follow.
func (c *Control) ClaimStream(who iam.Caller, nodeID, streamID string) (deliver func(io.ReadWriteCloser), err error) {
	if err := iam.Allow(who, iam.ServeConsole, iam.Scope{NodeID: nodeID}); err != nil {
		return nil, err
	}
	c.streams.mu.Lock()
	defer c.streams.mu.Unlock()
	st := c.streams.waiting[streamID]
	if st == nil || st.nodeID != nodeID {
		return nil, fault.New(fault.NotFound, "nobody waits for this console any more")
	}
	delete(c.streams.waiting, streamID)
	return func(conn io.ReadWriteCloser) { st.dialed <- conn }, nil
}
