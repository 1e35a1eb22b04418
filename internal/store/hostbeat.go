package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

// HostBeat is a runner host's heartbeat on its way into the database.
type HostBeat struct {
	AppID string
	fleet.Heartbeat
	// Nonce of a signed request, taken in the same step; nil for an unsigned one.
	Nonce *Nonce

	// Result is the host after this beat, set once it is committed.
	Result fleet.Host
}

// HostHeartbeat writes a beat and returns after the commit; ErrReplayed when its
// nonce was taken. Beats that wait together share statements.
func (db *DB) HostHeartbeat(ctx context.Context, b *HostBeat) error {
	return db.w.do(&write{ctx: ctx, host: b, done: make(chan struct{})})
}

type hostKey struct{ app, host string }

func (b *HostBeat) key() hostKey { return hostKey{b.AppID, b.Host} }

func (k hostKey) compare(o hostKey) int {
	return cmp.Or(strings.Compare(k.app, o.app), strings.Compare(k.host, o.host))
}

// applyHostBeats writes beats in chunks, each under its own savepoint. A chunk
// that fails is done again one by one, so that each caller gets its own error.
// All servers on a database go in one order, so that none waits for another that
// waits for it.
func (w *writer) applyHostBeats(tx *Tx, ops []*write) error {
	slices.SortStableFunc(ops, func(a, b *write) int { return a.host.key().compare(b.host.key()) })
	registered := map[string]int64{}
	for len(ops) > 0 {
		chunk := hostChunk(ops, w.db.dialect.hostChunk)
		ops = ops[len(chunk):]
		part, whole := tx.hostBeats(chunk, registered)
		for i := 0; part != nil && whole == nil && i < len(chunk); i++ {
			op := chunk[i]
			op.err = nil
			var alone error
			if alone, whole = tx.hostBeats(chunk[i:i+1], registered); alone != nil {
				op.err = alone
			}
		}
		if whole != nil {
			return whole
		}
	}
	for _, app := range slices.Sorted(maps.Keys(registered)) {
		if _, err := tx.exec(`UPDATE apps SET hosts = hosts + $2 WHERE id = $1`, app, registered[app]); err != nil {
			return err
		}
	}
	return nil
}

// hostChunk is the longest start of the sorted ops, of at most n, in which no
// host comes twice: one statement may not touch a row twice. Nor does a nonce
// then, as a runner key speaks for one host.
func hostChunk(ops []*write, n int) []*write {
	n = min(n, len(ops))
	for i := 1; i < n; i++ {
		if ops[i-1].host.key() == ops[i].host.key() {
			return ops[:i]
		}
	}
	return ops[:n]
}

func sameNonce(a, b *Nonce) bool {
	return a != nil && b != nil && a.KeyID == b.KeyID && a.Nonce == b.Nonce
}

// hostBeats takes the nonces and writes the rows of a chunk, under one savepoint,
// and adds to registered how many hosts of each app are new. A replay is that
// caller's error and leaves the others alone.
func (tx *Tx) hostBeats(ops []*write, registered map[string]int64) (part, whole error) {
	var added map[string]int64
	part, whole = tx.savepoint(func(tx *Tx) (err error) {
		if err = tx.takeNonces(ops); err != nil {
			return err
		}
		live := make([]*write, 0, len(ops))
		for _, op := range ops {
			if op.err == nil {
				live = append(live, op)
			}
		}
		if len(live) > 0 {
			added, err = tx.upsertHosts(live)
		}
		return err
	})
	if part == nil && whole == nil {
		for app, n := range added {
			registered[app] += n
		}
	}
	return part, whole
}

func (tx *Tx) takeNonces(ops []*write) error {
	args := make([]any, 1, 1+3*len(ops))
	args[0] = tx.Now.Unix()
	for _, op := range ops {
		if n := op.host.Nonce; n != nil {
			op.err = ErrReplayed // until the database says otherwise
			args = append(args, n.KeyID, n.Nonce, n.KeepUntil.Unix())
		}
	}
	if len(args) == 1 {
		return nil
	}
	return tx.each(nonceSQL((len(args)-1)/3), args, func(scan scanFunc) error {
		var n Nonce
		if err := scan(&n.KeyID, &n.Nonce); err != nil {
			return err
		}
		for _, op := range ops {
			if sameNonce(op.host.Nonce, &n) {
				op.err = nil
			}
		}
		return nil
	})
}

