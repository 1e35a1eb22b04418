package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/diskimage"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// ImportImage is what the caller says of an image on its way in.
type ImportImage struct {
	Name   string
	Public bool
	Tags   map[string]string
	// Architecture is one of compute.Architectures, or empty.
	Architecture string
	// Size is how many bytes will come, -1 when the caller did not say.
	Size int64 `json:"-"`
}

// ImportImage streams an image to disk, looks into its header before anything
// trusts it, and stores it by its sha256. A broken upload leaves nothing.
func (c *Control) ImportImage(ctx context.Context, who iam.Caller, project string, in ImportImage, body io.Reader, key string) (api.Image, error) {
	if err := c.allowImport(ctx, who, project, in); err != nil {
		return api.Image{}, err
	}
	file, err := c.receive(body, in.Size)
	if err != nil {
		return api.Image{}, err
	}
	defer file.discard()
	request := struct {
		ImportImage
		SHA256 string
	}{in, file.sha256}
	return once(ctx, c, "images/"+project, key, request, func(tx *store.Tx) (api.Image, error) {
		m := compute.Image{
			ID: compute.NewID(compute.ImagePrefix), ProjectID: project, Name: in.Name, Public: in.Public, SHA256: file.sha256,
			Format: string(file.info.Format), SizeBytes: file.size, VirtualSize: file.info.VirtualSize, CreatedAt: tx.Now,
			Architecture: in.Architecture, Tags: in.Tags, State: compute.ImageAvailable,
		}
		if err := projectExists(tx, project); err != nil {
			return api.Image{}, err
		}
		// The file is in place before the row that names it is committed; deleting
		// a file takes the same path, so none goes away in between.
		if err := file.keep(c.imageFile(file.sha256)); err != nil {
			return api.Image{}, err
		}
		return imageView(&m), tx.InsertImage(&m)
	})
}

