package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// ErrLeaseLost is the cause when the job belongs to another host by now: whatever
// it still does is too late.
var ErrLeaseLost = errors.New("the lease ran out")

// Why else a job ends before its command does.
var (
	errCancelled = errors.New("cancelled")
	errTimeout   = errors.New("timeout")
	errStopping  = errors.New("the runner was stopped while the job ran")
)

// running is a job with its lease.
type running struct {
	*Job
	r    *runner
	work *api.ClaimedWork
	end  context.CancelCauseFunc
	ctx  context.Context // of the command
	err  error           // why it cannot even begin
	told int64           // bytes of output at the last renewal

	lease lease
}

func newRunning(r *runner, w *api.ClaimedWork, sent time.Duration) *running {
	job, err := r.job(w)
	j := &running{Job: job, r: r, work: w, err: err}
	j.ctx, j.end = context.WithCancelCause(context.Background())
	j.lease = lease{until: sent + time.Duration(w.LeaseSeconds)*time.Second}
	return j
}

// run runs the job to its end and reports it.
func (j *running) run(ctx context.Context) {
	log := j.r.log.With("job", j.ID, "attempt", j.work.Attempt)
	log.Info("a job begins", "timeout", time.Duration(j.TimeoutSeconds)*time.Second)
	held, release := context.WithCancelCause(ctx) // ends with the lease
	defer release(nil)
	timeout := time.AfterFunc(time.Duration(j.TimeoutSeconds)*time.Second, func() { j.end(errTimeout) })
	defer timeout.Stop()
	context.AfterFunc(held, func() { j.end(context.Cause(held)) })
	go j.watchLease(held, release)
	go j.keepLease(held, release)
	streamed := make(chan struct{})
	go func() { j.streamOutput(held); close(streamed) }()

	exit, err := j.execute()
	cause := context.Cause(j.ctx) // before anything else ends it
	j.Output.Close()
	<-streamed
	j.report(held, exit, err, cause)
	if errors.Is(context.Cause(held), ErrLeaseLost) {
		log.Warn("the job's lease was lost; its result is dropped")
		return
	}
	if err == nil {
		log = log.With("exit", exit)
	}
	if !errors.Is(cause, context.Canceled) { // the command did not end by itself
		log = log.With("because", cause)
	}
	log.Info("a job ended", "error", err)
}

func (j *running) execute() (int64, error) {
	defer j.end(nil)
	if j.err != nil {
		return 0, j.err
	}
	return j.r.cfg.Engine.Run(j.ctx, j.Job)
}

// report tells the gateway how it ended, as long as the lease lasts.
func (j *running) report(ctx context.Context, exit int64, err, cause error) {
	path, body := j.outcome(exit, err, cause)
	delay := backoff{first: time.Second, most: 10 * time.Second}
	for ctx.Err() == nil {
		err := j.send(ctx, path, body, nil)
		if err == nil || final(err) {
			if err != nil && !refusedWith(err, codeLost) {
				j.r.log.Error("the end of a job was refused", "job", j.ID, "error", err)
			}
			return
		}
		pause(ctx, delay.next(err), nil)
	}
}

// outcome chooses between the two ends that there are: the command ended, or it
// could not be run to its end.
func (j *running) outcome(exit int64, err, cause error) (path string, body any) {
	host, epoch := j.r.id.Host, j.Epoch
	again := true
	var unfit *Unfit
	switch {
	case errors.Is(cause, errCancelled):
		if err != nil {
			exit = 128 + 9
		}
		return "complete", api.CompleteWork{Host: host, LeaseEpoch: epoch, ExitCode: exit, Message: "cancelled while it ran"}
	case errors.Is(cause, errTimeout):
		again = false
		err = fmt.Errorf("killed, as it did not end within its timeout of %s", time.Duration(j.TimeoutSeconds)*time.Second)
	case errors.Is(cause, errStopping):
		err = cause
	case errors.As(err, &unfit):
		again = false
	case err == nil:
		return "complete", api.CompleteWork{Host: host, LeaseEpoch: epoch, ExitCode: exit}
	}
	return "fail", api.FailWork{Host: host, LeaseEpoch: epoch, Message: cut(err.Error(), 2000), Retry: &again}
}

// sendTimeout bounds one request about a job.
const sendTimeout = 15 * time.Second

func (j *running) send(ctx context.Context, verb string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return j.r.client.post(ctx, "/v1/work/"+j.ID+"/"+verb, in, out)
}
