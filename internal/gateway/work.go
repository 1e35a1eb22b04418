package gateway

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// QueueWork puts a job into the app's queue. key is the Idempotency-Key, or empty.
func (g *Gateway) QueueWork(ctx context.Context, who Caller, body []byte, key string) (out api.Work, err error) {
	spec, err := open(ctx, g, &who, fleet.WorkInsert, func() (fleet.JobSpec, error) { return fleet.ParseJob(body) })
	if err != nil {
		return out, err
	}
	j := fleet.Job{ID: fleet.NewID(), AppID: who.appID, Creator: who.id(), Spec: spec, State: fleet.JobQueued}
	err = g.write(ctx, &who, func(tx *store.Tx) error {
		return once(tx, &who, "work", key, body, &out, func() error {
			j.CreatedAt, j.QueuedAt = tx.Now, tx.Now
			out = workView(&j)
			return tx.InsertJob(&j)
		})
	})
	return out, err
}

// ListWork answers a page of the app's jobs, oldest first.
func (g *Gateway) ListWork(ctx context.Context, who Caller, q url.Values) (api.DataList[api.Work], error) {
	var state fleet.JobState
	p, err := open(ctx, g, &who, fleet.WorkRead, func() (p listPage, err error) {
		if state, err = oneOf(q, "state", fleet.JobStates); err != nil {
			return p, err
		}
		return parsePage(q)
	})
	if err != nil {
		return api.DataList[api.Work]{}, err
	}
	return page(ctx, g, &who, p, func(tx *store.Tx) ([]store.Job, int64, error) {
		total, err := tx.CountJobs(who.appID, state)
		if err != nil {
			return nil, 0, err
		}
		jobs, err := tx.Jobs(who.appID, state, p.Limit, p.Offset)
		return jobs, total, err
	}, func(j *store.Job) api.Work { return workView(&j.Job) })
}

// GetWork answers one job.
func (g *Gateway) GetWork(ctx context.Context, who Caller, id string) (out api.Work, err error) {
	if err := g.enter(ctx, &who, fleet.WorkRead); err != nil {
		return out, err
	}
	err = g.read(ctx, &who, func(tx *store.Tx) error {
		j, err := tx.Job(who.appID, id)
		out = workView(&j.Job)
		return noWork(err, id)
	})
	return out, err
}

// CancelWork ends a job that waits, and has the host of one that runs stop it.
func (g *Gateway) CancelWork(ctx context.Context, who Caller, id string) (out api.Work, err error) {
	if err := g.enter(ctx, &who, fleet.WorkCancel); err != nil {
		return out, err
	}
	err = g.changeWork(ctx, &who, id, func(tx *store.Tx, j *store.Job) error {
		if j.State == fleet.JobCancelling || j.State == fleet.JobCancelled {
			return nil
		}
		return j.Cancel(tx.Now)
	}, &out)
	return out, err
}

// maxLogAnswer bounds the bytes of one answer.
const maxLogAnswer = 1 << 20

// WorkLog answers a part of the log of a job's last attempt, from the offset in
// the query on.
func (g *Gateway) WorkLog(ctx context.Context, who Caller, id string, q url.Values) (out api.WorkLog, err error) {
	offset, err := open(ctx, g, &who, fleet.WorkRead, func() (int64, error) {
		n, err := strconv.ParseInt(q.Get("offset"), 10, 64)
		if q.Get("offset") != "" && (err != nil || n < 0) {
			return 0, invalidQuery([]fault.Field{{Path: "offset", Message: "must be a whole number of at least 0"}})
		}
		return n, nil
	})
	if err != nil {
		return out, err
	}
	err = g.read(ctx, &who, func(tx *store.Tx) error {
		j, err := tx.Job(who.appID, id)
		if err != nil {
			return noWork(err, id)
		}
		out = api.WorkLog{Attempt: j.Attempt, Offset: min(offset, j.LogBytes), Data: []byte{}}
		parts, err := tx.Log(id, j.Epoch, out.Offset, 1+maxLogAnswer/4096)
		for _, p := range parts {
			if skip := out.Offset + int64(len(out.Data)) - p.Start; skip < int64(len(p.Data)) && len(out.Data) < maxLogAnswer {
				out.Data = append(out.Data, p.Data[skip:]...)
			}
		}
		out.Data = out.Data[:min(len(out.Data), maxLogAnswer)]
		out.Next = out.Offset + int64(len(out.Data))
		out.End = j.State.Final() && out.Next == j.LogBytes
		return err
	})
	return out, err
}

