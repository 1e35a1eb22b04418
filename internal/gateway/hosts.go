package gateway

import (
	"context"
	"net/url"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// Heartbeat records what a runner host reports (contract ). The
// answer is sent after the commit.
func (g *Gateway) Heartbeat(ctx context.Context, who Caller, body []byte) (api.HeartbeatHost, error) {
	in, err := open(ctx, g, &who, fleet.HostsIngest, func() (fleet.Heartbeat, error) { return fleet.ParseHeartbeat(body) })
	if err == nil {
		err = g.refuse(ctx, &who, who.host(in.Host))
	}
	if err != nil {
		return api.HeartbeatHost{}, err
	}
	beat := store.HostBeat{AppID: who.appID, Heartbeat: in, Nonce: who.nonce}
	if err := g.settled(&who, func() error { return g.db.HostHeartbeat(ctx, &beat) }); err != nil {
		return api.HeartbeatHost{}, err
	}
	return g.heartbeatView(&who, &beat.Result, beat.Result.SeenAt), nil
}

// ListHosts answers a page of the app's hosts in the order of their names
// (contract R-08). With after, a name, the page begins behind it: that costs the
// same at every place of the list.
func (g *Gateway) ListHosts(ctx context.Context, who Caller, q url.Values) (api.DataList[api.RunnerHost], error) {
	p, err := open(ctx, g, &who, fleet.HostsRead, func() (store.HostPage, error) { return parseHostPage(q) })
	if err != nil {
		return api.DataList[api.RunnerHost]{}, err
	}
	p.Protocol = g.o.Protocol
	return page(ctx, g, &who, listPage{p.Limit, p.Offset}, func(tx *store.Tx) ([]fleet.Host, int64, error) {
		p.Now = wholeMicros(tx.Now)
		total, err := tx.CountHosts(who.appID, p)
		if err != nil {
			return nil, 0, err
		}
		hosts, err := tx.Hosts(who.appID, p)
		return hosts, total, err
	}, func(h *fleet.Host) api.RunnerHost { return g.hostView(h, p.Now) })
}

// wholeMicros is t as the database holds moments, so that it and we judge alike.
func wholeMicros(t time.Time) time.Time { return t.Truncate(time.Microsecond) }

func parseHostPage(q url.Values) (store.HostPage, error) {
	p, err := parsePage(q)
	if err != nil {
		return store.HostPage{}, err
	}
	status, err := oneOf(q, "status", fleet.HostStatuses)
	return store.HostPage{Limit: p.Limit, Offset: p.Offset, After: q.Get("after"), Status: status}, err
}

// GetHost answers one host with the reason for its status and what is to be done
// by a date.
func (g *Gateway) GetHost(ctx context.Context, who Caller, name string) (out api.HostDetail, err error) {
	if err := g.enter(ctx, &who, fleet.HostsRead); err != nil {
		return out, err
	}
	err = g.read(ctx, &who, func(tx *store.Tx) error {
		h, err := tx.Host(who.appID, name)
		if err != nil {
			return noHost(err, name)
		}
		now := wholeMicros(tx.Now)
		out = api.HostDetail{HeartbeatHost: g.heartbeatView(&who, &h, now), StatusReason: orNil(h.Reason(g.o.Protocol, now)), AgeSeconds: int64(max(0, now.Sub(h.SeenAt)) / time.Second)}
		if n := g.o.Protocol.Notice(h.Protocol, now); n != nil {
			out.Notice = &api.HostNotice{At: n.At, Message: n.Message}
		}
		out.WorkHeld, err = tx.CountLeases(who.appID, name)
		return err
	})
	return out, err
}

// DeleteHost forgets a host that is gone. One that still reports comes back.
func (g *Gateway) DeleteHost(ctx context.Context, who Caller, name string) error {
	if err := g.enter(ctx, &who, fleet.HostsDelete); err != nil {
		return err
	}
	return g.write(ctx, &who, func(tx *store.Tx) error { return noHost(tx.DeleteHost(who.appID, name), name) })
}

func noHost(err error, name string) error {
	return notFound(err, "there is no host %q in this app; list them with: outcrop host list", name)
}

// GetUpdateSetting answers who picks the version of the app's runners.
func (g *Gateway) GetUpdateSetting(ctx context.Context, who Caller) (out api.UpdateSetting, err error) {
	if err := g.enter(ctx, &who, fleet.HostsRead); err != nil {
		return out, err
	}
	err = g.read(ctx, &who, func(tx *store.Tx) error {
		app, err := tx.App(who.appID)
		out = updateView(app.Update)
		return noApp(err, who.appID)
	})
	return out, err
}

// PutUpdateSetting chooses it (contract R-09).
func (g *Gateway) PutUpdateSetting(ctx context.Context, who Caller, body []byte) (out api.UpdateSetting, err error) {
	in, err := open(ctx, g, &who, fleet.HostsUpdate, func() (fleet.UpdateSetting, error) { return fleet.ParseUpdateSetting(body) })
	if err != nil {
		return out, err
	}
	err = g.write(ctx, &who, func(tx *store.Tx) error { return noApp(tx.SetUpdate(who.appID, in), who.appID) })
	return updateView(in), err
}

func updateView(s fleet.UpdateSetting) api.UpdateSetting {
	return api.UpdateSetting{Mode: string(s.Mode), Version: orNil(s.Version)}
}

func (g *Gateway) heartbeatView(who *Caller, h *fleet.Host, now time.Time) api.HeartbeatHost {
	return api.HeartbeatHost{RunnerHost: g.hostView(h, now), RunnerVersion: who.update.RunnerVersion(g.o.RunnerVersion, g.o.Version, h.CLIVersion)}
}

func (g *Gateway) hostView(h *fleet.Host, now time.Time) api.RunnerHost {
	v := api.RunnerHost{
		Host: h.Name, CLIVersion: h.CLIVersion, RunnerProtocol: h.Protocol, PollSeconds: h.PollSeconds, SlotsUsed: h.SlotsUsed, SlotsTotal: h.SlotsTotal,
		LastHeartbeatAt: h.SeenAt, LastSuccessAt: optional(h.SuccessAt), Status: string(h.Status(g.o.Protocol, now)),
	}
	if e := h.LastError; e != nil {
		v.LastError = &api.HostError{Code: e.Code, Message: e.Message, At: e.At}
	}
	if u := h.LastUpdate; u != nil {
		v.LastUpdate = &api.HostUpdateView{From: u.From, To: u.To, Outcome: u.Outcome, Reason: u.Reason, At: optional(u.At)}
	}
	if d := h.LowDisk; d != nil {
		v.LowDisk = &api.HostLowDisk{Free: d.Free, Needed: d.Needed}
	}
	if h.Blocked != "" {
		v.Blocked = &api.HostBlocked{Reason: h.Blocked}
	}
	return v
}

// Capabilities answers what the gateway can do, to anybody.
func (g *Gateway) Capabilities() api.Capabilities {
	p, now := g.o.Protocol, g.now()
	c := api.Capabilities{
		Version: g.o.Version, RunnerVersion: orNil(g.o.RunnerVersion),
		RunnerProtocol: api.ProtocolInfo{Current: p.Current, Minimum: p.MinimumAt(now)},
		SignatureSkewS: int64(Skew / time.Second), BodyBytes: MaxBody, LeaseSeconds: int64(fleet.LeaseFor / time.Second),
		Features: []string{"hosts", "host_signatures", "update_setting", "api_keys", "apps", "work"},
	}
	if p.Next > c.RunnerProtocol.Minimum {
		c.RunnerProtocol.NextMinimum, c.RunnerProtocol.NextFrom = &p.Next, &p.From
	}
	for _, perm := range fleet.Permissions {
		c.PermissionNames = append(c.PermissionNames, string(perm))
	}
	return c
}
