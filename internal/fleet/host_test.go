package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

// TestStatus walks every edge, one second either side, and every pair of causes:
// the earlier in the order wins.
//
// contract: R-10 R-03
// lesson 1
// lesson 6
func TestStatus(t *testing.T) {
	const s = time.Second
	failed := func(at time.Time) *HostError { return &HostError{Code: "c", Message: "m", At: at} }
	for _, c := range []struct {
		name string
		age  time.Duration
		poll int64
		min  int64
		edit func(*Host)
		want HostStatus
	}{
		{"just seen", 0, 30, 1, nil, HostOK},
		{"from the future", -time.Hour, 30, 1, nil, HostOK}, // the platform's clock was set back
		{"floor, before", 59 * s, 1, 1, nil, HostOK},
		{"floor, at", 60 * s, 1, 1, nil, HostOK},
		{"floor, after", 61 * s, 1, 1, nil, HostStale},
		{"floor, a nanosecond after", 60*s + 1, 1, 1, nil, HostStale},
		{"poll 19, the floor counts", 60 * s, 19, 1, nil, HostOK},
		{"poll 19, after", 61 * s, 19, 1, nil, HostStale},
		{"poll 20, at", 60 * s, 20, 1, nil, HostOK},
		{"poll 20, after", 61 * s, 20, 1, nil, HostStale},
		{"poll 21, before", 62 * s, 21, 1, nil, HostOK},
		{"poll 21, at", 63 * s, 21, 1, nil, HostOK},
		{"poll 21, after", 64 * s, 21, 1, nil, HostStale},
		{"longest poll, at", 3 * 86400 * s, 86400, 1, nil, HostOK},
		{"longest poll, after", 3*86400*s + s, 86400, 1, nil, HostStale},
		{"protocol below", 0, 30, 2, func(h *Host) { h.Protocol = 1 }, HostOutdated},
		{"protocol at", 0, 30, 2, func(h *Host) { h.Protocol = 2 }, HostOK},
		{"protocol above", 0, 30, 2, func(h *Host) { h.Protocol = 3 }, HostOK},
		{"no protocol is below every minimum", 0, 30, 1, func(h *Host) { h.Protocol = 0 }, HostOutdated},
		{"error, no success", 0, 30, 1, func(h *Host) { h.LastError = failed(ago(s)) }, HostFailing},
		{"error after success", 0, 30, 1, func(h *Host) { h.LastError, h.SuccessAt = failed(ago(s)), ago(2*s) }, HostFailing},
		{"error with success", 0, 30, 1, func(h *Host) { h.LastError, h.SuccessAt = failed(ago(s)), ago(s) }, HostOK},
		{"error before success", 0, 30, 1, func(h *Host) { h.LastError, h.SuccessAt = failed(ago(2*s)), ago(s) }, HostOK},
		{"blocked", 0, 30, 1, func(h *Host) { h.Blocked, h.SuccessAt = "r", now }, HostFailing},
		{"low disk", 0, 30, 1, func(h *Host) { h.LowDisk, h.SuccessAt = &LowDisk{}, now }, HostFailing},
		{"stale before outdated", 91 * s, 30, 2, nil, HostStale},
		{"stale before failing", 91 * s, 30, 1, func(h *Host) { h.Blocked = "r" }, HostStale},
		{"outdated before failing", 0, 30, 2, func(h *Host) { h.Blocked = "r" }, HostOutdated},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Host{Name: "h", SeenAt: ago(c.age), HostReport: HostReport{Protocol: 1, PollSeconds: c.poll, SlotsTotal: 1}}
			if c.edit != nil {
				c.edit(&h)
			}
			p := Protocol{Current: 5, Minimum: c.min}
			if got := h.Status(p, now); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if reason := h.Reason(p, now); (reason == "") != (c.want == HostOK) {
				t.Errorf("reason %q of a host that is %s", reason, c.want)
			}
			err := h.MayWork(p, now)
			onlyErred := c.want == HostFailing && h.Blocked == "" && h.LowDisk == nil
			if (err == nil) != (c.want == HostOK || onlyErred) {
				t.Errorf("may work: %v, though it is %s", err, c.want)
			}
			if err != nil && !fault.Is(err, fault.Conflict) {
				t.Errorf("refused with %v", err)
			}
		})
	}
}

// lesson 36
// lesson 40
func TestMayWorkSaysWhatIsInTheWay(t *testing.T) {
	for code, edit := range map[string]func(*Host){
		CodeHostStale:    func(h *Host) { h.SeenAt = ago(time.Hour) },
		CodeHostOutdated: func(h *Host) { h.Protocol = 1 },
		CodeHostBlocked:  func(h *Host) { h.Blocked = "no /dev/kvm" },
		CodeHostLowDisk:  func(h *Host) { h.LowDisk = &LowDisk{Free: 1, Needed: 2} },
	} {
		h := Host{Name: "h", SeenAt: now, HostReport: HostReport{Protocol: 2, PollSeconds: 30}}
		edit(&h)
		if err := h.MayWork(Protocol{Current: 2, Minimum: 2}, now); !fault.HasCode(err, code) {
			t.Errorf("%v, want %s", err, code)
		}
	}
}

