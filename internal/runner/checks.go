package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// condition is what the host's own checks found.
type condition struct {
	blocked string           // empty: nothing keeps the host from work
	lowDisk *api.HostLowDisk // nil: enough
	free    int64            // bytes for jobs beyond what the runner keeps free
}

// checks looks at the host again and again, beside the heartbeats, so that a
// check which hangs (a dead network mount) stops no beat: it becomes the reason.
type checks struct {
	cfg   *Config
	clock *clock

	mu   sync.Mutex
	last condition
	at   time.Duration // boot; meaningless before the first
	done bool

	ready chan struct{} // closed after the first
}

// patience is how many polls a check may take before it counts as hanging.
const patience = 3

// current is the last finding, or that there is none.
func (c *checks) current() condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		return condition{blocked: "the host's own checks have not finished yet"}
	}
	if age := c.clock.boot() - c.at; age > max(patience*c.cfg.Poll, time.Minute) {
		return condition{blocked: fmt.Sprintf("the host's own checks have not finished for %s; does a disk or a mount hang?", age.Round(time.Second))}
	}
	return c.last
}

// refresh runs all checks and reports whether the finding is another one.
func (c *checks) refresh(ctx context.Context) (changed bool) {
	found := c.examine(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		close(c.ready)
	}
	changed = !c.done || c.last.blocked != found.blocked || (c.last.lowDisk == nil) != (found.lowDisk == nil)
	c.last, c.at, c.done = found, c.clock.boot(), true
	return changed
}

// examine finds the first thing that keeps the host from work, and the disk.
func (c *checks) examine(ctx context.Context) condition {
	found := condition{}
	disk, err := c.cfg.probes.disk(c.cfg.Dir)
	if err != nil {
		found.blocked = "the free space of " + c.cfg.Dir + " cannot be read: " + err.Error()
	}
	found.free = max(0, disk.free-c.cfg.DiskNeeded)
	if err == nil && disk.free < c.cfg.DiskNeeded {
		found.lowDisk = &api.HostLowDisk{Free: disk.free, Needed: c.cfg.DiskNeeded}
	}
	for _, check := range []func(context.Context) string{
		func(context.Context) string { return found.blocked },
		func(context.Context) string { return tooFewInodes(disk) },
		c.kvm, c.memory, c.credentials, c.command, c.cfg.Engine.Check,
	} {
		if reason := check(ctx); reason != "" {
			found.blocked = cut(reason, 500)
			break
		}
	}
	return found
}

func (c *checks) kvm(ctx context.Context) string {
	if !c.cfg.RequireKVM {
		return ""
	}
	if err := c.cfg.probes.kvm(ctx); err != nil {
		return "KVM is not usable: " + err.Error()
	}
	return ""
}

// memory holds all slots against the machine.
func (c *checks) memory(context.Context) string {
	total, err := c.cfg.probes.memory()
	switch need := int64(c.cfg.Slots) * c.cfg.SlotMemory; {
	case err != nil:
		return "the size of the memory cannot be read: " + err.Error()
	case need > total:
		return fmt.Sprintf("%d jobs of %d bytes do not fit in this machine's memory of %d bytes; lower --slots or --slot-memory", c.cfg.Slots, c.cfg.SlotMemory, total)
	}
	return ""
}

// credentials wants each file there, private, and filled in.
func (c *checks) credentials(context.Context) string {
	for name, path := range c.cfg.Credentials {
		b, err := readOwn(path)
		text := strings.TrimSpace(string(b))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Sprintf("the credential %s is missing: %s does not exist", name, path)
		case err != nil:
			return fmt.Sprintf("the credential %s: %v", name, err)
		case text == "":
			return fmt.Sprintf("the credential %s is missing: %s is empty", name, path)
		case placeholder(text):
			return fmt.Sprintf("the credential %s in %s is still a placeholder", name, path)
		}
	}
	return ""
}

// command looks at the launcher that stands in front of each job's command.
func (c *checks) command(context.Context) string {
	for _, word := range c.cfg.Command {
		if placeholder(word) {
			return fmt.Sprintf("the command is still a placeholder: put the real one in place of %q", word)
		}
	}
	return ""
}

// placeholder reports whether a word is one that a template asks to replace.
func placeholder(word string) bool {
	w := strings.ToLower(strings.TrimSpace(word))
	if strings.HasPrefix(w, "<") && strings.HasSuffix(w, ">") || strings.HasPrefix(w, "/path/to/") || strings.HasPrefix(w, "{{") {
		return true
	}
	for _, p := range []string{"changeme", "change-me", "replace-me", "replace_me", "replaceme", "your-command", "your_command", "your-key", "your_key", "your-api-key", "todo", "placeholder", "xxx"} {
		if w == p {
			return true
		}
	}
	return false
}

// cut shortens text to n characters at most.
func cut(text string, n int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}

// probes are the checks' ways to the machine.
type probes struct {
	disk   func(dir string) (diskRoom, error)
	memory func() (total int64, err error)
	kvm    func(ctx context.Context) error
}

var hostProbes = probes{disk: diskOf, memory: totalMemory, kvm: tryKVM}

// diskRoom is what is left of a file system.
type diskRoom struct {
	free          int64 // bytes that the runner can use
	inodes, spare int64 // all, and those left; 0 and 0 where they are made as needed
}

func diskOf(dir string) (diskRoom, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return diskRoom{}, err
	}
	return diskRoom{free: int64(s.Bavail) * s.Bsize, inodes: int64(s.Files), spare: int64(s.Ffree)}, nil
}

// fewInodes is less than one checkout of a repository takes.
const fewInodes = 20_000

func tooFewInodes(d diskRoom) string {
	if d.inodes == 0 || d.spare >= min(fewInodes, d.inodes/20) {
		return ""
	}
	return fmt.Sprintf("low disk: only %d of %d inodes are left; remove files", d.spare, d.inodes)
}

func totalMemory() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemTotal")
}

// update finds out whether this is another version than the server last heard of,
// which is an update that somebody made (contract R-05).
func update(dir, version string, now time.Time) *api.HostUpdate {
	b, err := os.ReadFile(filepath.Join(dir, fileVersion))
	from := cut(strings.TrimSpace(string(b)), 64)
	if err != nil || from == "" || from == version {
		return nil
	}
	return &api.HostUpdate{From: from, To: version, Outcome: "updated", At: &now}
}
