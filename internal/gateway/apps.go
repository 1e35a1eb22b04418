package gateway

import (
	"context"
	"net/url"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// operatorOnly enters a verb that no key may call.
func (g *Gateway) operatorOnly(ctx context.Context, who *Caller) error {
	if who.key == nil && who.token.Role == iam.Operator {
		return nil
	}
	return g.refuse(ctx, who, fault.Coded(fault.Forbidden, fleet.CodeForbidden, "only an operator's token may do this, not an API key"))
}

// CreateApp makes an app. key is the Idempotency-Key, or empty.
func (g *Gateway) CreateApp(ctx context.Context, who Caller, body []byte, key string) (api.App, error) {
	if err := g.operatorOnly(ctx, &who); err != nil {
		return api.App{}, err
	}
	name, err := fleet.ParseApp(body)
	if err != nil {
		return api.App{}, err
	}
	app := fleet.App{ID: fleet.NewID(), Name: name, Update: fleet.UpdateSetting{Mode: fleet.UpdateFollow}}
	var out api.App
	err = g.write(ctx, &who, func(tx *store.Tx) error {
		return once(tx, &who, "apps", key, body, &out, func() error {
			app.CreatedAt = tx.Now
			out = appView(&app)
			return tx.InsertApp(&app)
		})
	})
	return out, err
}

// ListApps answers a page of apps, oldest first.
func (g *Gateway) ListApps(ctx context.Context, who Caller, q url.Values) (api.DataList[api.App], error) {
	if err := g.operatorOnly(ctx, &who); err != nil {
		return api.DataList[api.App]{}, err
	}
	p, err := parsePage(q)
	if err != nil {
		return api.DataList[api.App]{}, err
	}
	return page(ctx, g, &who, p, func(tx *store.Tx) ([]fleet.App, int64, error) {
		total, err := tx.CountApps()
		if err != nil {
			return nil, 0, err
		}
		apps, err := tx.Apps(p.Limit, p.Offset)
		return apps, total, err
	}, appView)
}

// GetApp answers one app: a key's own, any to an operator.
func (g *Gateway) GetApp(ctx context.Context, who Caller, id string) (out api.App, err error) {
	if err := g.enterApp(ctx, &who, fleet.AppRead, &id); err != nil {
		return out, err
	}
	err = g.read(ctx, &who, func(tx *store.Tx) error {
		app, err := tx.App(id)
		out = appView(&app)
		return noApp(err, id)
	})
	return out, err
}

// RenameApp gives an app another name.
func (g *Gateway) RenameApp(ctx context.Context, who Caller, id string, body []byte) (out api.App, err error) {
	if err := g.enterApp(ctx, &who, fleet.AppUpdate, &id); err != nil {
		return out, err
	}
	name, err := fleet.ParseApp(body)
	if err != nil {
		return out, g.refuse(ctx, &who, err)
	}
	err = g.write(ctx, &who, func(tx *store.Tx) error {
		if err := tx.RenameApp(id, name); err != nil {
			return noApp(err, id)
		}
		app, err := tx.App(id)
		out = appView(&app)
		return err
	})
	return out, err
}

// DeleteApp removes an app without hosts and unfinished work; its keys end at
// once.
func (g *Gateway) DeleteApp(ctx context.Context, who Caller, id string) error {
	if err := g.operatorOnly(ctx, &who); err != nil {
		return err
	}
	return g.write(ctx, &who, func(tx *store.Tx) error {
		app, err := tx.App(id)
		if err != nil {
			return noApp(err, id)
		}
		var unfinished int64
		for _, s := range fleet.JobStates {
			if s.Final() {
				continue
			}
			n, err := tx.CountJobs(id, s)
			if err != nil {
				return err
			}
			unfinished += n
		}
		if app.Hosts > 0 || unfinished > 0 {
			return fault.Coded(fault.Conflict, "app_in_use", "app %q still has %d hosts and %d unfinished jobs; delete the hosts and cancel the jobs first", app.Name, app.Hosts, unfinished)
		}
		return noApp(tx.DeleteApp(id), id)
	})
}

// enterApp enters a verb about the app with the id. Another app than the key's is
// as if it were not there.
func (g *Gateway) enterApp(ctx context.Context, who *Caller, p fleet.Permission, id *string) error {
	if err := g.enter(ctx, who, p); err != nil {
		return err
	}
	if canonical := fleet.CanonicalID(*id); canonical != "" && (who.key == nil || who.key.AppID == canonical) {
		*id = canonical
		return nil
	}
	return g.refuse(ctx, who, noApp(store.ErrNotFound, *id))
}

func noApp(err error, id string) error { return notFound(err, "there is no app %q", id) }

func appView(a *fleet.App) api.App {
	return api.App{ID: a.ID, Name: a.Name, Hosts: a.Hosts, CreatedAt: a.CreatedAt}
}
