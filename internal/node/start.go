package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/cloudinit"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// startSteps bring up a VM that is down. The volume stays as the guest left it;
// seed, definition and claim are made anew for every start. What the VM needs of
// the network has its place before define, which puts it into the spec.
func (w *worker) startSteps(o order) []step {
	base := filepath.Join(w.dir, fileBase)
	root := filepath.Join(w.dir, fileRoot)
	return []step{
		{stepImage, absent(base), func(ctx context.Context) error { return w.makeBase(ctx, o, base) }},
		{stepVolume, absent(root), func(ctx context.Context) error { return w.makeRoot(ctx, o, base, root) }},
		{stepSeed, nil, func(ctx context.Context) error { return w.makeSeed(ctx, o) }},
		{stepDefine, nil, func(context.Context) error { return w.define(o) }},
		{stepClaim, nil, func(context.Context) error { return mark{Epoch: o.desired.Epoch}.write(w.dir) }},
		{stepBoot, nil, func(ctx context.Context) error { return w.boot(ctx, o) }},
		{stepConfirm, nil, func(context.Context) error { return mark{o.desired.Epoch, true}.write(w.dir) }},
	}
}

// resumeSteps let a VM go on whose disk found no room and has some now.
func (w *worker) resumeSteps() []step {
	return []step{{stepResume, nil, func(context.Context) error { return w.startVM() }}}
}

func absent(path string) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) { return !exists(path), nil }
}

// makeBase links the image into the instance's directory.
func (w *worker) makeBase(ctx context.Context, o order, base string) error {
	if err := makeDir(w.dir, 0o711); err != nil {
		return err
	}
	return w.a.images.link(ctx, o.desired.Image, base)
}

// makeRoot makes the root volume, once in the instance's life: a volume that is
// missing later is lost data, and an empty one in its place would hide that.
func (w *worker) makeRoot(ctx context.Context, o order, base, root string) error {
	m, err := readMark(w.dir)
	if err != nil {
		return err
	}
	if m != (mark{}) {
		return hopelessf("the root volume %s is missing: put it back, or terminate the instance", root)
	}
	v, err := rootVolume(o.desired)
	if err != nil {
		return err
	}
	v.path, v.base = root, base
	return w.a.makeVolume(ctx, v)
}

// makeSeed writes the seed from the revision that this order holds
// (contract U-03).
func (w *worker) makeSeed(ctx context.Context, o order) error {
	userData, err := w.userData(ctx, o.desired.UserDataHash)
	if err != nil {
		return err
	}
	image, err := cloudinit.Image(cloudinit.Seed{
		InstanceID: w.id,
		Hostname:   hostname(o.desired),
		PublicKeys: o.desired.PublicKeys,
		UserData:   userData,
	})
	if err != nil {
		return hopelessf("the seed for cloud-init cannot be made: %v", err)
	}
	return writeFile(filepath.Join(w.dir, fileSeed), image)
}

// userData fetches the bytes and checks them against their hash.
func (w *worker) userData(ctx context.Context, hash string) ([]byte, error) {
	if hash == "" {
		return nil, nil
	}
	var b bytes.Buffer
	to := &bounded{to: &b, left: cloudinit.MaxUserData}
	if err := w.a.up.Do(ctx, http.MethodGet, w.a.path("blobs", hash), nil, to); err != nil {
		return nil, fmt.Errorf("user-data could not be fetched: %w", err)
	}
	if sum := sha256.Sum256(b.Bytes()); hex.EncodeToString(sum[:]) != hash {
		return nil, fmt.Errorf("user-data arrived damaged: %d bytes that are not those of its hash", b.Len())
	}
	return b.Bytes(), nil
}

var label = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// hostname is the name where it can be one (RFC 1123, section 2.1), else the id.
func hostname(d api.DesiredInstance) string {
	if label.MatchString(d.Name) {
		return d.Name
	}
	return d.ID
}

func (w *worker) define(o order) error {
	if _, err := rootVolume(o.desired); err != nil {
		return err
	}
	socket := w.a.dir.socket(w.id)
	if err := makeDir(filepath.Dir(socket), 0o711); err != nil {
		return err
	}
	return w.call(func(ctx context.Context) error {
		return w.a.cfg.Hypervisor.Define(ctx, w.spec(o.desired, socket))
	})
}

// spec is the definition of the VM. The seed comes last, so that data volumes
// keep their names (contract U-11).
func (w *worker) spec(d api.DesiredInstance, socket string) hypervisor.Spec {
	return hypervisor.Spec{
		ID:          w.id,
		UUID:        systemUUID(w.id),
		VCPUs:       int(d.VCPUs),
		MemoryBytes: d.MemoryBytes,
		Disks: []hypervisor.Disk{
			{Path: filepath.Join(w.dir, fileRoot), Format: "qcow2", Serial: d.Volumes[0].ID,
				Backing: []hypervisor.Image{{Path: filepath.Join(w.dir, fileBase), Format: d.Image.Format}}},
			{Path: filepath.Join(w.dir, fileSeed), Format: "raw", ReadOnly: true, Serial: cloudinit.Label},
		},
		ConsoleLog:    filepath.Join(w.dir, fileConsole),
		ConsoleSocket: socket,
	}
}

// systemUUID makes an instance id the VM's UUID: the same for all its life, and
// with the "ec2" by which cloud-init knows its Ec2 source. The other digits are
// those of a version 8 UUID (RFC 9562, section 5.8).
func systemUUID(id string) string {
	sum := sha256.Sum256([]byte("outcrop instance " + id))
	x := hex.EncodeToString(sum[:])
	return fmt.Sprintf("ec2%s-%s-8%s-a%s-%s", x[:5], x[5:9], x[9:12], x[12:15], x[15:27])
}

// boot starts the VM when there is room for one more boot.
func (w *worker) boot(ctx context.Context, o order) error {
	leave, err := w.a.boots.enter(ctx, func() {
		w.report(o, api.ObservedInstance{Epoch: o.desired.Epoch, Phase: string(compute.PhasePreparing),
			Step: stepBoot, Message: "waits for other VMs of the node to boot"})
	})
	if err != nil {
		return err
	}
	defer leave(w.a.facts.bootTime())
	return w.startVM()
}

func (w *worker) startVM() error {
	return w.call(func(ctx context.Context) error { return w.a.cfg.Hypervisor.Start(ctx, w.id) })
}
