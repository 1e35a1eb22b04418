package cli

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

type image = api.Image

var images = &noun[image]{
	one: "image", command: "image",
	path: func(a *app, id string) string { return api.ImagePath(a.settings().project, id) },
	id:   func(i *image) string { return i.ID },
	name: func(i *image) string { return i.Name },
	isID: regexp.MustCompile(`^img-[a-z2-7]{10}$`).MatchString,
	columns: []field[image]{
		{"ID", func(i *image, _ time.Time) string { return i.ID }},
		{"NAME", func(i *image, _ time.Time) string { return i.Name }},
		{"PUBLIC", func(i *image, _ time.Time) string { return yesNo(i.Public) }},
		{"STATE", func(i *image, _ time.Time) string { return i.State }},
		{"FORMAT", func(i *image, _ time.Time) string { return i.Format }},
		{"FILE", func(i *image, _ time.Time) string { return formatSize(i.SizeBytes) }},
		{"DISK", func(i *image, _ time.Time) string { return formatSize(i.VirtualSizeBytes) }},
		{"AGE", func(i *image, now time.Time) string { return age(i.CreatedAt, now) }},
	},
	details: []field[image]{
		{"Id", func(i *image, _ time.Time) string { return i.ID }},
		{"Name", func(i *image, _ time.Time) string { return i.Name }},
		{"Project", func(i *image, _ time.Time) string { return i.ProjectID }},
		{"State", func(i *image, _ time.Time) string { return i.State }},
		{"Data devices", func(i *image, _ time.Time) string {
			words := make([]string, len(i.DataVolumes))
			for n, v := range i.DataVolumes {
				words[n] = formatSize(v.VirtualSizeBytes)
			}
			return strings.Join(words, ", ")
		}},
		{"Public", func(i *image, _ time.Time) string { return yesNo(i.Public) }},
		{"Format", func(i *image, _ time.Time) string { return i.Format }},
		{"Architecture", func(i *image, _ time.Time) string { return i.Architecture }},
		{"File", func(i *image, _ time.Time) string {
			return fmt.Sprintf("%s (%d bytes)", formatSize(i.SizeBytes), i.SizeBytes)
		}},
		{"Disk", func(i *image, _ time.Time) string { return formatSize(i.VirtualSizeBytes) }},
		{"SHA-256", func(i *image, _ time.Time) string { return i.SHA256 }},
		{"Tags", func(i *image, _ time.Time) string { return pairsText(i.Tags) }},
		{"Created", func(i *image, now time.Time) string { return moment(i.CreatedAt, now) }},
	},
}

func newImage(a *app) *cobra.Command {
	return group("image", "Import, list and delete disk images",
		"An image is a disk (qcow2 or raw) that instances boot from. Each instance gets a disk of its own on top of it.",
		"  outcrop image import --name debian debian-12.qcow2\n  outcrop image list",
		[]string{"images"},
		newImageImport(a),
		images.listCommand(a, text{"List the images that the project can use",
			"Lists the project's own images and the public ones. FILE is the size of the stored file, DISK that of the disk a guest sees.",
			"  outcrop image list"}),
		images.getCommand(a, text{"Show one image", "Shows one image by id or unique name.", "  outcrop image get debian"}),
		images.deleteCommand(a, "delete", "deleted", []string{"rm"}, text{"Delete an image",
			"Deletes an image. It is refused while an instance still stands on it, and says which.",
			"  outcrop image delete debian"}),
	)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
