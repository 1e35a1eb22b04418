package fleet

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

func newJob(attempts int64) *Job {
	return &Job{ID: "j", State: JobQueued, Spec: JobSpec{TimeoutSeconds: 3600, MaxAttempts: attempts}, CreatedAt: now, QueuedAt: now}
}

// lesson 38
// lesson 39
func TestLeaseEdges(t *testing.T) {
	j := newJob(2)
	j.Claim("h", now)
	end := now.Add(LeaseFor)
	for _, c := range []struct {
		host  string
		epoch int64
		at    time.Time
		held  bool
	}{{"h", 1, end.Add(-time.Second), true}, {"h", 1, end.Add(-1), true}, {"h", 1, end, false}, {"h", 1, end.Add(time.Second), false}, {"x", 1, now, false}, {"h", 0, now, false}, {"h", 2, now, false}} {
		if err := j.Held(c.host, c.epoch, c.at); (err == nil) != c.held || err != nil && !fault.HasCode(err, CodeLeaseLost) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	j.Renew(false, now.Add(20*time.Second))
	if j.AliveAt != now.Add(20*time.Second) || j.ProgressAt != now || j.LeaseUntil != now.Add(80*time.Second) {
		t.Errorf("alive without progress: %+v", j)
	}
	j.Renew(true, now.Add(30*time.Second))
	if j.ProgressAt != now.Add(30*time.Second) {
		t.Errorf("progress: %+v", j)
	}
	if j.Expire(j.LeaseUntil.Add(-1)) || !j.Expire(j.LeaseUntil) || j.State != JobQueued || !strings.Contains(j.Message, "did not renew") {
		t.Errorf("expired: %+v", j)
	}
	j.Claim("other", now.Add(time.Hour))
	if j.Attempt != 2 || j.Epoch != 2 || j.Held("h", 1, now.Add(time.Hour)) == nil {
		t.Errorf("claimed again: %+v", j)
	}
	if j.Expire(now.Add(2 * time.Hour)); j.State != JobFailed || j.FinishedAt.IsZero() {
		t.Errorf("out of attempts: %+v", j)
	}
}

// TestTimeoutEndsRenewal: a runner that renews for ever does not keep a job.
func TestTimeoutEndsRenewal(t *testing.T) {
	j := newJob(5)
	j.Spec.TimeoutSeconds = 10
	j.Claim("h", now)
	end := now.Add(10*time.Second + FinishWithin)
	at := now
	for at.Before(end) && j.Held("h", 1, at) == nil {
		j.Renew(true, at)
		at = at.Add(RenewEvery)
	}
	if j.LeaseUntil != end || !j.Expire(end) || j.State != JobFailed || !strings.Contains(j.Message, "timeout") {
		t.Errorf("%+v", j)
	}
}

func TestEndings(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*Job)
		want JobState
	}{
		{"exit 0", func(j *Job) { j.Complete(0, "", now) }, JobSucceeded},
		{"exit 1", func(j *Job) { j.Complete(1, "", now) }, JobFailed},
		{"fail, again", func(j *Job) { j.Fail("m", true, now) }, JobQueued},
		{"fail, not again", func(j *Job) { j.Fail("m", false, now) }, JobFailed},
		{"cancelled", func(j *Job) { _ = j.Cancel(now) }, JobCancelling},
		{"cancelled, exit 0", func(j *Job) { _ = j.Cancel(now); j.Complete(0, "", now) }, JobCancelled},
		{"cancelled, fail", func(j *Job) { _ = j.Cancel(now); j.Fail("m", true, now) }, JobCancelled},
		{"cancelled, silent", func(j *Job) { _ = j.Cancel(now); j.Expire(now.Add(LeaseFor)) }, JobCancelled},
	} {
		j := newJob(3)
		j.Claim("h", now)
		c.do(j)
		if j.State != c.want || j.State.Final() != !j.FinishedAt.IsZero() || j.State.Leased() == j.LeaseUntil.IsZero() {
			t.Errorf("%s: %+v, want %s", c.name, j, c.want)
		}
		if c.want.Final() && j.Cancel(now) == nil {
			t.Errorf("%s: cancelled after its end", c.name)
		}
	}
	j := newJob(1)
	if err := j.Cancel(now); err != nil || j.State != JobCancelled {
		t.Errorf("a queued job: %v %+v", err, j)
	}
}

