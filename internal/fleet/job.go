package fleet

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// JobState is where a job stands.
type JobState string

const (
	JobQueued     JobState = "queued"
	JobRunning    JobState = "running"    // a host holds its lease
	JobCancelling JobState = "cancelling" // and has been told to stop, or will be
	JobSucceeded  JobState = "succeeded"
	JobFailed     JobState = "failed"
	JobCancelled  JobState = "cancelled"
)

// JobStates are all states, in the order of a job's life.
var JobStates = []JobState{JobQueued, JobRunning, JobCancelling, JobSucceeded, JobFailed, JobCancelled}

// Final reports whether the state is an end.
func (s JobState) Final() bool { return s == JobSucceeded || s == JobFailed || s == JobCancelled }

// Leased reports whether a host holds the job.
func (s JobState) Leased() bool { return s == JobRunning || s == JobCancelling }

// JobSpec is what a job is: a command and what it needs.
type JobSpec struct {
	Name           string            `json:"name,omitempty"`
	Command        []string          `json:"command"`
	Env            map[string]string `json:"env,omitempty"` // may hold secrets: only the host that runs the job sees the values
	Image          string            `json:"image,omitempty"`
	TimeoutSeconds int64             `json:"timeoutSeconds"`
	MemoryBytes    int64             `json:"memoryBytes,omitempty"`
	DiskBytes      int64             `json:"diskBytes,omitempty"`
	MaxAttempts    int64             `json:"maxAttempts"`
}

// Bounds and defaults of a JobSpec.
const (
	DefaultTimeout  = 3600      // seconds
	MaxTimeout      = 7 * 86400 // seconds
	DefaultAttempts = 3
	MaxAttempts     = 10
	maxCommandBytes = 64 << 10 // all arguments together
	maxEnvBytes     = 128 << 10
	maxArguments    = 1024
	maxVariables    = 512
)

// ParseJob reads the body of POST /v1/work.
func ParseJob(body []byte) (JobSpec, error) {
	o, p := parse(body)
	s := JobSpec{TimeoutSeconds: DefaultTimeout, MaxAttempts: DefaultAttempts}
	s.Name, _ = o.name("name", maxName, optional)
	size := 0
	o.list("command", 1, maxArguments, required, func(path string, v jsontext.Value) {
		arg, ok := p.text(path, v, 0, maxCommandBytes)
		if ok && strings.ContainsRune(arg, 0) {
			p.add(path, "must not contain the character U+0000")
		}
		size += len(arg)
		s.Command = append(s.Command, arg)
	})
	if size > maxCommandBytes {
		p.add("command", "has more than %d bytes in all", maxCommandBytes)
	}
	if len(s.Command) > 0 && s.Command[0] == "" {
		p.add("command.0", "must name a program")
	}
	if env, ok := o.object("env", optional); ok {
		s.Env = env.variables()
	}
	s.Image, _ = o.name("image", maxName, optional)
	o.integerInto(&s.TimeoutSeconds, "timeoutSeconds", 1, MaxTimeout)
	o.integerInto(&s.MemoryBytes, "memoryBytes", 0, maxBytes)
	o.integerInto(&s.DiskBytes, "diskBytes", 0, maxBytes)
	o.integerInto(&s.MaxAttempts, "maxAttempts", 1, MaxAttempts)
	o.noOthers()
	return s, p.err()
}

func (o *object) integerInto(dest *int64, name string, min, max int64) {
	if n, ok := o.integer(name, min, max, optional); ok {
		*dest = n
	}
}

func (o *object) variables() map[string]string {
	env, size := map[string]string{}, 0
	for name, v := range o.fields {
		path := o.path + name
		value, ok := unquote(v)
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			o.p.add(path, "is not a name that a variable can have")
		case !ok || strings.ContainsRune(value, 0):
			o.p.add(path, "must be a string without the character U+0000")
		}
		env[name] = value
		size += len(name) + len(value)
	}
	if len(env) > maxVariables || size > maxEnvBytes {
		o.p.add(strings.TrimSuffix(o.path, "."), "has more than %d variables or %d bytes", maxVariables, maxEnvBytes)
	}
	slices.SortFunc(o.p.fields, func(a, b fault.Field) int { return strings.Compare(a.Path, b.Path) }) // a map has no order
	return env
}

