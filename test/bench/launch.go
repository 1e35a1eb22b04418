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

func launches() []benchmark { return []benchmark{{"launch", benchLaunch}, {"agent", benchAgent}} }

// benchLaunch measures the time from create to the guest's userland, beside the
// same domain started by hand with virsh.
func benchLaunch(ctx context.Context, e *env) error {
	return inLaunchLab(ctx, e, launchLab{}, nil)
}

// benchAgent measures the time from create to the guest agent's first heartbeat at
// the server, step by step, beside the part that is the guest's own.
func benchAgent(ctx context.Context, e *env) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	agent := filepath.Join(e.dir, "outcrop-guest")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", agent, "./cmd/outcrop-guest")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the guest agent: %w\n%s", err, out)
	}
	return inLaunchLab(ctx, e, launchLab{Agent: true}, []string{"--agent", agent})
}

// inLaunchLab runs the lab with a micro image. It has a libvirtd and a network
// namespace of its own, so it disturbs no other node of this machine.
func inLaunchLab(ctx context.Context, e *env, l launchLab, imageArgs []string) error {
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
	l.Dir, l.Binary, l.Rounds = filepath.Join(e.dir, "lab"), e.binary, e.rounds
	if err := os.Mkdir(l.Dir, 0o711); err != nil {
		return err
	}
	defer os.RemoveAll(l.Dir)
	if l.Image, err = run(ctx, root, "images/build.sh", append([]string{"micro"}, imageArgs...)...); err != nil {
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
	libvirt, script := filepath.Join(l.Dir, "libvirt"), "scripts/libvirtd-private.sh"
	defer run(context.WithoutCancel(ctx), root, "nsenter", inside, script, "stop", libvirt)
	l.URI, err = run(ctx, root, "nsenter", inside, script, "start", libvirt)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	lab, err := json.Marshal(l)
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