// ClaimWork gives the host a job whose turn it is, or none. Work goes only to a
// host that asks for it, whose heartbeat is fresh and whose slots are not full.
func (g *Gateway) ClaimWork(ctx context.Context, who Caller, body []byte, key string) (out api.ClaimAnswer, err error) {
	in, err := open(ctx, g, &who, fleet.WorkClaim, func() (fleet.Claim, error) { return fleet.ParseClaim(body) })
	if err == nil {
		err = g.refuse(ctx, &who, who.host(in.Host))
	}
	if err != nil {
		return out, err
	}
	err = g.write(ctx, &who, func(tx *store.Tx) error {
		if _, err := expire(tx); err != nil {
			return err
		}
		host, err := tx.Host(who.appID, in.Host)
		if errors.Is(err, store.ErrNotFound) {
			return fault.Coded(fault.Conflict, fleet.CodeHostUnknown, "host %q has sent no heartbeat yet; send one, then ask for work", in.Host)
		}
		if err != nil {
			return err
		}
		if err := host.MayWork(g.o.Protocol, wholeMicros(tx.Now)); err != nil {
			return err
		}
		out.Data = nil
		return once(tx, &who, "claims/"+in.Host, key, body, &out, func() (err error) {
			out.Data, err = claim(tx, &host, &in)
			return err
		})
	})
	return out, err
}

// claim leases the next job, if there is one and the host has a slot.
func claim(tx *store.Tx, host *fleet.Host, in *fleet.Claim) (*api.ClaimedWork, error) {
	if err := tx.LockHost(host.AppID, host.Name); err != nil {
		return nil, err
	}
	held, err := tx.CountLeases(host.AppID, host.Name)
	if err != nil || held >= host.SlotsTotal {
		return nil, err
	}
	j, err := tx.NextJob(host.AppID, in.MemoryBytes, in.DiskBytes)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	j.Claim(host.Name, tx.Now)
	if err := tx.UpdateJob(&j); err != nil {
		return nil, err
	}
	return claimedView(&j.Job), tx.Served(&j)
}

// RenewWork keeps a job for its host.
func (g *Gateway) RenewWork(ctx context.Context, who Caller, id string, body []byte) (out api.RenewedWork, err error) {
	var progressed bool
	lease, err := open(ctx, g, &who, fleet.WorkClaim, func() (l fleet.Lease, err error) {
		l, progressed, err = fleet.ParseRenew(body)
		return l, err
	})
	if err != nil {
		return out, err
	}
	err = g.changeHeld(ctx, &who, id, lease, func(tx *store.Tx, j *store.Job) error {
		j.Renew(progressed, tx.Now)
		out = api.RenewedWork{LeaseSeconds: int64(j.LeaseUntil.Sub(tx.Now) / time.Second), RenewSeconds: int64(fleet.RenewEvery / time.Second), Cancel: j.State == fleet.JobCancelling}
		return nil
	}, nil)
	return out, err
}

// CompleteWork records that a job's command ended.
func (g *Gateway) CompleteWork(ctx context.Context, who Caller, id string, body []byte) (out api.Work, err error) {
	in, err := open(ctx, g, &who, fleet.WorkClaim, func() (fleet.Ending, error) { return fleet.ParseComplete(body) })
	if err != nil {
		return out, err
	}
	err = g.changeHeld(ctx, &who, id, in.Lease, func(tx *store.Tx, j *store.Job) error {
		j.Complete(in.ExitCode, in.Message, tx.Now)
		return nil
	}, &out)
	return out, err
}

// FailWork records that the host could not run a job's command to its end.
func (g *Gateway) FailWork(ctx context.Context, who Caller, id string, body []byte) (out api.Work, err error) {
	in, err := open(ctx, g, &who, fleet.WorkClaim, func() (fleet.Ending, error) { return fleet.ParseFail(body) })
	if err != nil {
		return out, err
	}
	err = g.changeHeld(ctx, &who, id, in.Lease, func(tx *store.Tx, j *store.Job) error {
		j.Fail(in.Message, in.Retry, tx.Now)
		return nil
	}, &out)
	return out, err
}