const hostColumns = 10

// upsertHosts writes one row for each and returns how many are new, by app.
func (tx *Tx) upsertHosts(ops []*write) (added map[string]int64, err error) {
	args := make([]any, 1, 1+hostColumns*len(ops))
	args[0] = micros(tx.Now)
	for _, op := range ops {
		if args, err = appendHost(args, op.host, micros(tx.Now)); err != nil {
			return nil, err
		}
	}
	found := 0
	added = map[string]int64{}
	err = tx.each(hostSQL(len(ops)), args, func(scan scanFunc) error {
		var k hostKey
		var success, failed, beats int64
		var text, update string
		if err := scan(&k.app, &k.host, &success, &failed, &text, &update, &beats); err != nil {
			return err
		}
		if beats == 1 {
			added[k.app]++
		}
		for _, op := range ops {
			if op.host.key() == k {
				found++
				return tx.answer(op.host, success, failed, text, update)
			}
		}
		return nil
	})
	if err == nil && found != len(ops) {
		err = errors.New("store: a heartbeat's row did not come back")
	}
	return added, err
}

func (tx *Tx) answer(b *HostBeat, success, failed int64, text, update string) error {
	b.Result = fleet.Host{AppID: b.AppID, Name: b.Host, HostReport: b.HostReport, SeenAt: fromMicros(micros(tx.Now)), SuccessAt: fromMicros(success)}
	return scanHostRest(&b.Result, failed, text, update)
}

// appendHost adds the columns of one row, in the order of hostSQL. A zero success
// or error, and an empty text, mean that the stored one stays.
func appendHost(args []any, b *HostBeat, now int64) ([]any, error) {
	var success, failed, hindered int64
	var text, update []byte
	report, err := json.Marshal(&b.HostReport)
	switch {
	case err != nil:
	case b.Error != nil:
		failed = now
		text, err = json.Marshal(b.Error)
	case b.Asked:
		success = now
	}
	if err == nil && b.LastUpdate != nil {
		update, err = json.Marshal(b.LastUpdate)
	}
	if b.Blocked != "" || b.LowDisk != nil {
		hindered = 1
	}
	return append(args, b.AppID, b.Host, success, failed, b.PollSeconds, b.Protocol, hindered, string(report), string(text), string(update)), err
}

// rows is the VALUES list of n rows of columns parameters each, the first being
// number first; before and after stand in each row as they are.
func rows(n, columns, first int, before, after string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("(" + before)
		for j := range columns {
			if j > 0 {
				b.WriteByte(',')
			}
			b.WriteString("$" + strconv.Itoa(first+i*columns+j))
		}
		b.WriteString(after + ")")
	}
	return b.String()
}

var nonceStatements, hostStatements sync.Map // texts by their number of rows

// nonceSQL takes n nonces.
func nonceSQL(n int) string {
	if q, ok := nonceStatements.Load(n); ok {
		return q.(string)
	}
	q := `INSERT INTO nonces (key_id, nonce, keep_until) VALUES ` + rows(n, 3, 2, "", "") + nonceUpsert
	nonceStatements.Store(n, q)
	return q
}

// hostSQL is the upsert of n host rows (contract ).
func hostSQL(n int) string {
	if q, ok := hostStatements.Load(n); ok {
		return q.(string)
	}
	q := `INSERT INTO hosts (seen_at, app_id, host, success_at, error_at, poll_seconds, protocol, hindered, report, error, last_update, beats) VALUES ` +
		rows(n, hostColumns, 2, "$1,", ",1") + ` ON CONFLICT (app_id, host) DO UPDATE SET
		seen_at = excluded.seen_at, poll_seconds = excluded.poll_seconds, protocol = excluded.protocol,
		hindered = excluded.hindered, report = excluded.report, beats = hosts.beats + 1,
		success_at = CASE WHEN excluded.success_at = 0 THEN hosts.success_at ELSE excluded.success_at END,
		error_at = CASE WHEN excluded.error_at = 0 THEN hosts.error_at ELSE excluded.error_at END,
		error = CASE WHEN excluded.error = '' THEN hosts.error ELSE excluded.error END,
		last_update = CASE WHEN excluded.last_update = '' THEN hosts.last_update ELSE excluded.last_update END
		RETURNING app_id, host, success_at, error_at, error, last_update, beats`
	hostStatements.Store(n, q)
	return q
}
