package control

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// maxHold is how long a sync may be held, whatever the agent asks.
const maxHold = 60 * time.Second

// recheck is how often a held sync looks by itself: a change that another server
// made gives this one no nudge.
const recheck = 5 * time.Second

// Sync takes what a node observes and answers what it is to do, at once when
// that is news to the node, else when it becomes so or the hold is over. busy
// ends the hold early (the server is stopping).
func (c *Control) Sync(ctx context.Context, who iam.Caller, nodeID string, in *api.SyncRequest, busy <-chan struct{}) (api.SyncResponse, error) {
	if err := iam.Allow(who, iam.SyncNode, iam.Scope{NodeID: nodeID}); err != nil {
		return api.SyncResponse{}, err
	}
	if err := c.rightBoot(ctx, nodeID, in.BootID); err != nil {
		return api.SyncResponse{}, err
	}
	if err := c.observe(ctx, nodeID, in); err != nil {
		return api.SyncResponse{}, err
	}
	if err := c.hearPower(ctx, nodeID, in); err != nil {
		return api.SyncResponse{}, err
	}
	hold := time.NewTimer(min(time.Duration(in.WaitSeconds)*time.Second, maxHold))
	defer hold.Stop()
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for last := false; ; {
		nudged := c.hub.wait(nodeID) // before looking, so that nothing slips through
		out, news, err := c.desired(ctx, nodeID, in.Revision)
		if out.Changed {
			c.obs.tell(nodeID, out.Revision)
		}
		if err != nil || news || last {
			return out, err
		}
		select {
		case <-nudged:
		case <-tick.C:
		case <-hold.C:
			last = true
		case <-busy:
			last = true
		case <-ctx.Done():
			return api.SyncResponse{}, ctx.Err()
		}
	}
}

// desired reads the node's whole desired set when its revision is not have.
func (c *Control) desired(ctx context.Context, nodeID, have string) (out api.SyncResponse, news bool, err error) {
	out = api.SyncResponse{
		Instances: []api.DesiredInstance{}, Subnets: []api.DesiredSubnet{}, Volumes: []api.KeptVolume{},
		Consoles: c.cons.wanted(nodeID), Streams: c.streams.wanted(nodeID), ServerCommit: c.o.Commit,
	}
	err = c.db.Read(ctx, func(tx *store.Tx) error {
		rev, err := tx.DesiredRevision(nodeID)
		if err != nil {
			return notFound(err, "node %q is not registered; its first heartbeat does that", nodeID)
		}
		out.Revision = strconv.FormatInt(rev, 10)
		if out.Revision == have {
			return nil
		}
		out.Changed = true
		return c.desiredSet(tx, nodeID, &out)
	})
	return out, out.Changed || len(out.Consoles) > 0 || len(out.Streams) > 0, err
}

func (c *Control) desiredSet(tx *store.Tx, nodeID string, out *api.SyncResponse) error {
	node, err := tx.Node(nodeID)
	if err != nil {
		return err
	}
	details, err := tx.DetailsOn(nodeID)
	if err != nil {
		return err
	}
	rows, err := tx.InstancesOn(nodeID)
	if err != nil {
		return err
	}
	for i := range rows {
		d, err := desiredInstance(tx, &node, &rows[i], details.Of(rows[i].ID))
		if err != nil {
			return err
		}
		out.Instances = append(out.Instances, d)
	}
	subnets, err := tx.SubnetsOn(nodeID)
	for _, s := range subnets {
		out.Subnets = append(out.Subnets, api.DesiredSubnet{ID: s.ID, ProjectID: s.ProjectID, VPCID: s.VPCID, CIDR: s.CIDR.String(), VPCCIDR: s.VPCCIDR.String()})
	}
	if err != nil {
		return err
	}
	volumes, err := tx.VolumesOn(nodeID)
	for _, v := range volumes {
		if !v.Root {
			out.Volumes = append(out.Volumes, api.KeptVolume{ID: v.ID, Gone: v.Going})
		}
	}
	if err != nil {
		return err
	}
	if out.Uploads, err = desiredUploads(tx, nodeID); err != nil {
		return err
	}
	out.Power = desiredPower(&node, tx.Now)
	if out.Wakes, err = desiredWakes(tx, nodeID); err != nil {
		return err
	}
	return desiredDepartures(tx, nodeID, out)
}

