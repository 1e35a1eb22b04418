package control

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// CreateInstance accepts a launch and answers at once with the id; the placement
// loop does the rest. key is the Idempotency-Key, or empty.
func (c *Control) CreateInstance(ctx context.Context, who iam.Caller, project string, in api.CreateInstance, key string) (api.Instance, error) {
	if err := iam.Allow(who, iam.CreateInstance, iam.Scope{ProjectID: project}); err != nil {
		return api.Instance{}, err
	}
	spec, userData, err := launchSpec(in)
	if err != nil {
		return api.Instance{}, err
	}
	out, err := once(ctx, c, "instances/"+project, key, in, func(tx *store.Tx) (api.Instance, error) {
		return c.insertInstance(tx, who, project, spec, &in, userData)
	})
	out.Warnings = lintWarnings(userData)
	if err == nil {
		c.place.poke()
	}
	return out, err
}

func (c *Control) insertInstance(tx *store.Tx, who iam.Caller, project string, spec compute.InstanceSpec, in *api.CreateInstance, userData []byte) (api.Instance, error) {
	if spec.PlacementGroupID != "" {
		// So that the group is not deleted meanwhile.
		if _, err := tx.LockPlacement(); err != nil {
			return api.Instance{}, err
		}
	}
	l, err := planLaunch(tx, project, spec, in)
	if err != nil {
		return api.Instance{}, err
	}
	spec = l.spec
	if err := checkQuota(tx, project, l.ask()); err != nil {
		return api.Instance{}, err
	}
	subnet, err := subnetFor(tx, project, in.SubnetIDs)
	if err != nil {
		return api.Instance{}, err
	}
	spec.SubnetID = subnet.ID
	if userData != nil {
		if spec.UserDataHash, err = tx.PutBlob(userData); err != nil {
			return api.Instance{}, err
		}
	}
	agent := compute.Agent{Activation: compute.ActivationCommand}
	if l.image.Tags[compute.ActivationTag] == string(compute.ActivationAutomatic) {
		agent.Activation = compute.ActivationAutomatic
	}
	spec.AgentEnabled = agent.Activation == compute.ActivationAutomatic // what the image ships is wanted, unless the create says otherwise
	if in.AgentEnabled != nil {
		spec.AgentEnabled = *in.AgentEnabled
	}
	i := compute.Instance{
		ProjectID: project, Spec: spec, State: compute.StateCreating, Goal: compute.GoalRunning, Epoch: 1,
		Deadline: tx.Now.Add(compute.CreateDeadline), CreatedAt: tx.Now, RootVolumeID: compute.NewID(compute.VolumePrefix),
	}
	root := compute.Volume{ID: i.RootVolumeID, ProjectID: project, Device: "/dev/vda", SizeBytes: spec.RootVolumeBytes, Root: true, Auto: true, CreatedAt: tx.Now}
	d := &store.Details{Agent: agent, Volumes: append([]compute.Volume{root}, l.volumes...)}
	if l.group != nil {
		d.GroupName = l.group.Name
	}
	if err := insertWithNewID(tx, &i, d.Volumes); err != nil {
		return api.Instance{}, err
	}
	// Without a node yet: what it asks for counts for its project from now on.
	asked := store.Allocation{InstanceID: i.ID, ProjectID: project, Purpose: store.Holding, Allocation: l.request.Allocation(schedule.Decision{})}
	if err := tx.Allocate(&asked); err != nil {
		return api.Instance{}, err
	}
	if err := tx.PutAgent(i.ID, &agent); err != nil {
		return api.Instance{}, err
	}
	return instanceView(&i, d, tx.Now), event(tx, &i, who.Name, "create", "")
}

func launchImage(tx *store.Tx, project, id string) (compute.Image, error) {
	img, err := tx.Image(project, id)
	if errors.Is(err, store.ErrNotFound) {
		return img, fault.InvalidFields([]fault.Field{{Path: "imageId", Message: fmt.Sprintf("there is no image %q in this project; list them with: outcrop image list", id)}})
	}
	if err == nil && img.State != compute.ImageAvailable {
		return img, fault.InvalidFields([]fault.Field{{Path: "imageId", Message: fmt.Sprintf("the image is %s; wait until it is available: outcrop image get %s", img.State, id)}})
	}
	return img, err
}

