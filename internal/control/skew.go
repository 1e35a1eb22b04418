package control

import (
	"sync"
	"time"
)

// skews remembers since when the clocks of nodes are seen to be off. It is a cache:
// after a restart it begins with the next beat.
type skews struct {
	mu    sync.Mutex
	since map[string]time.Time
}

func newSkews() *skews { return &skews{since: map[string]time.Time{}} }

// note takes a beat's measurement.
func (s *skews) note(nodeID string, off bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !off {
		delete(s.since, nodeID)
	} else if s.since[nodeID].IsZero() {
		s.since[nodeID] = now
	}
}

// of is since when the clock of a node is off, as far as this server has seen; at the
// latest since it was measured.
func (s *skews) of(nodeID string, measured time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if since := s.since[nodeID]; !since.IsZero() && since.Before(measured) {
		return since
	}
	return measured
}
