package cli

import (
	"context"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

type instance = api.Instance

var instances = &noun[instance]{
	one: "instance", command: "instance",
	path: func(a *app, id string) string { return api.InstancePath(a.settings().project, id) },
	id:   func(i *instance) string { return i.ID },
	name: func(i *instance) string { return i.Name },
	isID: compute.ValidInstanceID,
	// A terminated instance is listed for an hour, when its name may be in use again.
	hidden: func(i *instance) bool { return i.State == string(compute.StateTerminated) },
	columns: []field[instance]{
		{"ID", func(i *instance, _ time.Time) string { return i.ID }},
		{"NAME", func(i *instance, _ time.Time) string { return i.Name }},
		{"STATE", func(i *instance, _ time.Time) string { return i.State }},
		{"HEALTH", func(i *instance, _ time.Time) string { return i.Health }},
		{"TYPE", func(i *instance, _ time.Time) string { return i.InstanceType }},
		{"VCPUS", func(i *instance, _ time.Time) string { return strconv.FormatInt(i.VCPUs, 10) }},
		{"MEMORY", func(i *instance, _ time.Time) string { return formatSize(i.MemoryBytes) }},
		{"NODE", func(i *instance, _ time.Time) string { return i.NodeID }},
		{"AGE", func(i *instance, now time.Time) string { return age(i.CreatedAt, now) }},
	},
	details: []field[instance]{
		{"Id", func(i *instance, _ time.Time) string { return i.ID }},
		{"Name", func(i *instance, _ time.Time) string { return i.Name }},
		{"Project", func(i *instance, _ time.Time) string { return i.ProjectID }},
		{"State", func(i *instance, _ time.Time) string { return stateText(i) }},
		{"Desired", func(i *instance, _ time.Time) string { return i.DesiredState }},
		{"Health", healthText},
		{"Booted", bootText},
		{"Agent", agentText},
		{"Node", func(i *instance, _ time.Time) string { return i.NodeID }},
		{"At node boot", func(i *instance, _ time.Time) string { return onBootText(i) }},
		{"Migrating", func(i *instance, _ time.Time) string { return migrationText(i) }},
		{"In maintenance", func(i *instance, _ time.Time) string { return i.MaintenanceStrategy }},
		{"Type", func(i *instance, _ time.Time) string { return i.InstanceType }},
		{"vCPUs", func(i *instance, _ time.Time) string { return strconv.FormatInt(i.VCPUs, 10) }},
		{"Memory", func(i *instance, _ time.Time) string { return formatSize(i.MemoryBytes) }},
		{"Group", func(i *instance, _ time.Time) string { return i.PlacementGroupName }},
		{"Selectors", func(i *instance, _ time.Time) string { return strings.Join(i.Selectors, ", ") }},
		{"Countables", func(i *instance, _ time.Time) string { return unitsText(i.Countables) }},
		{"Image", func(i *instance, _ time.Time) string { return i.ImageID }},
		{"Address", func(i *instance, _ time.Time) string { return i.PrimaryPrivateIP }},
		{"Subnet", subnetText},
		{"Metadata", metadataText},
		{"Root volume", func(i *instance, _ time.Time) string { return i.RootVolumeID }},
		{"Data volumes", dataVolumesText},
		{"User-data", func(i *instance, _ time.Time) string { return i.UserDataHash }},
		{"Tags", func(i *instance, _ time.Time) string { return pairsText(i.Tags) }},
		{"Created", func(i *instance, now time.Time) string { return moment(i.CreatedAt, now) }},
		{"Launched", func(i *instance, now time.Time) string { return moment(orZero(i.LaunchedAt), now) }},
	},
}

func newInstance(a *app) *cobra.Command {
	return group("instance", "Create, control and look at instances",
		`An instance is a virtual machine of a project. The platform places it on a node,
boots it from an image, and gives it its user-data.`,
		"  outcrop instance list\n  outcrop instance create --name web --image debian --type m1.small --wait",
		[]string{"instances", "vm"},
		newInstanceCreate(a),
		instances.listCommand(a, text{"List the instances of the project",
			"Lists the instances of the project, all pages of it. A terminated instance stays listed for an hour.",
			"  outcrop instance list\n  outcrop instance list --project shop -o json"}),
		instances.getCommand(a, text{"Show one instance",
			"Shows one instance by id or unique name. -o json prints it as the server sent it.",
			"  outcrop instance get web\n  outcrop instance get i-4fZ81kQ2x -o yaml"}),
		newInstanceStart(a), newInstanceStop(a), newInstanceReboot(a), newInstanceTerminate(a), newInstanceMigrate(a),
		newInstanceUpdate(a), newInstanceConsole(a), newInstanceEvents(a), newUserData(a),
		newAttachVolume(a), newDetachVolume(a), newCreateImage(a), newMetadataOptions(a),
		newEnableAgent(a), newDisableAgent(a), newAgentStatus(a),
	)
}

// instanceCommand makes a command on one instance, named by id or name.
func instanceCommand(a *app, verb string, t text, aliases []string, run func(ctx context.Context, id string) error) *cobra.Command {
	c := command(verb, t, aliases, []string{"INSTANCE"}, func(cmd *cobra.Command, args []string) error {
		id, err := instances.resolve(cmd.Context(), a, args[0])
		if err != nil {
			return err
		}
		return run(cmd.Context(), id)
	})
	c.ValidArgsFunction = instances.complete(a)
	return c
}

func newInstanceUpdate(a *app) *cobra.Command {
	var name, desired, strategy string
	var onBoot bool
	var tags, untag []string
	var c *cobra.Command
	c = instanceCommand(a, "update", text{"Change an instance's name, tags or boot setting",
		`Changes what the flags name and leaves the rest. Tags are added to those that are
there; --untag takes one away. Nothing of it restarts the guest.`,
		"  outcrop instance update web --name web-old\n  outcrop instance update web --tag tier=front --untag draft"},
		nil, func(ctx context.Context, id string) error {
			// Not api.PatchInstance: that has no way to say that no tag is left.
			patch := map[string]any{}
			if c.Flags().Changed("name") {
				patch["name"] = name
			}
			if c.Flags().Changed("start-on-node-boot") {
				patch["startOnNodeBoot"] = onBoot
			}
			if c.Flags().Changed("desired-state") {
				patch["desiredState"] = desired
				if desired == "none" {
					patch["desiredState"] = nil
				}
			}
			if c.Flags().Changed("maintenance-strategy") {
				patch["maintenanceStrategy"] = strategy
			}
			if len(tags)+len(untag) > 0 {
				all, err := a.newTags(ctx, id, tags, untag)
				if err != nil {
					return err
				}
				patch["tags"] = all
			}
			if len(patch) == 0 {
				return usagef("nothing to change; give --name, --tag, --untag, --desired-state, --maintenance-strategy or --start-on-node-boot")
			}
			var it item[instance]
			if err := a.do(ctx, http.MethodPatch, instances.path(a, id), patch, &it); err != nil {
				return err
			}
			return printOne(a, it, instances.details, instances.id)
		})
	f := c.Flags()
	f.StringVar(&name, "name", "", "new name")
	f.StringVar(&desired, "desired-state", "", "running, stopped or none: what the platform is to keep it at")
	f.StringVar(&strategy, "maintenance-strategy", "", "migrate, stop or recreate: what a drain of its node does with it")
	completeWords(c, "maintenance-strategy", strategyWords...)
	f.BoolVar(&onBoot, "start-on-node-boot", false, "start it again when its node boots")
	f.StringArrayVar(&tags, "tag", nil, "tag to set, key=value (repeatable)")
	f.StringArrayVar(&untag, "untag", nil, "tag to take away, by key (repeatable)")
	return c
}

// newTags are the instance's tags after the change.
func (a *app) newTags(ctx context.Context, id string, tags, untag []string) (map[string]string, error) {
	add, err := parsePairs("tag", tags)
	if err != nil {
		return nil, err
	}
	it, err := instances.get(ctx, a, id)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	maps.Copy(all, it.value.Tags)
	maps.Copy(all, add)
	for _, k := range untag {
		delete(all, k)
	}
	return all, nil
}

// controlText is what a guest may send to steer a terminal: CSI and OSC
// sequences, and control characters but tab, newline and carriage return.
var controlText = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]`)

func newInstanceConsole(a *app) *cobra.Command {
	var interactive bool
	c := instanceCommand(a, "console", text{"Print the end of an instance's serial console, or join it",
		`Prints what the guest last wrote to its serial console, 256 KiB at most. On a
