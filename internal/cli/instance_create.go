package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// createFlags are the flags of instance create.
type createFlags struct {
	in                      api.CreateInstance
	image, memory, rootSize string
	userData                string
	publicKeys, tags        []string
	dataVolumes             []string
	countables              []string
	group                   string // placement group
	agent                   string
	metadata                api.MetadataOptions
	wait                    waitFlags
}

func newInstanceCreate(a *app) *cobra.Command {
	var fl createFlags
	c := command("create", text{"Create an instance and boot it",
		`Creates an instance and answers at once with its id; the platform then places it,
fetches the image to the node, and boots it. --wait follows that until it runs.
The size is a type of "outcrop instance-type list", or --vcpus with --memory.
User-data is sent byte for byte and may be binary (64 KiB at most). A create
whose answer is lost is sent again and still makes only one instance.`,
		`  outcrop instance create --name web --image debian --type m1.small --wait
  outcrop instance create --name db --image debian --vcpus 2 --memory 3GiB --root-size 40GiB \
      --user-data cloud-config.yaml --public-key ~/.ssh/id_ed25519.pub --tag tier=data
  id=$(outcrop instance create -q --name one --image micro --vcpus 1 --memory 256MiB)`},
		[]string{"launch", "run"}, nil, func(cmd *cobra.Command, _ []string) error {
			if err := need(cmd, "name", "image"); err != nil {
				return err
			}
			if err := fl.checkSize(cmd); err != nil {
				return err
			}
			return a.createInstance(cmd.Context(), &fl)
		})
	f := c.Flags()
	f.StringVar(&fl.in.Name, "name", "", "name of the instance, and its hostname where it is one")
	f.StringVar(&fl.image, "image", "", "image to boot from, by id or name")
	f.StringVar(&fl.in.InstanceType, "type", "", "instance type, like m1.small")
	f.Int64Var(&fl.in.VCPUs, "vcpus", 0, "vCPUs of a custom size")
	f.StringVar(&fl.memory, "memory", "", "memory of a custom size, like 512MiB")
	f.StringVar(&fl.rootSize, "root-size", "", "size of the root volume, like 20GiB (at least the image's)")
	f.StringVar(&fl.userData, "user-data", "", "file with the user-data, - for standard input")
	f.StringArrayVar(&fl.publicKeys, "public-key", nil, "file with OpenSSH public keys (repeatable)")
	f.StringArrayVar(&fl.tags, "tag", nil, "tag, key=value (repeatable)")
	f.StringVar(&fl.in.MaintenanceStrategy, "maintenance-strategy", "", "migrate (default), stop or recreate: what a drain of its node does with it")
	f.BoolVar(&fl.in.StartOnNodeBoot, "start-on-node-boot", false, "start it again when its node boots")
	f.StringArrayVar(&fl.dataVolumes, "data-volume", nil, "size of a data volume, like 100GiB (repeatable: /dev/vdb, /dev/vdc, …)")
	f.StringArrayVar(&fl.in.SubnetIDs, "subnet", nil, "subnet of the interface (the project's default)")
	f.StringVar(&fl.in.DesiredState, "desired-state", "", "running or stopped: what the platform is to keep it at")
	f.StringVar(&fl.agent, "agent", "", "on or off: whether a guest agent is wanted (on where the image ships one)")
	fl.addPlacementFlags(a, c)
	addMetadataFlags(c, &fl.metadata)
	completeWords(c, "maintenance-strategy", strategyWords...)
	completeWords(c, "agent", "on", "off")
	fl.wait.add(c, "running")
	completeTypes(c)
	return c
}

func (fl *createFlags) checkSize(cmd *cobra.Command) error {
	typed := cmd.Flags().Changed("type")
	custom := cmd.Flags().Changed("vcpus") || cmd.Flags().Changed("memory")
	switch {
	case typed && custom:
		return usagef("--type names a size; leave out --vcpus and --memory, or leave out --type")
	case typed:
		return nil
	case custom:
		return need(cmd, "vcpus", "memory")
	}
	return usagef("the size is missing; give --type (\"outcrop instance-type list\" shows them), or --vcpus and --memory")
}

