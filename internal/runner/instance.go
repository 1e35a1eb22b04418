package runner

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// Instances is the engine that runs each job in an instance of its own, which the
// compute API of the same or another server boots from a runner image. The
// instance's user-data is a script that runs the command; its output and exit code
// come over the serial console. The instance is gone when the job is.
type Instances struct {
	cfg   InstancesConfig
	every time.Duration // between two looks at the console
}

// InstancesConfig is what Instances is told.
type InstancesConfig struct {
	Client  *api.Client // with a token of the project
	Project string
	Host    string // of the runner: whose instances they are
	Image   string // id or name of the image for jobs that name none
	VCPUs   int64
}

// Tags tell whose an instance is.
const (
	tagHost = "runner-host"
	tagJob  = "runner-job"
)

const (
	guestMemory  = 128 << 20 // for the guest's system, beside the job's need
	consoleEvery = 1500 * time.Millisecond
	computeWait  = 30 * time.Second // for one request to the compute API
	maxUserData  = 65536            // contract U-01
)

// NewInstances makes the engine.
func NewInstances(c InstancesConfig) *Instances { return &Instances{cfg: c, every: consoleEvery} }

// Check implements Engine.
func (e *Instances) Check(ctx context.Context) string {
	if _, err := e.image(ctx, e.cfg.Image); err != nil {
		return "no instance can be booted: " + err.Error()
	}
	return ""
}

func (e *Instances) call(ctx context.Context, method, path string, in, out any, options ...api.Option) error {
	ctx, cancel := context.WithTimeout(ctx, computeWait)
	defer cancel()
	return e.cfg.Client.Do(ctx, method, path, in, out, options...)
}

// image finds an image by id or name.
func (e *Instances) image(ctx context.Context, name string) (found api.Image, err error) {
	ctx, cancel := context.WithTimeout(ctx, computeWait)
	defer cancel()
	err = api.Pages(ctx, e.cfg.Client, api.ImagePath(e.cfg.Project, ""), func(i api.Image) error {
		if i.ID == name || i.Name == name && found.ID == "" {
			found = i
		}
		return nil
	})
	switch {
	case err != nil:
		return found, err
	case found.ID == "":
		return found, &Unfit{fmt.Sprintf("project %q has no image %q; import one with: outcrop image import", e.cfg.Project, name)}
	case found.State != "available":
		return found, fmt.Errorf("the image %q is %s", name, found.State)
	}
	return found, nil
}

// Sweep implements Engine.
func (e *Instances) Sweep(ctx context.Context, running func(string) bool) (gone []string, err error) {
	var errs []error
	err = api.Pages(ctx, e.cfg.Client, api.InstancePath(e.cfg.Project, ""), func(i api.Instance) error {
		key := i.Tags[tagJob]
		if i.Tags[tagHost] == e.cfg.Host && !running(key) && i.State != "terminating" && i.State != "terminated" {
			gone = append(gone, key)
			errs = append(errs, e.terminate(ctx, i.ID))
		}
		return nil
	})
	return gone, errors.Join(append(errs, err)...)
}

func (e *Instances) terminate(ctx context.Context, id string) error {
	err := e.call(ctx, http.MethodDelete, api.InstancePath(e.cfg.Project, id), nil, nil)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// Run implements Engine. What it cannot terminate here goes with the next sweep.
func (e *Instances) Run(ctx context.Context, j *Job) (int64, error) {
	id, mark, err := e.create(ctx, j)
	if err != nil {
		return 0, err
	}
	defer func() { _ = e.terminate(context.WithoutCancel(ctx), id) }()
	return e.follow(ctx, id, newConsole(mark, j.Output))
}

// create asks for the instance until there is an answer; however often it is sent,
// the request makes one instance.
func (e *Instances) create(ctx context.Context, j *Job) (id, mark string, err error) {
	img, err := e.image(ctx, cmp.Or(j.Image, e.cfg.Image))
	if err != nil {
		return "", "", err
	}
	mark = "outcrop-job-" + rand.Text()
	script := guestScript(mark, j)
	if len(script) > maxUserData {
		return "", "", &Unfit{fmt.Sprintf("the command and its environment make %d bytes of user-data, the limit is %d; pass less", len(script), maxUserData)}
	}
	userData, agent := base64.StdEncoding.EncodeToString(script), false
	in := api.CreateInstance{Name: fmt.Sprintf("job-%s-%d", j.ID, j.Epoch), ImageID: img.ID, VCPUs: e.cfg.VCPUs, MemoryBytes: j.MemoryBytes + guestMemory,
		UserData: &userData, AgentEnabled: &agent, Tags: map[string]string{tagHost: e.cfg.Host, tagJob: j.Key()}}
	if j.DiskBytes > 0 {
		in.RootVolumeBytes = img.VirtualSizeBytes + j.DiskBytes
	}
	delay := backoff{first: time.Second, most: 10 * time.Second}
	for {
		var out api.Instance
		err := e.call(ctx, http.MethodPost, api.InstancePath(e.cfg.Project, ""), in, &out, api.IdempotencyKey("runner-"+j.Key()))
		var refused *fault.Error
		switch {
		case err == nil:
			return out.ID, mark, nil
		case errors.As(err, &refused) && refused.Kind == fault.Invalid:
			return "", "", &Unfit{"the instance for the job was refused: " + refused.Error()}
		case errors.As(err, &refused) && refused.Kind != fault.Internal && refused.Kind != fault.TooMany:
			return "", "", fmt.Errorf("the instance for the job was refused: %w", err)
		case !pause(ctx, delay.next(err), nil):
			return "", "", err
		}
	}
}

// lookEvery is after how many looks at the console the instance itself is looked at.
const lookEvery = 4

// follow reads the console until the command has ended.
func (e *Instances) follow(ctx context.Context, id string, c *console) (int64, error) {
	for n := 0; ; n++ {
		var out api.Console
		err := e.call(ctx, http.MethodGet, api.InstancePath(e.cfg.Project, id, "console"), nil, &out)
		if err == nil {
			text, err := base64.StdEncoding.DecodeString(out.Output)
			if err != nil {
				return 0, fmt.Errorf("the console of %s: %w", id, err)
			}
			if c.read(text); c.ended {
				return c.exit, nil
			}
		}
		if n%lookEvery == lookEvery-1 {
			if err := e.alive(ctx, id); err != nil {
				return 0, err
			}
		}
		if !pause(ctx, e.every, nil) {
			return 0, context.Cause(ctx)
		}
	}
}

// alive refuses an instance that cannot end the command any more. What cannot be
// learned is no reason.
func (e *Instances) alive(ctx context.Context, id string) error {
	var i api.Instance
	err := e.call(ctx, http.MethodGet, api.InstancePath(e.cfg.Project, id), nil, &i)
	switch {
	case fault.Is(err, fault.NotFound):
		return fmt.Errorf("the instance %s of the job is gone", id)
	case err != nil:
		return nil
	}
	switch i.State {
	case "creating", "running", "starting", "rebooting", "migrating":
		return nil
	}
	return fmt.Errorf("the instance %s of the job is %s before the command ended%s", id, i.State, after(": ", i.StateMessage))
}

func after(sep, text string) string {
	if text == "" {
		return ""
	}
	return sep + text
}
