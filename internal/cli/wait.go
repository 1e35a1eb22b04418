package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// waitFlags say whether to follow a verb until it is done.
type waitFlags struct {
	wait  bool
	limit time.Duration
}

func (w *waitFlags) add(c *cobra.Command, goal string) {
	c.Flags().BoolVarP(&w.wait, "wait", "w", false, "wait until it is "+goal)
	c.Flags().DurationVar(&w.limit, "wait-timeout", 15*time.Minute, "how long to wait; the work goes on after it")
}

// finish waits where that was asked, and prints the instance.
func (a *app) finish(ctx context.Context, it item[instance], goal compute.InstanceState, w *waitFlags) error {
	if w.wait {
		var err error
		if it, err = a.follow(ctx, it, goal, w.limit); err != nil {
			return err
		}
	}
	if a.flags.output != "table" {
		return printOne(a, it, instances.details, instances.id)
	}
	return printList(a, []item[instance]{it}, instances.columns, instances.id)
}

// Pauses between looks at an instance.
const (
	firstLook = 250 * time.Millisecond
	lastLook  = 2 * time.Second
)

// follow looks at an instance until it is in the goal state, and tells of every
// change. A server that does not answer is asked again: it may be restarting.
func (a *app) follow(ctx context.Context, it item[instance], goal compute.InstanceState, limit time.Duration) (item[instance], error) {
	begin := a.now()
	p := newProgress(a)
	defer p.clear()
	said, silent := "", false
	now := func() string { return fmt.Sprintf("%6s  %s", elapsed(a.now().Sub(begin)), said) }
	for pause := firstLook; ; pause = min(pause*3/2, lastLook) {
		v := &it.value
		if text := stateText(v); text != said {
			said = text
			p.line("%s", now())
		}
		if done, err := settled(v, goal); done {
			return it, err
		}
		if a.now().Sub(begin) >= limit {
			return it, a.stillGoing(v, codeTimeout, fmt.Sprintf("instance %s is not %s after %s", v.ID, goal, limit))
		}
		err := p.spin(ctx, pause, now)
		if err == nil {
			var next item[instance]
			if next, err = a.look(ctx, v.ID, goal); err == nil {
				it, silent = next, false
				continue
			}
		}
		if ctx.Err() != nil {
			return it, a.stillGoing(v, codeInterrupted, fmt.Sprintf("stopped waiting for instance %s to be %s", v.ID, goal))
		}
		if !passing(err) {
			return it, err
		}
		if !silent {
			p.line("%6s  no answer from the server; still asking", elapsed(a.now().Sub(begin)))
			silent = true
		}
	}
}

// look gets the instance. One that is gone from the list is terminated.
func (a *app) look(ctx context.Context, id string, goal compute.InstanceState) (item[instance], error) {
	it, err := instances.get(ctx, a, id)
	if goal == compute.StateTerminated && fault.Is(err, fault.NotFound) {
		err = json.Unmarshal(fmt.Appendf(nil, `{"id":%q,"state":%q}`, id, goal), &it)
	}
	return it, err
}

// settled reports whether waiting has an end, and whether it is a good one.
func settled(i *instance, goal compute.InstanceState) (bool, error) {
	switch s := compute.InstanceState(i.State); {
	case s == goal:
		return true, nil
	case s == compute.StateError:
		return true, &failure{code: codeFailed,
			message: fmt.Sprintf("instance %s is in error: %s", i.ID, orDash(i.StateMessage)),
			hint:    fmt.Sprintf("\"outcrop instance events %s\" and \"outcrop instance console %s\" show more", i.ID, i.ID)}
	case !s.Transitional():
		return true, &failure{code: codeFailed,
			message: fmt.Sprintf("instance %s is %s, and nothing is under way that would make it %s", i.ID, stateText(i), goal),
			hint:    fmt.Sprintf("\"outcrop instance events %s\" shows who changed it", i.ID)}
	}
	return false, nil
}

// passing reports whether an error may go away by itself.
func passing(err error) bool {
	if _, ok := errors.AsType[*api.Unreachable](err); ok {
		return true
	}
	f, ok := errors.AsType[*failure](err)
	return ok && f.code == codeTimeout || fault.Is(err, fault.Internal) || fault.Is(err, fault.TooMany)
}

// stillGoing ends the waiting, not the work.
func (a *app) stillGoing(i *instance, code, message string) error {
	return &failure{code: code, message: message + "; the work goes on (it is " + stateText(i) + ")",
		hint: fmt.Sprintf("\"outcrop instance get %s\" shows where it stands", i.ID)}
}

// elapsed is a duration as precise as a person wants it.
func elapsed(d time.Duration) string {
	if d >= 10*time.Second {
		return d.Truncate(time.Second).String()
	}
	return d.Truncate(100 * time.Millisecond).String()
}
