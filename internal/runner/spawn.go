package runner

import (
	"os/exec"
	"runtime"
	"sync"
)

// spawner starts processes from one thread that lives as long as the runner: the
// kernel ends a child with Pdeathsig when the thread that made it ends, not the
// process.
type spawner struct {
	once     sync.Once
	requests chan func()
}

func (s *spawner) start(cmd *exec.Cmd) error {
	s.once.Do(func() {
		s.requests = make(chan func())
		go func() {
			runtime.LockOSThread()
			for f := range s.requests {
				f()
			}
		}()
	})
	done := make(chan error)
	s.requests <- func() { done <- cmd.Start() }
	return <-done
}
