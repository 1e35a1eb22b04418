package fleet

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// Host is a runner host as the platform knows it: what it last reported, with
// the platform's own moments (contract ).
type Host struct {
	AppID string
	Name  string
	HostReport
	SeenAt     time.Time  // the last heartbeat
	SuccessAt  time.Time  // the last request for work that went well; zero: never
	LastError  *HostError // the last one that did not
	LastUpdate *Update
}

// HostReport is what every heartbeat sets anew.
type HostReport struct {
	CLIVersion  string
	Protocol    int64 // gateway contract that the runner was built against; 0: not said
	PollSeconds int64
	SlotsUsed   int64 // may be above SlotsTotal
	SlotsTotal  int64
	LowDisk     *LowDisk // the runner holds off new work for want of disk
	Blocked     string   // why a check of the runner's own keeps it from work; empty: none
}

// HostError is what the platform answered to a host's request for work.
type HostError struct {
	Code    string
	Message string
	At      time.Time
}

// LowDisk is free and needed space in bytes.
type LowDisk struct{ Free, Needed int64 }

// Update is a runner's last update of itself (contract R-05).
type Update struct {
	From, To string
	Outcome  string
	Reason   *string
	At       time.Time // zero: not said
}

// UpdateOutcomes are the values of [Update.Outcome].
var UpdateOutcomes = []string{"updated", "rolled_back", "verification_failed", "not_published", "retrying"}

// Heartbeat is one report of a host.
type Heartbeat struct {
	Host string
	HostReport
	Asked      bool       // this poll made a request for work
	Error      *HostError // and was answered with this; At is zero
	LastUpdate *Update    // nil leaves the stored one
}

// maxBytes is the largest whole number that JSON's readers agree on.
const maxBytes = 1<<53 - 1

// ParseHeartbeat reads the body of POST /v1/hosts/heartbeat (contract R-02 to
// Unknown fields are ignored: a runner may be newer than the server
// (contract E-05).
func ParseHeartbeat(body []byte) (Heartbeat, error) {
	var h Heartbeat
	o, p := parse(body)
	h.Host, _ = o.name("host", 255, required)
	h.CLIVersion, _ = o.text("cliVersion", 1, 64, required)
	h.Protocol, _ = o.integer("runnerProtocol", 0, 1_000_000, optional)
	h.PollSeconds, _ = o.integer("pollSeconds", 1, 86_400, required)
	h.SlotsUsed, _ = o.integer("slotsUsed", 0, math.MaxInt64, required)
	h.SlotsTotal, _ = o.integer("slotsTotal", 1, math.MaxInt64, required)
	if w, ok := o.object("workRequest", optional); ok {
		h.Asked = true
		h.Error = w.hostError()
	}
	if u, ok := o.object("lastUpdate", optional); ok {
		h.LastUpdate = u.update()
	}
	if d, ok := o.object("lowDisk", optional); ok {
		h.LowDisk = &LowDisk{}
		h.LowDisk.Free, _ = d.integer("free", 0, maxBytes, required)
		h.LowDisk.Needed, _ = d.integer("needed", 0, maxBytes, required)
	}
	if b, ok := o.object("blocked", optional); ok {
		h.Blocked, _ = b.text("reason", 1, 500, required)
	}
	return h, p.err()
}

func (o *object) hostError() *HostError {
	ok, read := o.boolean("ok", required)
	if ok || !read {
		return nil
	}
	e := &HostError{}
	e.Code, _ = o.text("code", 1, 100, required)
	e.Message, _ = o.text("message", 1, 500, required)
	return e
}

func (o *object) update() *Update {
	u := &Update{}
	u.From, _ = o.text("from", 1, 64, required)
	u.To, _ = o.text("to", 1, 64, required)
	if v, ok := o.take("outcome", required); ok {
		if u.Outcome, _ = unquote(v); !slices.Contains(UpdateOutcomes, u.Outcome) {
			o.p.add(o.path+"outcome", "must be one of %v", UpdateOutcomes)
		}
	}
	if v, ok := o.take("reason", required); ok && v.Kind() != 'n' {
		if s, good := o.p.text(o.path+"reason", v, 1, 500); good {
			u.Reason = &s
		}
	}
	u.At, _ = o.moment("at", optional)
	return u
}