// AppendWorkLog adds output of a job's command. Bytes that are there already are
// skipped, so that a chunk whose answer was lost can be sent again.
func (g *Gateway) AppendWorkLog(ctx context.Context, who Caller, id string, body []byte) (out api.WorkLogPosition, err error) {
	in, err := open(ctx, g, &who, fleet.WorkClaim, func() (fleet.LogChunk, error) { return fleet.ParseLog(body) })
	if err != nil {
		return out, err
	}
	err = g.changeHeld(ctx, &who, id, in.Lease, func(tx *store.Tx, j *store.Job) error {
		if in.Offset > j.LogBytes && j.LogBytes < fleet.MaxLogBytes {
			return fault.Coded(fault.Conflict, "log_gap", "the log has %d bytes; send from there on", j.LogBytes)
		}
		data := in.Data[min(int64(len(in.Data)), max(0, j.LogBytes-in.Offset)):]
		data = data[:min(int64(len(data)), fleet.MaxLogBytes-j.LogBytes)]
		if len(data) > 0 {
			if err := tx.AppendLog(j, data); err != nil {
				return err
			}
		}
		j.ProgressAt = tx.Now
		out = api.WorkLogPosition{Next: j.LogBytes, Truncated: j.LogBytes == fleet.MaxLogBytes}
		return nil
	}, nil)
	return out, err
}

// changeWork reads a job, changes it and writes it back. A lease that has ended
// is taken back first.
func (g *Gateway) changeWork(ctx context.Context, who *Caller, id string, change func(*store.Tx, *store.Job) error, out *api.Work) error {
	return g.write(ctx, who, func(tx *store.Tx) error {
		j, err := tx.Job(who.appID, id)
		if err != nil {
			return noWork(err, id)
		}
		j.Expire(tx.Now)
		if err := change(tx, &j); err != nil {
			return err
		}
		if out != nil {
			*out = workView(&j.Job)
		}
		return tx.UpdateJob(&j)
	})
}

// changeHeld is changeWork for the holder of the lease.
func (g *Gateway) changeHeld(ctx context.Context, who *Caller, id string, l fleet.Lease, change func(*store.Tx, *store.Job) error, out *api.Work) error {
	if err := g.refuse(ctx, who, who.host(l.Host)); err != nil {
		return err
	}
	return g.changeWork(ctx, who, id, func(tx *store.Tx, j *store.Job) error {
		if err := j.Held(l.Host, l.Epoch, tx.Now); err != nil {
			return err
		}
		return change(tx, j)
	}, out)
}

// expire takes back leases that have ended, of all apps, and says how many.
func expire(tx *store.Tx) (int, error) {
	const batch = 200
	jobs, err := tx.JobsOverdue(batch)
	for i := range jobs {
		if err == nil && jobs[i].Expire(tx.Now) {
			err = tx.UpdateJob(&jobs[i])
		}
	}
	return len(jobs), err
}

func noWork(err error, id string) error {
	return notFound(err, "there is no job %q in this app; list them with: outcrop work list", id)
}

func workView(j *fleet.Job) api.Work {
	return api.Work{
		ID: j.ID, Name: j.Spec.Name, Command: j.Spec.Command, EnvNames: append([]string{}, slices.Sorted(maps.Keys(j.Spec.Env))...), Image: j.Spec.Image,
		TimeoutSeconds: j.Spec.TimeoutSeconds, MemoryBytes: j.Spec.MemoryBytes, DiskBytes: j.Spec.DiskBytes, MaxAttempts: j.Spec.MaxAttempts,
		CreatedBy: j.Creator, State: string(j.State), Message: orNil(j.Message), Attempt: j.Attempt, Host: orNil(j.Host), ExitCode: j.ExitCode, LogBytes: j.LogBytes,
		CreatedAt: j.CreatedAt, StartedAt: optional(j.StartedAt), AliveAt: optional(j.AliveAt), ProgressAt: optional(j.ProgressAt),
		LeaseUntil: optional(j.LeaseUntil), FinishedAt: optional(j.FinishedAt),
	}
}

func claimedView(j *fleet.Job) *api.ClaimedWork {
	env := j.Spec.Env
	if env == nil {
		env = map[string]string{}
	}
	return &api.ClaimedWork{
		ID: j.ID, Name: j.Spec.Name, Command: j.Spec.Command, Env: env, Image: j.Spec.Image, TimeoutSeconds: j.Spec.TimeoutSeconds,
		MemoryBytes: j.Spec.MemoryBytes, DiskBytes: j.Spec.DiskBytes, Attempt: j.Attempt, MaxAttempts: j.Spec.MaxAttempts, LeaseEpoch: j.Epoch,
		LeaseSeconds: int64(fleet.LeaseFor / time.Second), RenewSeconds: int64(fleet.RenewEvery / time.Second),
	}
}
