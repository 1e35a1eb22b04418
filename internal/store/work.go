package store

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

const jobSelect = `SELECT j.id, j.app_id, j.creator, j.spec, j.state, j.attempt, j.epoch, j.host, j.exit_code, j.message, j.log_bytes,
	j.created_at, j.queued_at, j.started_at, j.lease_until, j.alive_at, j.progress_at, j.finished_at, j.version FROM jobs j `

// Job is a job with the version of its row, so that an update finds out when
// somebody else was faster.
type Job struct {
	fleet.Job
	version int64
}

func scanJob(scan scanFunc) (j Job, err error) {
	var spec string
	var created, queued, started, lease, alive, progress, finished int64
	if err = scan(&j.ID, &j.AppID, &j.Creator, &spec, &j.State, &j.Attempt, &j.Epoch, &j.Host, &j.ExitCode, &j.Message, &j.LogBytes,
		&created, &queued, &started, &lease, &alive, &progress, &finished, &j.version); err != nil {
		return j, err
	}
	j.CreatedAt, j.QueuedAt, j.StartedAt, j.LeaseUntil = fromMicros(created), fromMicros(queued), fromMicros(started), fromMicros(lease)
	j.AliveAt, j.ProgressAt, j.FinishedAt = fromMicros(alive), fromMicros(progress), fromMicros(finished)
	return j, json.Unmarshal([]byte(spec), &j.Spec)
}

// Job reads one job of an app; ErrNotFound for another app's.
func (tx *Tx) Job(appID, id string) (Job, error) {
	return one(tx, jobSelect+`WHERE j.id = $1 AND j.app_id = $2`, []any{id, appID}, scanJob)
}

// Jobs reads a page of an app's jobs, oldest first; an empty state is all.
func (tx *Tx) Jobs(appID string, state fleet.JobState, limit, offset int64) ([]Job, error) {
	return list(tx, jobSelect+`WHERE j.app_id = $1 AND ($2 = '' OR j.state = $2) ORDER BY j.created_at, j.id LIMIT $3 OFFSET $4`,
		[]any{appID, string(state), limit, offset}, scanJob)
}

