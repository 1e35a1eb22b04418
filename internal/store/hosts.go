package store

import (
	"encoding/json"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

const hostSelect = `SELECT app_id, host, seen_at, success_at, error_at, report, error, last_update FROM hosts `

func scanHost(scan scanFunc) (h fleet.Host, err error) {
	var seen, success, failed int64
	var report, text, update string
	if err = scan(&h.AppID, &h.Name, &seen, &success, &failed, &report, &text, &update); err != nil {
		return h, err
	}
	h.SeenAt, h.SuccessAt = fromMicros(seen), fromMicros(success)
	if err = json.Unmarshal([]byte(report), &h.HostReport); err != nil {
		return h, err
	}
	return h, scanHostRest(&h, failed, text, update)
}

// scanHostRest sets what not every heartbeat says.
func scanHostRest(h *fleet.Host, failed int64, text, update string) error {
	if text != "" {
		h.LastError = &fleet.HostError{}
		if err := json.Unmarshal([]byte(text), h.LastError); err != nil {
			return err
		}
		h.LastError.At = fromMicros(failed)
	}
	if update == "" {
		return nil
	}
	h.LastUpdate = &fleet.Update{}
	return json.Unmarshal([]byte(update), h.LastUpdate)
}

// Host reads one host; ErrNotFound.
func (tx *Tx) Host(appID, name string) (fleet.Host, error) {
	return one(tx, hostSelect+`WHERE app_id = $1 AND host = $2`, []any{appID, name}, scanHost)
}

// HostPage is which part of an app's hosts is wanted, in the order of their
// names: Limit of them after the name After, less the first Offset.
type HostPage struct {
	Limit, Offset int64
	After         string
	// Status picks the hosts that have it at Now; empty: all.
	Status   fleet.HostStatus
	Protocol fleet.Protocol
	Now      time.Time
}

// hostStatus is fleet's rule for a status as SQL: $2 is the moment, $3 the
// minimum protocol (contract R-10).
var hostStatus = func() map[fleet.HostStatus]string {
	const (
		fresh  = `seen_at + 1000000 * (CASE WHEN 3 * poll_seconds > 60 THEN 3 * poll_seconds ELSE 60 END) >= $2`
		spoken = `protocol >= $3`
		failed = `(hindered = 1 OR error_at > success_at)`
	)
	return map[fleet.HostStatus]string{
		fleet.HostStale:    ` AND NOT ` + fresh + ` AND $3 > 0`,
		fleet.HostOutdated: ` AND ` + fresh + ` AND NOT ` + spoken,
		fleet.HostFailing:  ` AND ` + fresh + ` AND ` + spoken + ` AND ` + failed,
		fleet.HostOK:       ` AND ` + fresh + ` AND ` + spoken + ` AND NOT ` + failed,
	}
}()

// Hosts reads a page. Without a filter and an offset its cost does not depend on
// where in the list it stands; an offset costs a walk along the index.
func (tx *Tx) Hosts(appID string, p HostPage) ([]fleet.Host, error) {
	if p.Status != "" {
		return list(tx, hostSelect+`WHERE app_id = $1`+hostStatus[p.Status]+` AND host > $4 ORDER BY host LIMIT $5 OFFSET $6`,
			[]any{appID, micros(p.Now), p.Protocol.MinimumAt(p.Now), p.After, p.Limit, p.Offset}, scanHost)
	}
	if p.Offset == 0 {
		return list(tx, hostSelect+`WHERE app_id = $1 AND host > $2 ORDER BY host LIMIT $3`, []any{appID, p.After, p.Limit}, scanHost)
	}
	// The inner statement touches the index only.
	return list(tx, hostSelect+`WHERE app_id = $1 AND host >= (SELECT host FROM hosts WHERE app_id = $1 AND host > $2 ORDER BY host LIMIT 1 OFFSET $3)
		ORDER BY host LIMIT $4`, []any{appID, p.After, p.Offset, p.Limit}, scanHost)
}

// CountHosts is how many hosts of the app the page's filter lets through.
func (tx *Tx) CountHosts(appID string, p HostPage) (n int64, err error) {
	if p.Status == "" {
		return n, tx.get(`SELECT hosts FROM apps WHERE id = $1`, []any{appID}, &n)
	}
	return n, tx.get(`SELECT COUNT(*) FROM hosts WHERE app_id = $1`+hostStatus[p.Status],
		[]any{appID, micros(p.Now), p.Protocol.MinimumAt(p.Now)}, &n)
}

// DeleteHost forgets a host; ErrNotFound.
func (tx *Tx) DeleteHost(appID, name string) error {
	if err := tx.must(ErrNotFound, `DELETE FROM hosts WHERE app_id = $1 AND host = $2`, appID, name); err != nil {
		return err
	}
	_, err := tx.exec(`UPDATE apps SET hosts = hosts - 1 WHERE id = $1`, appID)
	return err
}

// HostsSilentSince reads up to limit hosts without a heartbeat since t. It walks
// the whole table: for a loop that comes by rarely.
func (tx *Tx) HostsSilentSince(t time.Time, limit int64) ([]fleet.Host, error) {
	return list(tx, hostSelect+`WHERE seen_at < $1 LIMIT $2`, []any{micros(t), limit}, scanHost)
}
