package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

type volume = api.Volume

var volumes = &noun[volume]{
	one: "volume", command: "volume",
	path: func(a *app, id string) string {
		return pathOf("/v1/projects/"+a.settings().project+"/compute/volumes", id)
	},
	id: func(v *volume) string { return v.ID },
	columns: []field[volume]{
		{"ID", func(v *volume, _ time.Time) string { return v.ID }},
		{"SIZE", func(v *volume, _ time.Time) string { return formatSize(v.SizeBytes) }},
		{"INSTANCE", func(v *volume, _ time.Time) string { return v.InstanceID }},
		{"DEVICE", func(v *volume, _ time.Time) string { return v.Device }},
		{"NODE", func(v *volume, _ time.Time) string { return v.NodeID }},
		{"WITH INSTANCE", func(v *volume, _ time.Time) string { return yesNo(v.AutoProvisioned) }},
		{"AGE", func(v *volume, now time.Time) string { return age(v.CreatedAt, now) }},
	},
	details: []field[volume]{
		{"Id", func(v *volume, _ time.Time) string { return v.ID }},
		{"Size", func(v *volume, _ time.Time) string { return formatSize(v.SizeBytes) }},
		{"Instance", func(v *volume, _ time.Time) string { return v.InstanceID }},
		{"Device", func(v *volume, _ time.Time) string { return v.Device }},
		{"Node", func(v *volume, _ time.Time) string { return v.NodeID }},
		{"Goes with instance", func(v *volume, _ time.Time) string { return yesNo(v.AutoProvisioned) }},
		{"Snapshot", func(v *volume, _ time.Time) string { return v.SourceSnapshotID }},
		{"Created", func(v *volume, now time.Time) string { return moment(v.CreatedAt, now) }},
	},
}

func newVolume(a *app) *cobra.Command {
	return group("volume", "Look at and delete volumes",
		`A volume is a disk of an instance. Data volumes are made with the instance
(instance create --data-volume) or given to a stopped one (instance attach-volume).
One that was detached keeps its content, on its node, until it is deleted.`,
		"  outcrop volume list", []string{"volumes"},
		volumes.listCommand(a, text{"List the volumes of the project", "Lists the project's volumes. WITH INSTANCE says whether one goes when its instance is terminated.",
			"  outcrop volume list"}),
		volumes.getCommand(a, text{"Show one volume", "Shows one volume by its id.", "  outcrop volume get vol-4fz81kq2xa"}),
		volumes.deleteCommand(a, "delete", "deleted", []string{"rm"}, text{"Delete a volume",
			"Deletes a volume that is attached to no instance, with its content.", "  outcrop volume delete vol-4fz81kq2xa"}),
	)
}

func newAttachVolume(a *app) *cobra.Command {
	var in api.AttachVolume
	var size string
	c := instanceCommand(a, "attach-volume", text{"Give a stopped instance a data volume",
		`Attaches a volume of the project that is on the same node, or makes a new one with
--size. The guest sees it as the next free /dev/vdX; its serial is the volume's id.`,
		"  outcrop instance attach-volume db --size 100GiB\n  outcrop instance attach-volume db --volume vol-4fz81kq2xa"},
		nil, func(ctx context.Context, id string) (err error) {
			if in.SizeBytes, err = sizeFlag("size", size); err != nil {
				return err
			}
			return a.act(ctx, id, "attach-volume", &in)
		})
	c.Flags().StringVar(&in.VolumeID, "volume", "", "id of a volume")
	c.Flags().StringVar(&size, "size", "", "size of a new volume, like 20GiB")
	c.MarkFlagsMutuallyExclusive("volume", "size")
	c.MarkFlagsOneRequired("volume", "size")
	return c
}

func newDetachVolume(a *app) *cobra.Command {
	var in api.DetachVolume
	c := instanceCommand(a, "detach-volume", text{"Take a data volume from a stopped instance",
		"Detaches a data volume. Its content stays, on the same node, until the volume is deleted.",
		"  outcrop instance detach-volume db --volume vol-4fz81kq2xa"},
		nil, func(ctx context.Context, id string) error { return a.act(ctx, id, "detach-volume", &in) })
	c.Flags().StringVar(&in.VolumeID, "volume", "", "id of the volume (required)")
	_ = c.MarkFlagRequired("volume")
	return c
}

func newCreateImage(a *app) *cobra.Command {
	var in api.CreateImage
	c := instanceCommand(a, "create-image", text{"Make an image of a stopped instance",
		`Makes an image of the root and data volumes as they are, as one image: instances
that launch from it get a data volume for each. It answers at once; the image is
"creating" until the node has sent its bytes, and the instance cannot start meanwhile.`,
		"  outcrop instance create-image db --name db-golden"},
		nil, func(ctx context.Context, id string) error {
			var it item[image]
			if err := a.post(ctx, api.InstancePath(a.settings().project, id, "create-image"), &in, &it); err != nil {
				return err
			}
			return printOne(a, it, images.details, images.id)
		})
	c.Flags().StringVar(&in.Name, "name", "", "name of the image (required)")
	_ = c.MarkFlagRequired("name")
	return c
}

type subnet = api.Subnet

func newSubnet(a *app) *cobra.Command {
	columns := []field[subnet]{
		{"ID", func(s *subnet, _ time.Time) string { return s.ID }},
		{"VPC", func(s *subnet, _ time.Time) string { return s.VPCID }},
		{"RANGE", func(s *subnet, _ time.Time) string { return s.CIDR }},
		{"DEFAULT", func(s *subnet, _ time.Time) string { return yesNo(s.Default) }},
	}
	return group("subnet", "Look at the project's network",
		"Each project has a network of its own, which no other project reaches although the ranges are the same.",
		"  outcrop subnet list", []string{"subnets"},
		command("list", text{"List the subnets of the project", "Lists the subnets. The default one is made with the project's first instance.",
			"  outcrop subnet list"}, []string{"ls"}, nil, func(cmd *cobra.Command, _ []string) error {
			items, err := list[subnet](cmd.Context(), a, "/v1/projects/"+a.settings().project+"/compute/subnets")
			if err != nil {
				return err
			}
			return printList(a, items, columns, func(s *subnet) string { return s.ID })
		}))
}
