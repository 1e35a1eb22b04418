package control

import (
	"context"
	"errors"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// CreateProject makes a tenant. key is the Idempotency-Key, or empty.
func (c *Control) CreateProject(ctx context.Context, who iam.Caller, in api.CreateProject, key string) (api.Project, error) {
	if err := iam.Allow(who, iam.CreateProject, iam.Scope{}); err != nil {
		return api.Project{}, err
	}
	if !compute.ValidProjectID(in.ID) {
		return api.Project{}, fault.InvalidFields([]fault.Field{{Path: "id", Message: "is 1-63 of a-z 0-9 -, the first a letter or digit"}})
	}
	p := compute.Project{ID: in.ID, Name: in.Name}
	if p.Name == "" {
		p.Name = p.ID
	}
	return once(ctx, c, "projects", key, in, func(tx *store.Tx) (api.Project, error) {
		p.CreatedAt = tx.Now
		err := tx.InsertProject(p)
		if errors.Is(err, store.ErrExists) {
			err = fault.Coded(fault.Conflict, fault.AlreadyExists, "there is a project %q already; choose another id", p.ID)
		}
		return projectView(&p), err
	})
}

// ListProjects answers a page of projects in id order.
func (c *Control) ListProjects(ctx context.Context, who iam.Caller, p Page) (api.List[api.Project], error) {
	out := api.List[api.Project]{Items: []api.Project{}}
	if err := iam.Allow(who, iam.ListProjects, iam.Scope{}); err != nil {
		return out, err
	}
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		rows, err := tx.Projects(p.Cursor, p.limit()+1)
		for i := range rows[:min(len(rows), p.limit())] {
			out.Items = append(out.Items, projectView(&rows[i]))
		}
		if len(rows) > p.limit() {
			out.NextCursor = rows[p.limit()-1].ID
		}
		return err
	})
	return out, err
}

// DeleteProject removes a project that holds nothing; its tokens end.
func (c *Control) DeleteProject(ctx context.Context, who iam.Caller, id string) error {
	if err := iam.Allow(who, iam.DeleteProject, iam.Scope{}); err != nil {
		return err
	}
	if id == compute.DefaultProject {
		return fault.New(fault.Conflict, "the project %q is always there", id)
	}
	return c.db.Write(ctx, func(tx *store.Tx) error {
		instances, err := tx.CountInstances(id)
		if err != nil {
			return err
		}
		images, err := tx.CountImages(id)
		if err != nil {
			return err
		}
		volumes, err := tx.Volumes(id, store.Cursor{}, 1)
		if err != nil {
			return err
		}
		if len(volumes) > 0 {
			return fault.Coded(fault.Conflict, fault.ProjectInUse, "the project %q still has volumes, or their files are being removed; delete them first: outcrop volume list --project %s", id, id)
		}
		if instances > 0 || images > 0 {
			return fault.Coded(fault.Conflict, fault.ProjectInUse, "the project %q still has %d instances and %d images; terminate and delete them first", id, instances, images)
		}
		if err := tx.RevokeProjectTokens(id); err != nil {
			return err
		}
		return notFound(tx.DeleteProject(id), "there is no project %q", id)
	})
}

func projectView(p *compute.Project) api.Project {
	return api.Project{ID: p.ID, Name: p.Name, CreatedAt: p.CreatedAt}
}