// Apply is the host after a heartbeat at now, the rule behind what the store's
// one statement does (contract ).
func (h *Host) Apply(b *Heartbeat, now time.Time) {
	h.Name, h.HostReport, h.SeenAt = b.Host, b.HostReport, now
	switch {
	case b.Error != nil:
		h.LastError = &HostError{Code: b.Error.Code, Message: b.Error.Message, At: now}
	case b.Asked:
		h.SuccessAt = now
	}
	if b.LastUpdate != nil {
		h.LastUpdate = b.LastUpdate
	}
}

// HostStatus is derived whenever a host is read, never stored (contract R-10).
type HostStatus string

const (
	HostOK       HostStatus = "ok"
	HostFailing  HostStatus = "failing"
	HostOutdated HostStatus = "outdated"
	HostStale    HostStatus = "stale"
)

// HostStatuses are all of them, the best first.
var HostStatuses = []HostStatus{HostOK, HostFailing, HostOutdated, HostStale}

const (
	// StalePolls is how many polls a host may miss before it is stale.
	StalePolls = 3
	// StaleFloor is the least time that it takes.
	StaleFloor = 60 * time.Second
)

// StaleAt is the last moment at which the host is not stale without a further
// heartbeat.
func (h *Host) StaleAt() time.Time {
	return h.SeenAt.Add(max(time.Duration(h.PollSeconds)*time.Second*StalePolls, StaleFloor))
}

// Failing reports whether the last request for work went wrong or the host
// itself says that it takes none.
func (h *Host) Failing() bool {
	return h.Blocked != "" || h.LowDisk != nil || h.LastError != nil && h.LastError.At.After(h.SuccessAt)
}

// Status is the host's status at now, on the platform's clock (contract R-10).
func (h *Host) Status(p Protocol, now time.Time) HostStatus {
	switch {
	case now.After(h.StaleAt()):
		return HostStale
	case h.Protocol < p.MinimumAt(now):
		return HostOutdated
	case h.Failing():
		return HostFailing
	}
	return HostOK
}

// Reason says in a sentence why the host has its status, and what to do; empty
// for one that is ok.
func (h *Host) Reason(p Protocol, now time.Time) string {
	switch h.Status(p, now) {
	case HostStale:
		return fmt.Sprintf("no heartbeat for %s (it reports every %s); is the machine up, and does the runner reach the gateway?",
			now.Sub(h.SeenAt).Truncate(time.Second), time.Duration(h.PollSeconds)*time.Second)
	case HostOutdated:
		return fmt.Sprintf("the runner speaks protocol %d, the gateway needs %d at least: it gets no work until it is updated", h.Protocol, p.MinimumAt(now))
	case HostFailing:
		return h.failure()
	}
	return ""
}

func (h *Host) failure() string {
	switch {
	case h.Blocked != "":
		return "a check of the host's own keeps it from work: " + h.Blocked
	case h.LowDisk != nil:
		return fmt.Sprintf("low disk: %d bytes free, %d needed; it takes no work until there is room", h.LowDisk.Free, h.LowDisk.Needed)
	}
	return fmt.Sprintf("its last request for work was refused (%s): %s", h.LastError.Code, h.LastError.Message)
}

// Codes of a refused request for work, by what stands in the way.
const (
	CodeHostUnknown  = "host_unknown"
	CodeHostStale    = "host_stale"
	CodeHostOutdated = "host_outdated"
	CodeHostBlocked  = "host_blocked"
	CodeHostLowDisk  = "host_low_disk"
)

// MayWork answers nil when the host may be given work at now: its heartbeat is
// fresh, it speaks a protocol that the gateway still serves, and it does not say
// itself that it cannot (contract R-10, lessons 36, 39, 40). A refusal that the
// host met earlier is no reason: the next request is how it recovers.
func (h *Host) MayWork(p Protocol, now time.Time) error {
	code := ""
	switch {
	case now.After(h.StaleAt()):
		return fault.Coded(fault.Conflict, CodeHostStale, "no fresh heartbeat of host %q is known; send one, then ask for work", h.Name)
	case h.Protocol < p.MinimumAt(now):
		code = CodeHostOutdated
	case h.Blocked != "":
		code = CodeHostBlocked
	case h.LowDisk != nil:
		code = CodeHostLowDisk
	default:
		return nil
	}
	return fault.Coded(fault.Conflict, code, "no work for host %q: %s", h.Name, h.Reason(p, now))
}
