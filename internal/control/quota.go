package control

import (
	"context"
	"fmt"
	"strings"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// projectRoom is what a project may hold and what it holds.
type projectRoom struct {
	quota store.Quota
	used  store.ProjectUsage
}

// roomOf reads what a project may hold and holds. With placedOnly, what waits for
// a node is not counted: whoever places it asks for it. Without limits nothing is
// summed up.
func roomOf(tx *store.Tx, project string, placedOnly bool) (*projectRoom, error) {
	q, err := tx.Quota(project)
	r := &projectRoom{quota: q}
	if err != nil || q.None() {
		return r, err
	}
	r.used, err = tx.ProjectUsage(project, placedOnly)
	return r, err
}

// over lists the limits that holding more would go over. What does not ask for
// more of a resource is not refused for it (lesson 13).
func (r *projectRoom) over(ask store.ProjectUsage) (list []api.QuotaExcess) {
	for _, k := range []struct {
		name        string
		asked, used int64
		limit       *int64
	}{
		{"instances", ask.Instances, r.used.Instances, r.quota.Instances},
		{"vcpus", ask.VCPUs, r.used.VCPUs, r.quota.VCPUs},
		{"memoryBytes", ask.MemoryBytes, r.used.MemoryBytes, r.quota.MemoryBytes},
		{"diskBytes", ask.DiskBytes, r.used.DiskBytes, r.quota.DiskBytes},
	} {
		if k.limit != nil && k.asked > 0 && k.asked > *k.limit-k.used {
			list = append(list, api.QuotaExcess{Resource: k.name, Asked: k.asked, Used: k.used, Limit: *k.limit})
		}
	}
	return list
}

func (r *projectRoom) add(ask store.ProjectUsage) {
	r.used.Instances += ask.Instances
	r.used.VCPUs += ask.VCPUs
	r.used.MemoryBytes += ask.MemoryBytes
	r.used.DiskBytes += ask.DiskBytes
}

// checkQuota refuses what a project may not hold beside what it holds. Until the
// end of the transaction nobody else makes the project hold more.
func checkQuota(tx *store.Tx, project string, ask store.ProjectUsage) error {
	if _, err := tx.LockQuota(project); err != nil {
		return err
	}
	r, err := roomOf(tx, project, false)
	if err != nil {
		return err
	}
	over := r.over(ask)
	if len(over) == 0 {
		return nil
	}
	e := fault.Coded(fault.Conflict, fault.QuotaExceeded, "%s; terminate or delete what is not needed, or ask an operator to raise the quota", quotaText(over))
	e.Details = api.QuotaExceeded{Exceeded: over}
	return e
}

func quotaText(over []api.QuotaExcess) string {
	texts := make([]string, len(over))
	for i, o := range over {
		n := func(v int64) string { return fmt.Sprint(v) }
		what := o.Resource
		switch o.Resource {
		case "memoryBytes":
			what, n = "memory", sizeText
		case "diskBytes":
			what, n = "disk", sizeText
		case "vcpus":
			what = "vCPUs"
		}
		texts[i] = fmt.Sprintf("the project's quota of %s is %s, %s are used, %s more were asked for", what, n(o.Limit), n(o.Used), n(o.Asked))
	}
	return strings.Join(texts, "; ")
}

// sizeText is n bytes in the largest unit that divides it.
func sizeText(n int64) string {
	names := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(names)-1 {
		n, i = n/1024, i+1
	}
	return fmt.Sprintf("%d %s", n, names[i])
}

// GetQuota answers what a project may hold and holds.
func (c *Control) GetQuota(ctx context.Context, who iam.Caller, project string) (out api.Quota, err error) {
	if err := iam.Allow(who, iam.GetQuota, iam.Scope{ProjectID: project}); err != nil {
		return out, err
	}
	err = c.db.Read(ctx, func(tx *store.Tx) error {
		if err := projectExists(tx, project); err != nil {
			return err
		}
		out, err = quotaView(tx, project)
		return err
	})
	return out, err
}

// UpdateQuota changes what a project may hold. A limit may be below what it holds:
// then it keeps that, and gets no more.
func (c *Control) UpdateQuota(ctx context.Context, who iam.Caller, project string, in api.PatchQuota) (out api.Quota, err error) {
	if err := iam.Allow(who, iam.UpdateQuota, iam.Scope{ProjectID: project}); err != nil {
		return out, err
	}
	var f []fault.Field
	for _, v := range []struct {
		path string
		n    api.Nullable[int64]
	}{{"instances", in.Instances}, {"vcpus", in.VCPUs}, {"memoryBytes", in.MemoryBytes}, {"diskBytes", in.DiskBytes}} {
		if v.n.Set && !v.n.Null && v.n.Value < 0 {
			f = append(f, fault.Field{Path: v.path, Message: "must not be negative; null takes the limit away"})
		}
	}
	if err := fault.InvalidFields(f); err != nil {
		return out, err
	}
	err = c.db.Write(ctx, func(tx *store.Tx) error {
		if err := projectExists(tx, project); err != nil {
			return err
		}
		q, err := tx.LockQuota(project)
		if err != nil {
			return err
		}
		for _, v := range []struct {
			limit **int64
			n     api.Nullable[int64]
		}{{&q.Instances, in.Instances}, {&q.VCPUs, in.VCPUs}, {&q.MemoryBytes, in.MemoryBytes}, {&q.DiskBytes, in.DiskBytes}} {
			if v.n.Set {
				*v.limit = v.n.Pointer()
			}
		}
		if err := tx.PutQuota(project, q); err != nil {
			return err
		}
		out, err = quotaView(tx, project)
		return err
	})
	c.place.poke()
	return out, err
}

func quotaView(tx *store.Tx, project string) (api.Quota, error) {
	q, err := tx.Quota(project)
	if err != nil {
		return api.Quota{}, err
	}
	u, err := tx.ProjectUsage(project, false)
	return api.Quota{
		ProjectID: project, Limits: api.QuotaLimits{Instances: q.Instances, VCPUs: q.VCPUs, MemoryBytes: q.MemoryBytes, DiskBytes: q.DiskBytes},
		Used: api.QuotaUsage{Instances: u.Instances, VCPUs: u.VCPUs, MemoryBytes: u.MemoryBytes, DiskBytes: u.DiskBytes},
	}, err
}
