package host

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Systemd is a machine that systemd runs. It is asked by systemctl, which asks
// logind first, so that inhibitors count (systemctl(1)).
type Systemd struct {
	// Root is where the machine's files are; empty is /.
	Root string
	// Program is systemctl; empty finds it in PATH.
	Program string
}

// runs reports whether systemd is the machine's init, as sd_booted(3) does.
func (s *Systemd) runs() bool {
	info, err := os.Lstat(s.path("run/systemd/system"))
	return err == nil && info.IsDir()
}

func (s *Systemd) path(name string) string { return filepath.Join(cmp.Or(s.Root, "/"), name) }

// verbs are systemctl's words.
var verbs = map[compute.PowerVerb]string{compute.PowerShutdown: "poweroff", compute.PowerReboot: "reboot"}

// Power asks systemd; see Host.
func (s *Systemd) Power(ctx context.Context, verb compute.PowerVerb) error {
	word, ok := verbs[verb]
	if !ok {
		return fmt.Errorf("this agent knows no power action %q; run the same version as the server", verb)
	}
	return s.call(ctx, word)
}

// slice holds the machine's own services, and no guest (systemd.special(7)).
const slice = "system.slice"

// KeepMemory sets MemoryMin and MemoryLow of system.slice until the next boot, and
// looks whether they are in force (contract N-10).
func (s *Systemd) KeepMemory(ctx context.Context, bytes int64) error {
	n := strconv.FormatInt(bytes, 10)
	if err := s.call(ctx, "set-property", "--runtime", slice, "MemoryMin="+n, "MemoryLow="+n); err != nil {
		return err
	}
	for _, file := range []string{"memory.min", "memory.low"} {
		if err := s.inForce(ctx, file, bytes); err != nil {
			return err
		}
	}
	return nil
}

const (
	inForceTries = 20
	inForcePause = 100 * time.Millisecond
)

// inForce waits a little for a control group's setting: systemd writes it after it
// has answered. The kernel keeps whole pages.
func (s *Systemd) inForce(ctx context.Context, file string, bytes int64) error {
	path := s.path(filepath.Join("sys/fs/cgroup", slice, file))
	page := int64(os.Getpagesize())
	var text string
	for try := 0; ; try++ {
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("systemd took the setting, but the kernel has no %s for %s; the machine needs version 2 of control groups with the memory controller: %w", file, slice, err)
		}
		text = strings.TrimSpace(string(b))
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n == bytes-bytes%page {
			return nil
		}
		if try == inForceTries {
			return fmt.Errorf("systemd took the setting, but %s of %s is %s in place of %d", file, slice, text, bytes)
		}
		select {
		case <-time.After(inForcePause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// call runs systemctl, which answers when systemd has taken the order.
func (s *Systemd) call(ctx context.Context, args ...string) error {
	if !s.runs() {
		return ErrNoSystemd
	}
	cmd := exec.CommandContext(ctx, cmp.Or(s.Program, "systemctl"), append([]string{"--no-ask-password"}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", args[0], err, strings.Join(strings.Fields(out.String()), " "))
	}
	return nil
}