// Job is a piece of work and how far it has come.
type Job struct {
	ID      string // UUID
	AppID   string
	Creator string // id of the key or token that queued it
	Spec    JobSpec

	State    JobState
	Attempt  int64 // of Spec.MaxAttempts; 0 before the first
	Epoch    int64 // counts the leases; only the holder of the newest may speak
	Host     string
	ExitCode *int64 // of the command, once it ended
	Message  string // for a person: why it failed, or what it waits for
	LogBytes int64  // of this attempt

	CreatedAt  time.Time
	QueuedAt   time.Time // its place in the order
	StartedAt  time.Time // of this attempt
	LeaseUntil time.Time
	AliveAt    time.Time // the host last renewed the lease
	ProgressAt time.Time // the command last showed that it gets on
	FinishedAt time.Time
}

// The lease's rhythm. A host renews every RenewEvery, so that it can miss two
// and keep the lease.
const (
	LeaseFor   = 60 * time.Second
	RenewEvery = 20 * time.Second
	// FinishWithin is what an attempt may take beyond its timeout, to report.
	FinishWithin = 2 * time.Minute
)

// CodeLeaseLost: the host does not hold the job any more.
const CodeLeaseLost = "lease_lost"

// CodeJobFinished: the job has an end already.
const CodeJobFinished = "work_finished"

// Claim gives the job's lease to a host at now.
func (j *Job) Claim(host string, now time.Time) {
	j.State, j.Host, j.Message = JobRunning, host, ""
	j.Attempt++
	j.Epoch++
	j.LogBytes, j.ExitCode = 0, nil
	j.StartedAt, j.AliveAt, j.ProgressAt = now, now, now
	j.LeaseUntil = j.nextLease(now)
}

// nextLease never goes beyond the attempt's own end, so that a runner which
// renews for ever does not keep a job for ever.
func (j *Job) nextLease(now time.Time) time.Time {
	until, end := now.Add(LeaseFor), j.attemptEnd()
	if end.Before(until) {
		return end
	}
	return until
}

func (j *Job) attemptEnd() time.Time {
	return j.StartedAt.Add(time.Duration(j.Spec.TimeoutSeconds)*time.Second + FinishWithin)
}

// Held answers nil while the lease of the epoch is in force at now. A lease ends
// at LeaseUntil, whether or not somebody has noticed: the host counts on it.
func (j *Job) Held(host string, epoch int64, now time.Time) error {
	if !j.State.Leased() || j.Epoch != epoch || j.Host != host || !now.Before(j.LeaseUntil) {
		return fault.Coded(fault.Conflict, CodeLeaseLost, "host %q does not hold lease %d of this job any more: stop its command and drop the result", host, epoch)
	}
	return nil
}

// Renew lengthens the lease. progressed says that the command gets on, which is
// another thing than its host being alive (lesson 38).
func (j *Job) Renew(progressed bool, now time.Time) {
	j.LeaseUntil, j.AliveAt = j.nextLease(now), now
	if progressed {
		j.ProgressAt = now
	}
}

// Complete ends the job with the exit code of its command. A command that ended
// by itself is not tried again.
func (j *Job) Complete(exit int64, message string, now time.Time) {
	j.ExitCode = &exit
	switch {
	case j.State == JobCancelling:
		j.finish(JobCancelled, message, now)
	case exit == 0:
		j.finish(JobSucceeded, message, now)
	default:
		if message == "" {
			message = fmt.Sprintf("the command ended with exit code %d", exit)
		}
		j.finish(JobFailed, message, now)
	}
}

// Fail ends the attempt because the host could not run the command to its end;
// the job is queued again while it has attempts left.
func (j *Job) Fail(message string, again bool, now time.Time) {
	switch {
	case j.State == JobCancelling:
		j.finish(JobCancelled, message, now)
	case !again || j.Attempt >= j.Spec.MaxAttempts:
		j.finish(JobFailed, fmt.Sprintf("attempt %d of %d: %s", j.Attempt, j.Spec.MaxAttempts, message), now)
	default:
		j.State, j.LeaseUntil = JobQueued, time.Time{}
		j.Message = fmt.Sprintf("queued again after attempt %d of %d on host %q: %s", j.Attempt, j.Spec.MaxAttempts, j.Host, message)
	}
}