terminal, sequences that would steer it are left out; a file gets every byte.

-i joins the console both ways, through the server, until Ctrl-]. One caller at a
time has it.`,
		"  outcrop instance console web | tail -20\n  outcrop instance console -i web"},
		[]string{"console-output", "log"}, func(ctx context.Context, id string) error {
			if interactive {
				return a.attachConsole(ctx, id)
			}
			var it item[console]
			if err := a.do(ctx, http.MethodGet, api.InstancePath(a.settings().project, id, "console"), nil, &it); err != nil {
				return err
			}
			if a.flags.output != "table" {
				return a.encode(a.stdout, it)
			}
			out := it.value.Output
			if a.terminal(a.stdout) {
				out = controlText.ReplaceAll(out, nil)
			}
			_, err := a.stdout.Write(out)
			return err
		})
	c.Flags().BoolVarP(&interactive, "interactive", "i", false, "join it both ways")
	return c
}

// console is api.Console with its output decoded: encoding/json reads base64
// into bytes.
type console struct {
	Output []byte `json:"output"`
}

type event = api.Event

var eventColumns = []field[event]{
	{"AGE", func(e *event, now time.Time) string { return age(e.At, now) }},
	{"EVENT", func(e *event, _ time.Time) string { return e.Event }},
	{"STATE", func(e *event, _ time.Time) string { return e.State }},
	{"ACTOR", func(e *event, _ time.Time) string { return e.Actor }},
	{"MESSAGE", func(e *event, _ time.Time) string { return e.Message }},
}

func newInstanceEvents(a *app) *cobra.Command {
	return instanceCommand(a, "events", text{"Show what happened to an instance",
		"Shows the instance's timeline: who asked for what, where it was placed, which state followed and why.",
		"  outcrop instance events web"},
		[]string{"history"}, func(ctx context.Context, id string) error {
			items, err := list[event](ctx, a, api.InstancePath(a.settings().project, id, "events"))
			if err != nil {
				return err
			}
			return printList(a, items, eventColumns, func(e *event) string { return e.Event })
		})
}

// healthText is the health with the reason for it.
func healthText(i *instance, _ time.Time) string {
	if i.HealthReason == nil {
		return i.Health
	}
	return i.Health + " (" + i.HealthReason.Code + "): " + i.HealthReason.Message
}

// bootText is what the guest said of its last boot, and whether that ran the
// bytes that the server holds now.
func bootText(i *instance, now time.Time) string {
	b := i.Boot
	if b == nil {
		return ""
	}
	s := b.Status
	if b.Detail != "" {
		s += ": " + b.Detail
	}
	switch {
	case b.UserDataHash == "":
		s += ", without user-data"
	case b.UserDataHash != i.UserDataHash:
		s += ", with other user-data than is set now: " + b.UserDataHash
	default:
		s += ", with the user-data that is set"
	}
	return s + ", " + moment(b.At, now)
}

func dataVolumesText(i *instance, _ time.Time) string {
	words := make([]string, len(i.DataVolumes))
	for n, v := range i.DataVolumes {
		words[n] = v.Device + " " + v.VolumeID + " (" + formatSize(v.SizeBytes) + ")"
	}
	return strings.Join(words, ", ")
}

// stateText is the state with the reason for it.
func stateText(i *instance) string {
	text := i.State
	if i.ForceStopping {
		text += " by force"
	}
	if i.StateMessage != "" {
		text += ": " + i.StateMessage
	}
	return text
}

// agentText is how the guest agent that is wanted comes into the guest.
func agentText(i *instance, now time.Time) string {
	if !i.AgentEnabled {
		return ""
	}
	text := i.AgentActivation
	switch {
	case i.AgentEnrollmentPending:
		text += ", which was not run in the guest yet"
	case i.AgentEnrolledAt != nil:
		text += ", enrolled " + moment(*i.AgentEnrolledAt, now)
	}
	return text
}

func onBootText(i *instance) string {
	if !i.StartOnNodeBoot {
		return ""
	}
	return "started again"
}

// subnetText is where the primary interface really is.
func subnetText(i *instance, _ time.Time) string {
	for _, f := range i.NetworkInterfaces {
		return f.SubnetID + " of " + f.VPCID
	}
	return ""
}

// metadataText lists options of the metadata service that are not the usual ones.
func metadataText(i *instance, _ time.Time) string {
	var words []string
	o := &i.MetadataOptions
	if o.HTTPEndpoint == "disabled" {
		words = append(words, "off")
	}
	if o.HTTPPutResponseHopLimit > 1 {
		words = append(words, "hop limit "+strconv.FormatInt(o.HTTPPutResponseHopLimit, 10))
	}
	if o.InstanceMetadataTags == "enabled" {
		words = append(words, "tags")
	}
	return strings.Join(words, ", ")
}

func pairsText(m map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		words = append(words, k+"="+m[k])
	}
	return strings.Join(words, ", ")
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