// insertWithNewID draws ids until one was never given before.
func insertWithNewID(tx *store.Tx, i *compute.Instance, volumes []compute.Volume) error {
	for range 10 {
		i.ID = compute.NewInstanceID()
		for n := range volumes {
			volumes[n].InstanceID = i.ID
		}
		if err := tx.InsertInstance(i, volumes); !errors.Is(err, store.ErrIDTaken) {
			return err
		}
	}
	return store.ErrIDTaken
}

func projectExists(tx *store.Tx, project string) error {
	_, err := tx.Project(project)
	return notFound(err, "there is no project %q that this token can see", project)
}

// rootSize is the root volume's size: what was asked for, else the type's
// default, and never less than the image's disk.
func rootSize(spec *compute.InstanceSpec, img *compute.Image) (int64, error) {
	if spec.RootVolumeBytes == 0 {
		size := compute.DefaultRootVolume
		if t, ok := compute.TypeByName(spec.InstanceType); ok {
			size = t.RootVolumeBytes
		}
		return max(size, img.VirtualSize), nil
	}
	if spec.RootVolumeBytes < img.VirtualSize {
		return 0, fault.InvalidFields([]fault.Field{{Path: "rootVolumeBytes", Message: fmt.Sprintf("is %d, the image's disk needs %d", spec.RootVolumeBytes, img.VirtualSize)}})
	}
	return spec.RootVolumeBytes, nil
}

// CheckLaunch names every problem that a create has by itself.
func CheckLaunch(in api.CreateInstance) error {
	_, _, err := launchSpec(in)
	return err
}