func (a *app) createInstance(ctx context.Context, fl *createFlags) error {
	if err := a.fillCreate(ctx, fl); err != nil {
		return err
	}
	var it item[instance]
	err := a.post(ctx, instances.path(a, ""), &fl.in, &it)
	if errors.Is(err, context.Canceled) {
		return &failure{code: codeInterrupted, cause: err,
			message: "interrupted before the answer came; the instance may have been created",
			hint:    "\"outcrop instance list\" shows whether it was"}
	}
	if err != nil {
		return err
	}
	return a.finish(ctx, it, compute.StateRunning, &fl.wait)
}

// fillCreate turns the flags into the request.
func (a *app) fillCreate(ctx context.Context, fl *createFlags) (err error) {
	in := &fl.in
	if in.MemoryBytes, err = sizeFlag("memory", fl.memory); err != nil {
		return err
	}
	if in.RootVolumeBytes, err = sizeFlag("root-size", fl.rootSize); err != nil {
		return err
	}
	if in.Tags, err = parsePairs("tag", fl.tags); err != nil {
		return err
	}
	if in.Countables, err = parseUnits("countable", fl.countables); err != nil {
		return err
	}
	for _, size := range fl.dataVolumes {
		n, err := sizeFlag("data-volume", size)
		if err != nil {
			return err
		}
		in.DataVolumes = append(in.DataVolumes, api.DataVolumeInput{SizeBytes: n})
	}
	if fl.metadata != (api.MetadataOptions{}) {
		in.MetadataOptions = &fl.metadata
	}
	if in.AgentEnabled, err = onOff("agent", fl.agent); err != nil {
		return err
	}
	for _, file := range fl.publicKeys {
		keys, err := a.readKeys(file)
		if err != nil {
			return err
		}
		in.PublicKeys = append(in.PublicKeys, keys...)
	}
	if fl.userData != "" {
		b, err := a.readUserData(fl.userData)
		if err != nil {
			return err
		}
		text := base64.StdEncoding.EncodeToString(b)
		in.UserData = &text
	}
	if fl.group != "" {
		if in.PlacementGroupID, err = placementGroups.resolve(ctx, a, fl.group); err != nil {
			return err
		}
	}
	in.ImageID, err = images.resolve(ctx, a, fl.image)
	return err
}

// onOff reads a flag that is on, off or not given.
func onOff(flag, value string) (*bool, error) {
	switch value {
	case "":
		return nil, nil
	case "on", "off":
		on := value == "on"
		return &on, nil
	}
	return nil, usagef("--%s is on or off, not %q", flag, value)
}

// sizeFlag reads the size that a flag holds; 0 where it holds none.
func sizeFlag(flag, value string) (int64, error) {
	if value == "" {
		return 0, nil
	}
	n, err := parseSize(value)
	if err != nil {
		return 0, usagef("--%s: %s", flag, err)
	}
	return n, nil
}

// sendable is how much user-data is read at all: the server knows the limit, and
// this only keeps a wrong file (a disk image) from being read whole.
const sendable = 16 * compute.MaxUserDataBytes

// readUserData reads a file, or standard input, byte for byte.
func (a *app) readUserData(file string) ([]byte, error) {
	r, err := a.open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, sendable+1))
	if len(b) > sendable {
		return nil, &failure{code: codeFailed,
			message: fmt.Sprintf("%s holds more than %s; user-data is %d bytes at most", file, formatSize(sendable), compute.MaxUserDataBytes)}
	}
	return b, err
}

// readKeys reads the OpenSSH public keys of a file, one a line.
func (a *app) readKeys(file string) ([]string, error) {
	r, err := a.open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, sendable))
	if err != nil {
		return nil, err
	}
	if bytes.Contains(b, []byte("PRIVATE KEY-----")) {
		return nil, usagef("%s holds a private key; give the .pub file beside it", file)
	}
	var keys []string
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if line := strings.TrimSpace(s.Text()); line != "" && !strings.HasPrefix(line, "#") {
			keys = append(keys, line)
		}
	}
	if len(keys) == 0 {
		return nil, usagef("%s holds no public key", file)
	}
	return keys, nil
}

// open opens a file for reading, - for standard input.
func (a *app) open(file string) (io.ReadCloser, error) {
	if file == "-" {
		return io.NopCloser(a.stdin), nil
	}
	return os.Open(file)
}