// contract: R-01 R-04 R-05 R-06
func TestApply(t *testing.T) {
	update := &Update{From: "1", To: "2", Outcome: "updated"}
	var h Host
	h.Apply(&Heartbeat{Host: "h", HostReport: HostReport{Blocked: "r", LowDisk: &LowDisk{1, 2}}, Asked: true, LastUpdate: update}, now)
	h.Apply(&Heartbeat{Host: "h", Asked: true, Error: &HostError{Code: "c"}}, now.Add(time.Second))
	h.Apply(&Heartbeat{Host: "h"}, now.Add(2*time.Second))
	if h.Blocked != "" || h.LowDisk != nil || h.LastUpdate != update || !h.SuccessAt.Equal(now) || !h.LastError.At.Equal(now.Add(time.Second)) || !h.SeenAt.Equal(now.Add(2*time.Second)) {
		t.Errorf("%+v", h)
	}
}

// lesson 36
func TestProtocol(t *testing.T) {
	date := time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)
	p := Protocol{Current: 3, Minimum: 1, Next: 3, From: date}
	for _, c := range []struct {
		at       time.Time
		protocol int64
		minimum  int64
		notice   string
	}{
		{date.Add(-time.Second), 2, 1, "from 2026-09-01"}, {date, 2, 3, "since 2026-09-01"}, {date.Add(-time.Second), 3, 1, ""}, {date, 3, 3, ""}, {date.Add(-time.Second), 0, 1, ""},
	} {
		if m := p.MinimumAt(c.at); m != c.minimum {
			t.Errorf("minimum %d at %s, want %d", m, c.at, c.minimum)
		}
		n := p.Notice(c.protocol, c.at)
		if (n == nil) != (c.notice == "") || n != nil && !strings.HasPrefix(n.Message, c.notice) {
			t.Errorf("notice for %d at %s: %+v, want %q", c.protocol, c.at, n, c.notice)
		}
	}
}

// contract: R-09
func TestRunnerVersion(t *testing.T) {
	for _, c := range []struct {
		s                       UpdateSetting
		gateway, cliVersion, at string
	}{
		{UpdateSetting{Mode: UpdateFollow}, "", "0.9.1", "0.9.1"},
		{UpdateSetting{Mode: UpdateFollow}, "", "outcrop/0.1", "outcrop/1.0"},
		{UpdateSetting{Mode: UpdateFollow}, "2.0", "outcrop/0.1", "2.0"},
		{UpdateSetting{Mode: UpdatePaused}, "2.0", "0.9.1", "0.9.1"},
		{UpdateSetting{Mode: UpdatePinned, Version: "1.5"}, "2.0", "0.9.1", "1.5"},
	} {
		if got := c.s.RunnerVersion(c.gateway, "1.0", c.cliVersion); got != c.at {
			t.Errorf("%+v: %q, want %q", c, got, c.at)
		}
	}
}

func TestIDs(t *testing.T) {
	id := NewID()
	if CanonicalID(id) != id || CanonicalID(strings.ToUpper(id)) != id || id[14] != '4' {
		t.Errorf("id %q", id)
	}
	for _, bad := range []string{"", "x", id[1:], id + "0", strings.Replace(id, "-", "0", 1), strings.Replace(id, id[:1], "g", 1), fmt.Sprintf("%36s", "")} {
		if CanonicalID(bad) != "" {
			t.Errorf("%q counts as an id", bad)
		}
	}
}

// FuzzParseHeartbeat: whatever comes, what is accepted is within the bounds.
//
// contract: R-02 R-03 R-04 R-05 R-06
func FuzzParseHeartbeat(f *testing.F) {
	for _, s := range []string{
		`{"host":"h","cliVersion":"1","pollSeconds":30,"slotsUsed":0,"slotsTotal":1}`,
		`{"host":"h","cliVersion":"1","pollSeconds":3e1,"slotsUsed":0,"slotsTotal":1,"workRequest":{"ok":false,"code":"c","message":"m"},"lastUpdate":{"from":"1","to":"2","outcome":"updated","reason":null,"at":"2026-03-01T12:00:00Z"},"lowDisk":{"free":1,"needed":2},"blocked":{"reason":"r"}}`,
		`{"host":"\u0000"}`, `[]`, `{"host":"a","host":"b"}`, "{\"host\":\"\xff\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHeartbeat(b)
		if err != nil {
			if !fault.HasCode(err, CodeInvalidBody) || len(fault.From(err).Fields) == 0 {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		within := func(s string, max int) bool { n := len([]rune(s)); return n >= 1 && n <= max }
		if !within(h.Host, 255) || strings.ContainsRune(h.Host, 0) || !within(h.CLIVersion, 64) || h.PollSeconds < 1 || h.PollSeconds > 86400 || h.SlotsUsed < 0 || h.SlotsTotal < 1 || h.Protocol < 0 || h.Protocol > 1_000_000 ||
			h.Error != nil && (!h.Asked || !within(h.Error.Code, 100) || !within(h.Error.Message, 500)) ||
			h.LastUpdate != nil && (!within(h.LastUpdate.From, 64) || !within(h.LastUpdate.To, 64) || h.LastUpdate.Reason != nil && !within(*h.LastUpdate.Reason, 500)) ||
			h.LowDisk != nil && (h.LowDisk.Free < 0 || h.LowDisk.Needed < 0 || h.LowDisk.Free > maxBytes || h.LowDisk.Needed > maxBytes) || h.Blocked != "" && !within(h.Blocked, 500) {
			t.Fatalf("accepted %+v from %q", h, b)
		}
	})
}