func (c *Control) allowImport(ctx context.Context, who iam.Caller, project string, in ImportImage) error {
	if err := iam.Allow(who, iam.ImportImage, iam.Scope{ProjectID: project}); err != nil {
		return err
	}
	if in.Public && who.Role != iam.Operator {
		return fault.New(fault.Forbidden, "only an operator may make an image public; import it for the project, without public")
	}
	var f []fault.Field
	add := func(path, format string, args ...any) {
		f = append(f, fault.Field{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	if in.Name == "" || len([]rune(in.Name)) > 255 {
		add("name", "has 1 to 255 characters")
	}
	if in.Architecture != "" && !slices.Contains(compute.Architectures, in.Architecture) {
		add("architecture", "is one of %s, or left out", strings.Join(compute.Architectures, ", "))
	}
	checkName(in.Name, add)
	checkTags(in.Tags, add)
	if err := fault.InvalidFields(f); err != nil {
		return err
	}
	return c.db.Read(ctx, func(tx *store.Tx) error { return projectExists(tx, project) })
}

// received is an uploaded file that nobody knows yet.
type received struct {
	path   string
	kept   bool
	sha256 string
	size   int64
	info   diskimage.Info
}

func (r *received) discard() {
	if !r.kept {
		os.Remove(r.path)
	}
}

// keep puts the file in its place. A write that runs again finds it there.
func (r *received) keep(to string) error {
	if r.kept {
		_, err := os.Stat(to)
		return err
	}
	if err := os.Rename(r.path, to); err != nil {
		return err
	}
	r.kept = true
	return syncDir(filepath.Dir(to))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (c *Control) imageFile(sha256 string) string { return filepath.Join(c.o.Dir, "images", sha256) }

// uploadPrefix marks files on their way in; a start removes what a crash left.
const uploadPrefix = ".upload-"

func (c *Control) receive(body io.Reader, announced int64) (r *received, err error) {
	dir := filepath.Join(c.o.Dir, "images")
	if err := roomFor(dir, max(announced, 0)); err != nil {
		return nil, err // before a byte of it is sent
	}
	tmp, err := os.CreateTemp(dir, uploadPrefix+"*")
	if err != nil {
		return nil, diskError(err)
	}
	r = &received{path: tmp.Name()}
	file := r // r itself is nil where an error is returned
	defer func() {
		tmp.Close()
		if err != nil {
			file.discard()
		}
	}()
	hash := sha256.New()
	in := &sourceReader{r: body}
	if r.size, err = io.Copy(io.MultiWriter(&roomy{w: tmp, dir: dir}, hash), in); err != nil {
		if in.err != nil {
			return nil, fault.New(fault.Invalid, "the upload broke off after %d bytes; nothing was stored, send it again", r.size)
		}
		return nil, diskError(err)
	}
	if announced >= 0 && r.size != announced {
		return nil, fault.New(fault.Invalid, "the upload broke off after %d of %d bytes; nothing was stored, send it again", r.size, announced)
	}
	r.sha256 = hex.EncodeToString(hash.Sum(nil))
	if r.info, err = diskimage.Inspect(tmp, r.size, compute.MaxImageVirtualSize); err != nil {
		var bad *diskimage.Error
		if errors.As(err, &bad) {
			return nil, fault.New(fault.Invalid, "%s", bad.Message)
		}
		return nil, err
	}
	return r, diskError(tmp.Sync())
}

// sourceReader remembers that a failure came from the sender, not from our disk.
type sourceReader struct {
	r   io.Reader
	err error
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return noSpace()
	}
	return err
}

// ListImages answers a page of the images that a project can see, oldest first.
func (c *Control) ListImages(ctx context.Context, who iam.Caller, project string, p Page) (api.List[api.Image], error) {
	if err := iam.Allow(who, iam.ListImages, iam.Scope{ProjectID: project}); err != nil {
		return api.List[api.Image]{}, err
	}
	return pageByAge(ctx, c, p, func(tx *store.Tx, after store.Cursor, limit int) ([]compute.Image, error) {
		if err := projectExists(tx, project); err != nil {
			return nil, err
		}
		return tx.Images(project, after, limit)
	}, func(m *compute.Image) (api.Image, store.Cursor) {
		return imageView(m), store.After(m.CreatedAt, m.ID)
	})
}

// GetImage answers one image.
func (c *Control) GetImage(ctx context.Context, who iam.Caller, project, id string) (api.Image, error) {
	if err := iam.Allow(who, iam.GetImage, iam.Scope{ProjectID: project}); err != nil {
		return api.Image{}, err
	}
	var m compute.Image
	err := c.db.Read(ctx, func(tx *store.Tx) (err error) {
		if m, err = tx.Image(project, id); err != nil {
			return notFound(err, "there is no image %q in project %q", id, project)
		}
		m.Volumes, err = tx.ImageVolumes(id)
		return err
	})
	return imageView(&m), err
}

// DeleteImage removes an image that no instance stands on. A public image of
// another project is for an operator to delete, in that project.
func (c *Control) DeleteImage(ctx context.Context, who iam.Caller, project, id string) error {
	if err := iam.Allow(who, iam.DeleteImage, iam.Scope{ProjectID: project}); err != nil {
		return err
	}
	return c.db.Write(ctx, func(tx *store.Tx) error {
		m, err := tx.Image(project, id)
		if err != nil {
			return notFound(err, "there is no image %q in project %q", id, project)
		}
		if m.ProjectID != project || m.Public && who.Role != iam.Operator {
			return fault.New(fault.Forbidden, "the image is public and belongs to project %q; only an operator can delete it there", m.ProjectID)
		}
		if err := imageUnused(tx, id); err != nil {
			return err
		}
		if err := dropUpload(tx, id); err != nil {
			return err
		}
		return tx.DeleteImage(id) // its files go with the next sweep, when no row names them
	})
}

// dropUpload ends the making of an image that is deleted meanwhile.
func dropUpload(tx *store.Tx, imageID string) error {
	u, err := tx.UploadByID(imageID) // an upload has the id of its image
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return endUpload(tx, &u, "image "+imageID+" was deleted before it was made")
}

func imageUnused(tx *store.Tx, id string) error {
	n, err := tx.CountImageUsers(id)
	if err != nil || n == 0 {
		return err
	}
	ids, err := tx.ImageUsers(id, 20)
	if err != nil {
		return err
	}
	e := fault.Coded(fault.Conflict, fault.ImageInUse, "%d instances stand on the image; terminate them first", n)
	e.Details = api.ImageInUse{InstanceIDs: ids, Count: n}
	return e
}

// openImages makes the folder of images and removes what uploads of a crashed server
// left, before any upload of this one can be among them.
func openImages(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), uploadPrefix) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// sweepImages removes image files that no row names. A file is looked up and removed
// inside one write, so that no import can name it in between.
func (c *Control) sweepImages(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(c.o.Dir, "images"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, uploadPrefix) {
			continue
		}
		err := c.db.Write(ctx, func(tx *store.Tx) error {
			used, err := tx.ImageFileUsed(name)
			if err != nil || used {
				return err
			}
			return os.Remove(c.imageFile(name))
		})
		if err != nil {
			return fmt.Errorf("removing the file of a deleted image: %w", err)
		}
	}
	return nil
}

// NodeImage opens an image file for the node where an instance needs it. The
// caller closes it.
func (c *Control) NodeImage(ctx context.Context, who iam.Caller, nodeID, sha256 string) (*os.File, error) {
	if err := iam.Allow(who, iam.ReadNodeImage, iam.Scope{NodeID: nodeID}); err != nil {
		return nil, err
	}
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		ok, err := tx.ImageForNode(nodeID, sha256)
		if err == nil && !ok {
			err = fault.New(fault.NotFound, "no instance on node %q needs this image", nodeID)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.Open(c.imageFile(sha256))
}

func imageView(m *compute.Image) api.Image {
	v := api.Image{
		ID: m.ID, ProjectID: m.ProjectID, Name: m.Name, Public: m.Public, SHA256: m.SHA256, Format: m.Format,
		Architecture: m.Architecture, SizeBytes: m.SizeBytes, VirtualSizeBytes: m.VirtualSize, State: string(m.State), Tags: m.Tags, CreatedAt: m.CreatedAt,
	}
	for _, d := range m.Volumes {
		v.DataVolumes = append(v.DataVolumes, api.ImageVolume{SnapshotID: d.SnapshotID, VirtualSizeBytes: d.VirtualSize})
	}
	return v
}