// Expire takes the lease back from a host that let it end. It reports whether
// there was one to take.
func (j *Job) Expire(now time.Time) bool {
	if !j.State.Leased() || now.Before(j.LeaseUntil) {
		return false
	}
	if !now.Before(j.attemptEnd()) {
		j.Fail("it did not end within its timeout", false, now)
	} else {
		j.Fail(fmt.Sprintf("host %q did not renew its lease", j.Host), true, now)
	}
	return true
}

// Cancel ends a job that waits, and has the host of one that runs stop it. A job
// that is over stays as it is.
func (j *Job) Cancel(now time.Time) error {
	switch {
	case j.State.Final():
		return fault.Coded(fault.Conflict, CodeJobFinished, "the job is %s already", j.State)
	case j.State == JobQueued:
		j.finish(JobCancelled, "cancelled before it ran", now)
	default:
		j.State = JobCancelling
	}
	return nil
}

func (j *Job) finish(s JobState, message string, now time.Time) {
	j.State, j.Message, j.FinishedAt, j.LeaseUntil = s, message, now, time.Time{}
}

// Bounds of a job's log.
const (
	MaxLogChunk = 256 << 10
	MaxLogBytes = 16 << 20 // of one attempt
)

// Claim is a host's request for work.
type Claim struct {
	Host        string
	MemoryBytes int64 // what a job may need; MaxInt64 when not said
	DiskBytes   int64
}

// ParseClaim reads the body of POST /v1/work/claims.
func ParseClaim(body []byte) (Claim, error) {
	o, p := parse(body)
	c := Claim{MemoryBytes: math.MaxInt64, DiskBytes: math.MaxInt64}
	c.Host, _ = o.name("host", 255, required)
	o.integerInto(&c.MemoryBytes, "memoryBytes", 0, maxBytes)
	o.integerInto(&c.DiskBytes, "diskBytes", 0, maxBytes)
	o.noOthers()
	return c, p.err()
}

// Lease names the lease that a host speaks for.
type Lease struct {
	Host  string
	Epoch int64
}

func (o *object) lease() (l Lease) {
	l.Host, _ = o.name("host", 255, required)
	l.Epoch, _ = o.integer("leaseEpoch", 1, maxBytes, required)
	return l
}

// ParseRenew reads the body of POST /v1/work/{id}/renew.
func ParseRenew(body []byte) (l Lease, progressed bool, err error) {
	o, p := parse(body)
	l = o.lease()
	progressed, _ = o.boolean("progressed", optional)
	o.noOthers()
	return l, progressed, p.err()
}

// maxMessage bounds what a host says about an end, in characters.
const maxMessage = 2000

// Ending is how an attempt ended.
type Ending struct {
	Lease
	ExitCode int64 // of the command
	Message  string
	Retry    bool // for an attempt that failed: another host may have more luck
}

// ParseComplete reads the body of POST /v1/work/{id}/complete.
func ParseComplete(body []byte) (Ending, error) {
	o, p := parse(body)
	e := Ending{Lease: o.lease()}
	e.ExitCode, _ = o.integer("exitCode", math.MinInt32, math.MaxInt32, required)
	e.Message, _ = o.text("message", 0, maxMessage, optional)
	o.noOthers()
	return e, p.err()
}

// ParseFail reads the body of POST /v1/work/{id}/fail.
func ParseFail(body []byte) (Ending, error) {
	o, p := parse(body)
	e := Ending{Lease: o.lease(), Retry: true}
	e.Message, _ = o.text("message", 1, maxMessage, required)
	if retry, ok := o.boolean("retry", optional); ok {
		e.Retry = retry
	}
	o.noOthers()
	return e, p.err()
}

// LogChunk is some bytes of the output of an attempt.
type LogChunk struct {
	Lease
	Offset int64 // of the first byte, from the attempt's start
	Data   []byte
}

// ParseLog reads the body of POST /v1/work/{id}/logs.
func ParseLog(body []byte) (LogChunk, error) {
	o, p := parse(body)
	c := LogChunk{Lease: o.lease()}
	c.Offset, _ = o.integer("offset", 0, maxBytes, required)
	if v, ok := o.take("data", required); ok {
		if v.Kind() != '"' || json.Unmarshal(v, &c.Data) != nil || len(c.Data) == 0 || len(c.Data) > MaxLogChunk {
			p.add("data", "must be the base64 of 1 to %d bytes", MaxLogChunk)
		}
	}
	o.noOthers()
	return c, p.err()
}
