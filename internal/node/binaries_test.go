package node

import (
	"testing"
	"testing/synctest"
	"time"
)

// The agent says of which commit it is, and whether that is the server's, as soon as it
// knows; what was not checked has no label, which is not false.
// contract: N-14 N-16
func TestBinariesLabels(t *testing.T) {
	for _, tt := range []struct {
		name, agent, server string
		stale               string // empty: no label
	}{
		{"the same", "abc", "abc", "false"},
		{"another", "abc", "def", "true"},
		{"a server that does not say", "abc", "", ""},
		{"an agent that cannot say", "", "def", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t)
				e.cfg.Commit, e.server.commit = tt.agent, tt.server
				e.up(t)
				defer func() { e.downAgent(); e.vms.Close() }()
				said := func() (commit, stale string, keys int) {
					e.mu.Lock()
					defer e.mu.Unlock()
					for k := range e.beat.Capabilities {
						if k == labelCommit || k == labelStale {
							keys++
						}
					}
					return e.beat.Capabilities[labelCommit], e.beat.Capabilities[labelStale], keys
				}
				<-time.After(10 * time.Second)
				want := 0
				if tt.agent != "" {
					want++
				}
				if tt.stale != "" {
					want++
				}
				if commit, stale, keys := said(); commit != tt.agent || stale != tt.stale || keys != want {
					t.Errorf("commit %q, stale %q, %d labels", commit, stale, keys)
				}
				if tt.stale == "" {
					return
				}
				e.edit(func() { e.server.commit = "later" }) // it was upgraded
				e.until(t, "stale", 5*time.Second, func() bool { _, stale, _ := said(); return stale == "true" })
			})
		})
	}
}
