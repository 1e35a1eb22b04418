package network

import (
	"context"
	"sync"
)

// Fake is a Network that only remembers. Its zero value is ready.
type Fake struct {
	mu      sync.Mutex
	desired Desired
	runs    int
	fail    func(Desired) error
}

// Converge checks as the real one does, and remembers.
func (f *Fake) Converge(_ context.Context, desired Desired) error {
	d, err := desired.normalise()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs++
	if f.fail != nil {
		if err := f.fail(d); err != nil {
			return err
		}
	}
	f.desired = d
	return nil
}

// Close does nothing.
func (f *Fake) Close() error { return nil }

// FailWith makes each later Converge ask fail first; its error is returned and the desired set not taken over. nil ends it.
func (f *Fake) FailWith(fail func(Desired) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// Current is the set of the latest Converge that succeeded, and the number of all runs.
func (f *Fake) Current() (Desired, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.desired, f.runs
}