// launchSpec checks a create and turns it into a spec and the user-data bytes,
// which are nil when there are none. Every problem is named at once.
func launchSpec(in api.CreateInstance) (spec compute.InstanceSpec, userData []byte, err error) {
	var f []fault.Field
	add := func(path, format string, args ...any) {
		f = append(f, fault.Field{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	spec = compute.InstanceSpec{
		Name: in.Name, ImageID: in.ImageID, InstanceType: in.InstanceType, RootVolumeBytes: in.RootVolumeBytes,
		PublicKeys: in.PublicKeys, Tags: in.Tags, StartOnNodeBoot: in.StartOnNodeBoot, DesiredState: in.DesiredState,
		MaintenanceStrategy: compute.MaintenanceStrategy(in.MaintenanceStrategy),
		Metadata:            withOptions(compute.DefaultMetadataOptions, in.MetadataOptions),
	}
	checkName(in.Name, add)
	spec.Shape = checkShape(in, add)
	if in.RootVolumeBytes%512 != 0 {
		add("rootVolumeBytes", "is a multiple of 512")
	}
	userData = checkUserData(in.UserData, add)
	for n, k := range in.PublicKeys {
		if !validKeyLine(k) {
			add("publicKeys["+strconv.Itoa(n)+"]", "is not an OpenSSH public key line (like: ssh-ed25519 AAAA… comment)")
		}
	}
	checkTags(in.Tags, add)
	checkWishes(&spec, &in, add)
	refuseUnbuilt(in, add)
	return spec, userData, fault.InvalidFields(f)
}

type addField func(path, format string, args ...any)

func checkName(name string, add addField) {
	if strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		add("name", "has no control characters, and no space at either end")
	}
}

func checkShape(in api.CreateInstance, add addField) compute.Shape {
	custom := in.VCPUs != 0 || in.MemoryBytes != 0
	switch {
	case in.InstanceType != "" && custom:
		add("instanceType", "goes without vcpus and memoryBytes: give a type or a shape of your own")
	case in.InstanceType != "":
		t, ok := compute.TypeByName(in.InstanceType)
		if !ok {
			add("instanceType", "there is no type %q; the types are %s", in.InstanceType, typeNames())
		}
		return t.Shape
	case in.VCPUs == 0 && in.MemoryBytes == 0:
		add("instanceType", "is needed, or vcpus and memoryBytes; the types are %s", typeNames())
	case in.VCPUs == 0:
		add("vcpus", "is needed with memoryBytes")
	case in.MemoryBytes == 0:
		add("memoryBytes", "is needed with vcpus")
	case in.MemoryBytes%(1<<20) != 0:
		add("memoryBytes", "is a whole number of MiB (1048576)")
	}
	return compute.Shape{VCPUs: in.VCPUs, MemoryBytes: in.MemoryBytes}
}

func typeNames() string {
	names := make([]string, len(compute.Catalog))
	for i, t := range compute.Catalog {
		names[i] = t.Name
	}
	return strings.Join(names, ", ")
}

func checkUserData(text *string, add addField) []byte {
	if text == nil {
		return nil
	}
	// Base64 always, never guessed (lesson 23).
	b, err := base64.StdEncoding.Strict().DecodeString(*text)
	switch {
	case err != nil:
		add("userData", "is not base64 (RFC 4648 with padding); encode the bytes with: base64 -w0")
	case len(b) == 0:
		add("userData", "is empty; leave it out for none")
	case len(b) > compute.MaxUserDataBytes:
		add("userData", "has %d bytes, the limit is %d", len(b), compute.MaxUserDataBytes)
	default:
		return b
	}
	return nil
}

// validKeyLine reports whether line is a whole OpenSSH public key: one that was cut
// while it was copied would lock its owner out.
func validKeyLine(line string) bool {
	kind, rest, ok := strings.Cut(line, " ")
	if !ok || len(line) > 16384 || strings.ContainsAny(line, "\r\n\x00") {
		return false
	}
	text, _, _ := strings.Cut(rest, " ")
	blob, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return false
	}
	fields := sshFields(blob)
	return len(fields) >= 2 && string(fields[0]) == kind // the blob begins with its own kind
}

// sshFields takes a key's blob apart, which is strings with their lengths before
// them (RFC 4253 section 6.6, RFC 4251 section 5); nil where it is not whole.
func sshFields(b []byte) (fields [][]byte) {
	for len(b) > 0 {
		if len(b) < 4 {
			return nil
		}
		n := binary.BigEndian.Uint32(b)
		if b = b[4:]; uint64(n) > uint64(len(b)) {
			return nil
		}
		fields, b = append(fields, b[:n]), b[n:]
	}
	return fields
}

// Bounds of tags, as EC2 has them.
const (
	maxTags     = 50
	maxTagKey   = 128
	maxTagValue = 256
)

func checkTags(tags map[string]string, add addField) {
	if len(tags) > maxTags {
		add("tags", "has %d entries, the limit is %d", len(tags), maxTags)
	}
	for k, v := range tags {
		if k == "" || len([]rune(k)) > maxTagKey || len([]rune(v)) > maxTagValue {
			add("tags."+k, "a key has 1 to %d characters, a value up to %d", maxTagKey, maxTagValue)
		}
	}
}

// refuseUnbuilt names what the contract has and this version does not: refused,
// never ignored.
func refuseUnbuilt(in api.CreateInstance, add addField) {
	for _, u := range []struct {
		path string
		set  bool
	}{
		{"floatingIPPool", in.FloatingIPPool != ""}, {"instanceProfile", in.InstanceProfile != ""},
	} {
		if u.set {
			add(u.path, "is not built yet in this version; leave it out")
		}
	}
}

// GetInstance answers one instance.
func (c *Control) GetInstance(ctx context.Context, who iam.Caller, project, id string) (api.Instance, error) {
	if err := iam.Allow(who, iam.GetInstance, iam.Scope{ProjectID: project}); err != nil {
		return api.Instance{}, err
	}
	var out api.Instance
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		i, err := instance(tx, project, id)
		if err != nil {
			return err
		}
		d, err := tx.DetailsOf(id)
		if err != nil {
			return err
		}
		out = instanceView(&i.Instance, d, tx.Now)
		describe(&out, &i.Instance, &d.Agent, tx.Now)
		return nil
	})
	return out, err
}

func instance(tx *store.Tx, project, id string) (store.Instance, error) {
	i, err := tx.Instance(project, id)
	return i, notFound(err, "there is no instance %q in project %q", id, project)
}

