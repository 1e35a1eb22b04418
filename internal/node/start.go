package node

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/cloudinit"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// startSteps bring up a VM that is down. The volume stays as the guest left it;
// seed, definition and claim are made anew for every start, and the taps that the
// definition names are looked after.
func (w *worker) startSteps(o order) []step {
	base := filepath.Join(w.dir, fileBase)
	root := filepath.Join(w.dir, fileRoot)
	return []step{
		{stepImage, absent(base), func(ctx context.Context) error { return w.makeBase(ctx, o, base) }},
		{stepVolume, func(context.Context) (bool, error) { return !exists(root) || len(o.desired.Volumes) > 1, nil },
			func(ctx context.Context) error { return w.makeVolumes(ctx, o, base, root) }},
		{stepSeed, nil, func(ctx context.Context) error { return w.makeSeed(ctx, o) }},
		{stepInterface, func(context.Context) (bool, error) { return w.a.wires != nil && len(o.desired.Interfaces) > 0, nil },
			func(ctx context.Context) error { return w.makeInterfaces(ctx, o) }},
		{stepDefine, nil, func(context.Context) error { return w.define(o) }},
		{stepClaim, nil, func(context.Context) error { return mark{Epoch: o.desired.Epoch}.write(w.dir) }},
		{stepBoot, nil, func(ctx context.Context) error { return w.boot(ctx, o) }},
		w.confirmStep(),
	}
}

// confirmStep makes a VM that is down later one that ended, instead of one that
// is still to boot. An agent that was killed between boot and this does it late,
// for the epoch that the mark claims: that is what runs.
func (w *worker) confirmStep() step {
	return step{stepConfirm, nil, func(context.Context) error {
		m, err := readMark(w.dir)
		if err != nil {
			return err
		}
		return mark{m.Epoch, true}.write(w.dir)
	}}
}

// confirmUp is how long a VM must be up before it is believed to have booted where
// nobody saw that.
const confirmUp = 2 * time.Second

// lateConfirm is the confirmation of a VM whose boot nobody saw succeed. For a moment
// after its own restart, libvirtd has been seen to tell of a VM as running whose QEMU
// had died with it; so it is looked at twice.
func (w *worker) lateConfirm() []step {
	confirm := w.confirmStep()
	return []step{{stepConfirm, nil, func(ctx context.Context) error {
		if !sleep(ctx, confirmUp) {
			return ctx.Err()
		}
		up, err := w.isUp(ctx)
		if err == nil && !up {
			err = errors.New("the VM went down before it was known to have booted")
		}
		if err != nil {
			return err
		}
		return confirm.do(ctx)
	}}}
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
	if err := w.stillHere(o); err != nil {
		return err
	}
	if err := makeDir(w.dir, 0o711); err != nil {
		return err
	}
	return w.a.images.link(ctx, o.desired.Image, base)
}

func (w *worker) makeVolumes(ctx context.Context, o order, base, root string) error {
	if !exists(root) {
		if err := w.makeRoot(ctx, o, base, root); err != nil {
			return err
		}
	}
	return w.makeData(ctx, o)
}

// makeRoot makes the root volume, once in the instance's life: a volume that is
// missing later is lost data, and an empty one in its place would hide that.
func (w *worker) makeRoot(ctx context.Context, o order, base, root string) error {
	m, err := readMark(w.dir)
	if err != nil {
		return err
	}
	vols, err := readVolumes(o.desired)
	if err != nil {
		return err
	}
	if m != (mark{}) || vols.root.Made {
		return hopelessf("the root volume %s is missing: put it back, or terminate the instance", root)
	}
	v, err := newVolume(vols.root)
	if err != nil {
		return err
	}
	v.path, v.base = root, base
	return w.a.makeVolume(ctx, v)
}

// makeInterfaces waits for the taps, with their guard and their services.
func (w *worker) makeInterfaces(ctx context.Context, o order) error {
	var ids []string
	for _, nic := range o.desired.Interfaces {
		ids = append(ids, nic.ID)
	}
	return w.a.wires.ready(ctx, ids)
}

// makeSeed writes the seed from the revision that this order holds
// (contract U-03).
func (w *worker) makeSeed(ctx context.Context, o order) error {
	userData, err := w.userData(ctx, o.desired.UserDataHash)
	if err != nil {
		return err
	}
	image, err := cloudinit.Image(cloudinit.Seed{
		InstanceID: cmp.Or(o.desired.CloudInitID, w.id),
		Hostname:   hostname(o.desired),
		PublicKeys: o.desired.PublicKeys,
		UserData:   userData,
		Interfaces: w.seedInterfaces(o.desired),
	})
	if err != nil {
		return hopelessf("the seed for cloud-init cannot be made: %v", err)
	}
	if err := w.keepUserData(userData); err != nil {
		return err
	}
	return writeFile(filepath.Join(w.dir, fileSeed), image)
}

// keepUserData gives the metadata service the bytes of this boot, which it goes on
// serving when the server has others for the next one (contract U-03).
func (w *worker) keepUserData(userData []byte) error {
	path := filepath.Join(w.dir, fileUserData)
	var err error
	if userData != nil {
		err = writeFile(path, userData)
	} else if err = os.Remove(path); os.IsNotExist(err) {
		err = nil
	}
	if err == nil {
		w.a.guests.boots(w.id, userData)
	}
	return err
}

// seedInterfaces names the cards as Linux does without a policy of its own: a match
// by MAC alone is not enough for every renderer (lesson 25).
func (w *worker) seedInterfaces(d api.DesiredInstance) (list []cloudinit.Interface) {
	if w.a.wires == nil {
		return nil
	}
	for i, nic := range d.Interfaces {
		list = append(list, cloudinit.Interface{MAC: nic.MAC, Name: "eth" + strconv.Itoa(i)})
	}
	return list
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
	vols, err := readVolumes(o.desired)
	if err != nil {
		return err
	}
	socket := w.a.dir.socket(w.id)
	if err := makeDir(filepath.Dir(socket), 0o711); err != nil {
		return err
	}
	return w.call(func(ctx context.Context) error {
		return w.a.cfg.Hypervisor.Define(ctx, w.spec(o.desired, vols, socket))
	})
}

// spec is the definition of the VM. The seed comes last, so that data volumes
// keep their names (contract U-11).
func (w *worker) spec(d api.DesiredInstance, vols volumes, socket string) hypervisor.Spec {
	s := hypervisor.Spec{
		ID:            w.id,
		UUID:          systemUUID(w.id),
		VCPUs:         int(d.VCPUs),
		MemoryBytes:   d.MemoryBytes,
		Disks:         []hypervisor.Disk{diskOf(vols.root, w.dir, fileRoot)},
		ConsoleLog:    filepath.Join(w.dir, fileConsole),
		ConsoleSocket: socket,
	}
	for _, v := range vols.data {
		s.Disks = append(s.Disks, diskOf(v, w.a.dir.volume(v.ID), fileVolume))
	}
	s.Disks = append(s.Disks, hypervisor.Disk{Path: filepath.Join(w.dir, fileSeed), Format: "raw", ReadOnly: true, Serial: cloudinit.Label})
	if w.a.wires != nil {
		for _, nic := range d.Interfaces {
			s.NICs = append(s.NICs, hypervisor.NIC{Tap: tap(nic), MAC: strings.ToLower(nic.MAC), MTU: nicMTU})
		}
	}
	return s
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
