package storetest

import (
	"os/exec"
	"runtime"
)

// startAndKeep starts cmd from a thread that lives as long as this process:
// Pdeathsig follows the thread that started the child.
func startAndKeep(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		started <- cmd.Start()
		_ = cmd.Wait()
	}()
	return <-started
}