// contract: E-05 E-07
func TestWorkBodies(t *testing.T) {
	job := func(b []byte) error { _, err := ParseJob(b); return err }
	claim := func(b []byte) error { _, err := ParseClaim(b); return err }
	renew := func(b []byte) error { _, _, err := ParseRenew(b); return err }
	complete := func(b []byte) error { _, err := ParseComplete(b); return err }
	fail := func(b []byte) error { _, err := ParseFail(b); return err }
	chunk := func(b []byte) error { _, err := ParseLog(b); return err }
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		parse func([]byte) error
		body  string
		bad   string
	}{
		{job, `{"command":["x"]}`, ""}, {job, `{}`, "command"}, {job, `{"command":[]}`, "command"}, {job, `{"command":"x"}`, "command"}, {job, `{"command":[""]}`, "command.0"}, {job, `{"command":["x",""]}`, ""}, {job, `{"command":["x",7]}`, "command.1"},
		{job, `{"command":["x","a\u0000b"]}`, "command.1"}, {job, `{"command":["x","` + long(65535) + `"]}`, ""}, {job, `{"command":["x","` + long(65536) + `"]}`, "command"},
		{job, `{"command":["x"],"name":"` + long(255) + `"}`, ""}, {job, `{"command":["x"],"name":"` + long(256) + `"}`, "name"},
		{job, `{"command":["x"],"env":{"A":"b"}}`, ""}, {job, `{"command":["x"],"env":{"A=":"b"}}`, "env.A="}, {job, `{"command":["x"],"env":{"A":1}}`, "env.A"}, {job, `{"command":["x"],"env":{"":"b"}}`, "env."}, {job, `{"command":["x"],"env":{"A":"\u0000"}}`, "env.A"}, {job, `{"command":["x"],"env":{"A":"` + long(128<<10) + `"}}`, "env"},
		{job, `{"command":["x"],"timeoutSeconds":1}`, ""}, {job, `{"command":["x"],"timeoutSeconds":0}`, "timeoutSeconds"}, {job, `{"command":["x"],"timeoutSeconds":604800}`, ""}, {job, `{"command":["x"],"timeoutSeconds":604801}`, "timeoutSeconds"},
		{job, `{"command":["x"],"maxAttempts":10}`, ""}, {job, `{"command":["x"],"maxAttempts":11}`, "maxAttempts"}, {job, `{"command":["x"],"maxAttempts":0}`, "maxAttempts"},
		{job, `{"command":["x"],"memoryBytes":-1}`, "memoryBytes"}, {job, `{"command":["x"],"diskBytes":1.5}`, "diskBytes"}, {job, `{"command":["x"],"comand":1}`, "comand"},
		{claim, `{"host":"h"}`, ""}, {claim, `{"host":"h","memoryBytes":0,"diskBytes":1}`, ""}, {claim, `{}`, "host"}, {claim, `{"host":"h","memory":1}`, "memory"},
		{renew, `{"host":"h","leaseEpoch":1,"progressed":true}`, ""}, {renew, `{"host":"h","leaseEpoch":0}`, "leaseEpoch"}, {renew, `{"host":"h","leaseEpoch":1,"progressed":1}`, "progressed"},
		{complete, `{"host":"h","leaseEpoch":1,"exitCode":-9}`, ""}, {complete, `{"host":"h","leaseEpoch":1}`, "exitCode"}, {complete, `{"host":"h","leaseEpoch":1,"exitCode":2147483648}`, "exitCode"}, {complete, `{"host":"h","leaseEpoch":1,"exitCode":0,"message":"` + long(2001) + `"}`, "message"},
		{fail, `{"host":"h","leaseEpoch":1,"message":"m","retry":false}`, ""}, {fail, `{"host":"h","leaseEpoch":1}`, "message"}, {fail, `{"host":"h","leaseEpoch":1,"message":""}`, "message"},
		{chunk, `{"host":"h","leaseEpoch":1,"offset":0,"data":"eA=="}`, ""}, {chunk, `{"host":"h","leaseEpoch":1,"offset":0,"data":""}`, "data"}, {chunk, `{"host":"h","leaseEpoch":1,"offset":0,"data":"!"}`, "data"}, {chunk, `{"host":"h","leaseEpoch":1,"offset":-1,"data":"eA=="}`, "offset"},
	} {
		err := c.parse([]byte(c.body))
		if c.bad == "" && err != nil {
			t.Errorf("%.80s: %v", c.body, err)
		}
		if c.bad == "" {
			continue
		}
		if !fault.HasCode(err, CodeInvalidBody) || !slices.ContainsFunc(fault.From(err).Fields, func(f fault.Field) bool { return f.Path == c.bad }) {
			t.Errorf("%.80s: %v; want a problem at %s", c.body, err, c.bad)
		}
	}
	if j, err := ParseJob([]byte(`{"command":["x"]}`)); err != nil || j.TimeoutSeconds != DefaultTimeout || j.MaxAttempts != DefaultAttempts {
		t.Errorf("defaults: %+v %v", j, err)
	}
	if c, err := ParseClaim([]byte(`{"host":"h"}`)); err != nil || c.MemoryBytes != math.MaxInt64 {
		t.Errorf("defaults: %+v %v", c, err)
	}
}

// TestGrantTable: a key never gives what it lacks (contract R-25).
//
// contract: R-25
func TestGrantTable(t *testing.T) {
	k := Key{Permissions: []Permission{HostsRead, APIKeyInsert}, ExpiresAt: now}
	for _, c := range []struct {
		n  NewKey
		ok bool
	}{
		{NewKey{Permissions: []Permission{HostsRead}, ExpiresAt: now}, true}, {NewKey{Permissions: []Permission{HostsRead}, ExpiresAt: now.Add(1)}, false},
		{NewKey{Permissions: []Permission{HostsRead}}, false}, {NewKey{Permissions: []Permission{HostsRead, WorkRead}, ExpiresAt: now}, false},
	} {
		if err := k.Grant(&c.n); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.n, err)
		}
	}
	k.ExpiresAt = time.Time{}
	if err := k.Grant(&NewKey{Permissions: []Permission{HostsRead}}); err != nil {
		t.Errorf("without an end: %v", err)
	}
}