// ListInstances answers a page of a project's instances, oldest first.
func (c *Control) ListInstances(ctx context.Context, who iam.Caller, project string, p Page) (api.List[api.Instance], error) {
	if err := iam.Allow(who, iam.ListInstances, iam.Scope{ProjectID: project}); err != nil {
		return api.List[api.Instance]{}, err
	}
	var details store.DetailsByID
	now := c.now()
	return pageByAge(ctx, c, p, func(tx *store.Tx, after store.Cursor, limit int) (rows []store.Instance, err error) {
		if err := projectExists(tx, project); err != nil {
			return nil, err
		}
		if details, err = tx.DetailsOfPage(project, after, limit); err != nil {
			return nil, err
		}
		return tx.Instances(project, after, limit)
	}, func(i *store.Instance) (api.Instance, store.Cursor) {
		return instanceView(&i.Instance, details.Of(i.ID), now), store.After(i.CreatedAt, i.ID)
	})
}

// UpdateInstance changes the name, tags or wishes of an instance. A desired state
// is answered at once; the platform converges (contract U-16).
func (c *Control) UpdateInstance(ctx context.Context, who iam.Caller, project, id string, in api.PatchInstance) (api.Instance, error) {
	out, err := c.change(ctx, who, iam.UpdateInstance, project, id, func(_ *store.Tx, i *store.Instance) (string, error) {
		if err := CheckPatch(in); err != nil {
			return "", err
		}
		if err := notGoing(i, "change"); err != nil {
			return "", err
		}
		if in.Name != nil {
			i.Spec.Name = *in.Name
		}
		if in.Tags != nil {
			i.Spec.Tags = in.Tags
		}
		if in.StartOnNodeBoot != nil {
			i.Spec.StartOnNodeBoot = *in.StartOnNodeBoot
		}
		if in.DesiredState.Set {
			i.Spec.DesiredState = in.DesiredState.Value
		}
		if in.MaintenanceStrategy.Set {
			i.Spec.MaintenanceStrategy = compute.MaintenanceStrategy(in.MaintenanceStrategy.Value)
		}
		return "update", nil
	})
	if err == nil && in.DesiredState.Set {
		c.converge.poke()
	}
	return out, err
}

