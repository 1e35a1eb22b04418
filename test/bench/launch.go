package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// launchEnv makes this program measure launches where the node is, in its network
// namespace; the value is a launchLab.
const launchEnv = "OUTCROP_BENCH_LAUNCH"

func launches() []benchmark { return []benchmark{{"launch", benchLaunch}} }

// benchLaunch measures the time from create to the guest's userland, beside the
// same domain started by hand with virsh. It has a libvirtd and a network namespace
// of its own, so it disturbs no other node of this machine.
func benchLaunch(ctx context.Context, e *env) error {
	if os.Geteuid() != 0 {
		return errMissing("it needs root, for libvirt and a network namespace")
	}
	for _, tool := range []string{"virsh", "virtlogd", "qemu-img", "nsenter", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			return errMissing(tool + " is not installed (see scripts/deps.sh)")
		}
	}
	if err := e.build(ctx); err != nil {
		return err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	image, err := run(ctx, root, "images/build.sh", "micro")
	if err != nil {
		return err
	}
	netns := filepath.Base(e.dir)
	if _, err := run(ctx, root, "ip", "netns", "add", netns); err != nil {
		return err
	}
	defer run(context.WithoutCancel(ctx), root, "ip", "netns", "delete", netns)
	if _, err := run(ctx, root, "ip", "-n", netns, "link", "set", "lo", "up"); err != nil {
		return err
	}
	inside := "--net=/run/netns/" + netns
	libvirt, script := filepath.Join(e.dir, "libvirt"), "scripts/libvirtd-private.sh"
	defer run(context.WithoutCancel(ctx), root, "nsenter", inside, script, "stop", libvirt)
	uri, err := run(ctx, root, "nsenter", inside, script, "start", libvirt)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	lab, err := json.Marshal(launchLab{Dir: e.dir, Binary: e.binary, Image: image, URI: uri, Rounds: e.rounds})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "nsenter", inside, self)
	cmd.Env = append(os.Environ(), launchEnv+"="+string(lab))
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it has children to end
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	var r result
	if err := json.Unmarshal(out, &r); err != nil {
		return err
	}
	e.print(r)
	return nil
}

// run runs a command and returns what it prints, without the last newline.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("%s: %w: %s", cmd, err, exit.Stderr)
		}
		return "", err
	}
	return strings.TrimRight(string(out), "\n"), nil
}