// CountJobs is how many jobs an app has in the state; an empty state is all.
func (tx *Tx) CountJobs(appID string, state fleet.JobState) (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM jobs WHERE app_id = $1 AND ($2 = '' OR state = $2)`, []any{appID, string(state)}, &n)
}

// CountLeases is how many jobs a host of the app holds.
func (tx *Tx) CountLeases(appID, host string) (n int64, err error) {
	return n, tx.get(`SELECT COUNT(*) FROM jobs WHERE app_id = $1 AND host = $2 AND lease_until <> 0`, []any{appID, host}, &n)
}

// InsertJob queues a new job. Its creator, when nothing of it waits, goes to the
// end of the round.
func (tx *Tx) InsertJob(j *fleet.Job) error {
	spec, err := json.Marshal(&j.Spec)
	if err != nil {
		return err
	}
	if _, err = tx.exec(`INSERT INTO jobs (id, app_id, creator, spec, memory_bytes, disk_bytes, state, attempt, epoch, host, exit_code, message, log_bytes,
		created_at, queued_at, started_at, lease_until, alive_at, progress_at, finished_at, version)
		VALUES ($1, $2, $3, $4, $5, $6, 'queued', 0, 0, '', NULL, '', 0, $7, $7, 0, 0, 0, 0, 0, 1)`,
		j.ID, j.AppID, j.Creator, string(spec), j.Spec.MemoryBytes, j.Spec.DiskBytes, micros(j.CreatedAt)); err != nil {
		return err
	}
	return tx.lastTurn(j, false)
}

// lastTurn puts the creator at the end of the round; unless served, only one that
// is not in it.
func (tx *Tx) lastTurn(j *fleet.Job, served bool) error {
	q := `INSERT INTO job_turns (app_id, creator, turn) VALUES ($1, $2, (SELECT COALESCE(MAX(turn), 0) + 1 FROM job_turns WHERE app_id = $1)) ON CONFLICT (app_id, creator) DO `
	if served {
		q += `UPDATE SET turn = excluded.turn`
	} else {
		q += `NOTHING`
	}
	_, err := tx.exec(q, j.AppID, j.Creator)
	return err
}

// NextJob is the job whose turn it is on a host with so much room, in bytes: the
// oldest of the creator that waits longest. ErrNotFound when none fits.
func (tx *Tx) NextJob(appID string, memory, disk int64) (Job, error) {
	return one(tx, jobSelect+`JOIN job_turns t ON t.app_id = j.app_id AND t.creator = j.creator WHERE t.app_id = $1 AND j.id =
		(SELECT q.id FROM jobs q WHERE q.app_id = $1 AND q.creator = t.creator AND q.state = 'queued' AND q.memory_bytes <= $2 AND q.disk_bytes <= $3
		ORDER BY q.queued_at, q.id LIMIT 1) ORDER BY t.turn, t.creator LIMIT 1`, []any{appID, memory, disk}, scanJob)
}

// LockHost makes claims of one host wait for one another, on whatever server of
// the database: each counts what the host holds before it takes more.
func (tx *Tx) LockHost(appID, host string) error {
	return tx.must(ErrNotFound, `UPDATE hosts SET host = host WHERE app_id = $1 AND host = $2`, appID, host)
}

// Served puts the creator of a job that was claimed at the end of the round.
func (tx *Tx) Served(j *Job) error { return tx.lastTurn(&j.Job, true) }

// UpdateJob writes a job as it was read and then changed; ErrStale when somebody
// else changed it meanwhile.
func (tx *Tx) UpdateJob(j *Job) error {
	return tx.must(ErrStale, `UPDATE jobs SET state = $3, attempt = $4, epoch = $5, host = $6, exit_code = $7, message = $8, log_bytes = $9,
		queued_at = $10, started_at = $11, lease_until = $12, alive_at = $13, progress_at = $14, finished_at = $15, version = version + 1
		WHERE id = $1 AND version = $2`,
		j.ID, j.version, string(j.State), j.Attempt, j.Epoch, j.Host, j.ExitCode, j.Message, j.LogBytes,
		micros(j.QueuedAt), micros(j.StartedAt), micros(j.LeaseUntil), micros(j.AliveAt), micros(j.ProgressAt), micros(j.FinishedAt))
}

// JobsOverdue reads up to limit jobs, of all apps, whose lease has ended.
func (tx *Tx) JobsOverdue(limit int64) ([]Job, error) {
	return list(tx, jobSelect+`WHERE j.lease_until <> 0 AND j.lease_until <= $1 ORDER BY j.lease_until LIMIT $2`, []any{micros(tx.Now), limit}, scanJob)
}

// ForgetJobs removes up to limit jobs that ended before t, with their logs, and
// the turns of creators with nothing queued.
func (tx *Tx) ForgetJobs(t time.Time, limit int64) (int64, error) {
	n, err := tx.exec(`DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE finished_at <> 0 AND finished_at < $1 LIMIT $2)`, micros(t), limit)
	if err != nil {
		return n, err
	}
	_, err = tx.exec(`DELETE FROM job_turns WHERE NOT EXISTS
		(SELECT 1 FROM jobs q WHERE q.app_id = job_turns.app_id AND q.creator = job_turns.creator AND q.state = 'queued')`)
	return n, err
}

// LogPart is some bytes of an attempt's log.
type LogPart struct {
	Start int64 // offset of the first byte
	Data  []byte
}

// AppendLog writes the bytes that begin at the job's LogBytes and counts them;
// the caller updates the job.
func (tx *Tx) AppendLog(j *Job, data []byte) error {
	_, err := tx.exec(`INSERT INTO job_logs (job_id, epoch, start, data) VALUES ($1, $2, $3, $4)`, j.ID, j.Epoch, j.LogBytes, data)
	j.LogBytes += int64(len(data))
	return err
}

// Log reads the parts of an attempt's log that hold bytes from offset on, up to
// limit parts, in order.
func (tx *Tx) Log(jobID string, epoch, offset, limit int64) ([]LogPart, error) {
	return list(tx, `SELECT start, data FROM job_logs WHERE job_id = $1 AND epoch = $2 AND start >=
		COALESCE((SELECT MAX(start) FROM job_logs WHERE job_id = $1 AND epoch = $2 AND start <= $3), 0) ORDER BY start LIMIT $4`,
		[]any{jobID, epoch, offset, limit}, func(scan scanFunc) (p LogPart, err error) {
			return p, scan(&p.Start, &p.Data)
		})
}

// Conflict reports whether a write failed only because another one came between
// and may be done again from its start.
func Conflict(err error) bool {
	var pg *pgconn.PgError
	return errors.Is(err, ErrStale) || errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001")
}
