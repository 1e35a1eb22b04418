package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// step is one part of an action. It may be done again at any time: needed says
// whether it still has to be, and a step that was cut off is simply done anew.
type step struct {
	name   string
	needed func(context.Context) (bool, error) // nil: always
	do     func(context.Context) error
}

// Names of the steps, in the order of a VM's life.
const (
	stepImage     = "image"     // the image is in the cache, whole and checked
	stepVolume    = "volume"    // the root volume stands on it, and data volumes are there
	stepSeed      = "cidata"    // the seed holds this start's user-data
	stepInterface = "interface" // the taps are there, with all that guests find behind them
	stepDefine    = "define"    // the hypervisor knows the VM
	stepClaim     = "claim"     // the mark says: what runs from here on is of this epoch
	stepBoot      = "boot"      // the VM runs
	stepConfirm   = "confirm"   // the mark says: it did run
	stepResume    = "resume"    // a VM that stood still goes on
	stepShutdown  = "shutdown"  // the guest was asked, and had its time
	stepDestroy   = "destroy"   // the plug is pulled
	stepUndefine  = "undefine"  // the hypervisor has forgotten the VM
	stepRemove    = "remove"    // no file is left
)

// Steps are the names of all steps, as StepHook sees them.
var Steps = []string{
	stepImage, stepVolume, stepSeed, stepInterface, stepDefine, stepClaim, stepBoot, stepConfirm,
	stepResume, stepShutdown, stepDestroy, stepUndefine, stepRemove,
}

// step does one step where it is needed, and logs and times it.
func (w *worker) step(ctx context.Context, o order, st step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if st.needed != nil {
		if needed, err := st.needed(ctx); err != nil || !needed {
			return err
		}
	}
	w.report(o, api.ObservedInstance{Epoch: o.desired.Epoch, Phase: string(compute.PhasePreparing), Step: st.name})
	w.hook(st.name, true)
	began := time.Now()
	if err := st.do(ctx); err != nil {
		return err
	}
	w.log.Info("step done", "step", st.name, "epoch", o.desired.Epoch, "took", time.Since(began).Round(time.Millisecond))
	w.hook(st.name, false)
	return nil
}

func (w *worker) hook(step string, before bool) {
	if w.a.cfg.StepHook != nil {
		w.a.cfg.StepHook(w.id, step, before)
	}
}

// hopelessError is what no retry can cure.
type hopelessError struct{ text string }

func (e *hopelessError) Error() string { return e.text }

func hopelessf(format string, args ...any) error {
	return &hopelessError{fmt.Sprintf(format, args...)}
}

func hopeless(err error) bool {
	_, ok := errors.AsType[*hopelessError](err)
	return ok || errors.Is(err, hypervisor.ErrRefused)
}

// CrashAt makes a StepHook that kills this process with SIGKILL at a step, for
// tests of what an agent does that was killed there. at is "before:STEP" or
// "after:STEP"; the file remembers that it has happened, so that the agent which
// is started next goes through.
func CrashAt(at, file string) (func(instance, step string, before bool), error) {
	when, name, ok := strings.Cut(at, ":")
	if !ok || when != "before" && when != "after" || !slices.Contains(Steps, name) && !slices.Contains(JoinSteps, name) {
		return nil, fmt.Errorf("crash point %q: want before:STEP or after:STEP, where STEP is one of %v or %v", at, Steps, JoinSteps)
	}
	var fired atomic.Bool
	return func(_, step string, before bool) {
		if step != name || before != (when == "before") || exists(file) || fired.Swap(true) {
			return
		}
		if err := os.WriteFile(file, []byte(at+"\n"), 0o600); err == nil {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}, nil
}