func desiredInstance(tx *store.Tx, n *compute.Node, i *store.Instance, details *store.Details) (api.DesiredInstance, error) {
	d := api.DesiredInstance{
		ID: i.ID, ProjectID: i.ProjectID, Name: i.Spec.Name, Epoch: i.Epoch, Goal: string(i.Goal), Reboot: i.State == compute.StateRebooting,
		Force: i.ForceStopping, VCPUs: i.Spec.Shape.VCPUs, MemoryBytes: i.Spec.Shape.MemoryBytes,
		UserDataHash: i.Spec.UserDataHash, PublicKeys: i.Spec.PublicKeys, Volumes: []api.DesiredVolume{}, Interfaces: []api.DesiredInterface{},
		CloudInitID: i.GuestID(), ImageID: i.Spec.ImageID, InstanceType: i.Spec.InstanceType, Region: n.Facts.Region, Zone: n.Facts.AvailabilityZone,
		LaunchedAt: optional(i.LaunchedAt), Metadata: metadataView(i.Spec.Metadata), Tags: i.Spec.Tags,
		AgentEnabled: i.Spec.AgentEnabled, AgentActivation: string(details.Agent.Activation),
	}
	stopBy := i.Deadline
	if i.Move != nil {
		stopBy = i.Move.StopBy
	}
	if i.State == compute.StateStopping || i.Move != nil {
		// At least 1: nothing at all would read as no deadline.
		d.StopWithinMS = max(1, stopBy.Sub(tx.Now).Milliseconds())
		d.Force = d.Force || !tx.Now.Before(stopBy)
	}
	img, err := tx.ImageByID(i.Spec.ImageID)
	// One that was deleted by another server while this instance was created of it is the
	// trouble of this instance alone: it does not start, and the node hears of all others.
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return d, err
	}
	d.Image = api.DesiredImage{SHA256: img.SHA256, Format: img.Format, SizeBytes: img.SizeBytes, VirtualSize: img.VirtualSize}
	for _, f := range details.Interfaces {
		d.Interfaces = append(d.Interfaces, api.DesiredInterface{ID: f.ID, SubnetID: f.SubnetID, MAC: f.MAC.String(), Address: f.Address.String()})
	}
	parts, err := tx.ImageVolumes(i.Spec.ImageID)
	for _, v := range details.Volumes {
		d.Volumes = append(d.Volumes, desiredVolume(&v, parts))
		if v.Root && v.Base != nil {
			d.Image = desiredImage(v.Base)
		}
	}
	return d, err
}

func desiredImage(p *compute.ImageVolume) api.DesiredImage {
	return api.DesiredImage{SHA256: p.SHA256, Format: p.Format, SizeBytes: p.SizeBytes, VirtualSize: p.VirtualSize}
}

func desiredVolume(v *compute.Volume, parts []compute.ImageVolume) api.DesiredVolume {
	d := api.DesiredVolume{ID: v.ID, SizeBytes: v.SizeBytes, Root: v.Root, Made: v.Made}
	base := v.Base // it was carried here on this
	for i := range parts {
		if base == nil && v.SnapshotID != "" && parts[i].SnapshotID == v.SnapshotID {
			base = &parts[i]
		}
	}
	if base != nil && !v.Root { // the root's is the instance's
		image := desiredImage(base)
		d.Image = &image
	}
	return d
}

// NodeBlob answers user-data bytes to the node where an instance needs them.
func (c *Control) NodeBlob(ctx context.Context, who iam.Caller, nodeID, sha256 string) (b []byte, err error) {
	if err := iam.Allow(who, iam.ReadNodeBlob, iam.Scope{NodeID: nodeID}); err != nil {
		return nil, err
	}
	err = c.db.Read(ctx, func(tx *store.Tx) (err error) {
		b, err = tx.BlobForNode(nodeID, sha256)
		return notFound(err, "no instance on node %q needs this blob", nodeID)
	})
	return b, err
}