// CheckPatch names every problem that a change of an instance has by itself.
func CheckPatch(in api.PatchInstance) error {
	var f []fault.Field
	add := func(path, format string, args ...any) {
		f = append(f, fault.Field{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	if in.Name != nil {
		checkName(*in.Name, add)
	}
	checkTags(in.Tags, add)
	if w := in.DesiredState; w.Set && !w.Null && w.Value != "running" && w.Value != "stopped" {
		add("desiredState", "is running, stopped or null")
	}
	if w := in.MaintenanceStrategy; w.Set && !w.Null && !slices.Contains(compute.MaintenanceStrategies, compute.MaintenanceStrategy(w.Value)) {
		add("maintenanceStrategy", "is migrate, stop, recreate or null")
	}
	return fault.InvalidFields(f)
}

// change runs one verb on one instance in one transaction: read, decide, write,
// note it on the timeline. A fn that answers "" has nothing to write. The node
// is nudged after the commit.
func (c *Control) change(ctx context.Context, who iam.Caller, a iam.Action, project, id string, fn func(*store.Tx, *store.Instance) (string, error)) (api.Instance, error) {
	if err := iam.Allow(who, a, iam.Scope{ProjectID: project}); err != nil {
		return api.Instance{}, err
	}
	var out api.Instance
	var node string
	err := retryStale(func() error {
		return c.db.Write(ctx, func(tx *store.Tx) error {
			i, err := instance(tx, project, id)
			if err != nil {
				return err
			}
			what, err := fn(tx, &i)
			if err != nil {
				return err
			}
			if what != "" {
				if err := c.save(tx, &i, who.Name, what, ""); err != nil {
					return err
				}
			}
			d, err := tx.DetailsOf(id)
			if err != nil {
				return err
			}
			out, node = instanceView(&i.Instance, d, tx.Now), i.NodeID
			return nil
		})
	})
	if err != nil {
		return api.Instance{}, err
	}
	c.told(node, out.State == string(compute.StateTerminated))
	return out, nil
}

// told wakes whoever has to act on a committed change: the node, and placement
// where room may have come free.
func (c *Control) told(nodeID string, room bool) {
	c.hub.nudge(nodeID)
	if room {
		c.place.poke()
	}
}

// retryStale runs a transaction again when another server changed the same row
// between its read and its write.
func retryStale(fn func() error) (err error) {
	for range 10 {
		if err = fn(); !errors.Is(err, store.ErrStale) {
			return err
		}
	}
	return err
}

// save writes a changed instance, releases what a terminated one held and what a
// migration did that is over, and adds the event.
func (c *Control) save(tx *store.Tx, i *store.Instance, actor, what, message string) error {
	if i.Settled() {
		if err := endMove(tx, i); err != nil {
			return err
		}
	}
	if i.State == compute.StateTerminated {
		if err := c.releaseAll(tx, i); err != nil {
			return err
		}
	}
	if err := tx.UpdateInstance(i); err != nil {
		return err
	}
	return event(tx, &i.Instance, actor, what, message)
}

// releaseAll gives back what a terminated instance held: user-data, room,
// address, and the volumes that came with it. Others stay, attached to none.
func (c *Control) releaseAll(tx *store.Tx, i *store.Instance) error {
	if err := tx.DropBlob(i.Spec.UserDataHash); err != nil {
		return err
	}
	i.Spec.UserDataHash = ""
	d, err := tx.DetailsOf(i.ID)
	if err != nil {
		return err
	}
	for n := range d.Volumes {
		v := &d.Volumes[n]
		switch {
		case v.Root: // its file went with the VM
			err = tx.DeleteVolume(v.ID)
		case v.Auto:
			err = discard(tx, v)
		default:
			v.InstanceID, v.Device = "", ""
			err = tx.UpdateVolume(v)
		}
		if err != nil {
			return err
		}
	}
	if err := tx.ReleaseInterfaces(i.ID); err != nil {
		return err
	}
	if err := failUpload(tx, i.ID, "the instance was terminated before its disks were read"); err != nil {
		return err
	}
	return tx.Release(i.ID)
}

func event(tx *store.Tx, i *compute.Instance, actor, what, message string) error {
	if message == "" {
		message = i.Message
	}
	return tx.AddEvent(store.Event{InstanceID: i.ID, Actor: actor, Event: what, State: i.State, Message: message})
}

// ListEvents answers a page of the timeline of an instance, oldest first.
func (c *Control) ListEvents(ctx context.Context, who iam.Caller, project, id string, p Page) (api.List[api.Event], error) {
	out := api.List[api.Event]{Items: []api.Event{}}
	if err := iam.Allow(who, iam.ListEvents, iam.Scope{ProjectID: project}); err != nil {
		return out, err
	}
	after := int64(0)
	if p.Cursor != "" {
		var err error
		if after, err = strconv.ParseInt(p.Cursor, 10, 64); err != nil {
			return out, badCursor()
		}
	}
	err := c.db.Read(ctx, func(tx *store.Tx) error {
		if _, err := instance(tx, project, id); err != nil {
			return err
		}
		rows, err := tx.Events(id, after, p.limit()+1)
		for _, e := range rows[:min(len(rows), p.limit())] {
			out.Items = append(out.Items, api.Event{At: e.At, Actor: e.Actor, Event: e.Event, State: string(e.State), Message: e.Message})
		}
		if len(rows) > p.limit() {
			out.NextCursor = strconv.FormatInt(rows[p.limit()-1].ID, 10)
		}
		return err
	})
	return out, err
}

// ListInstanceTypes answers the catalog.
func (c *Control) ListInstanceTypes(_ context.Context, who iam.Caller) (api.List[api.InstanceType], error) {
	out := api.List[api.InstanceType]{}
	if err := iam.Allow(who, iam.ListInstanceTypes, iam.Scope{}); err != nil {
		return out, err
	}
	for _, t := range compute.Catalog {
		out.Items = append(out.Items, api.InstanceType{Name: t.Name, VCPUs: t.Shape.VCPUs, MemoryBytes: t.Shape.MemoryBytes, RootVolumeBytes: t.RootVolumeBytes})
	}
	return out, nil
}

// stopPatience turns a stop's deadlineSeconds into how long the guest has.
func stopPatience(seconds *int64) (time.Duration, error) {
	if seconds == nil {
		return compute.DefaultStopDeadline, nil
	}
	if *seconds < 0 || *seconds > int64(compute.MaxStopDeadline/time.Second) {
		return 0, fault.InvalidFields([]fault.Field{{Path: "deadlineSeconds", Message: fmt.Sprintf("is 0 to %d", int64(compute.MaxStopDeadline/time.Second))}})
	}
	return time.Duration(*seconds) * time.Second, nil
}
