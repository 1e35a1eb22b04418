package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupMount is where Linux has its control groups.
const cgroupMount = "/sys/fs/cgroup"

// Limits of a job beyond what it asks for.
const (
	maxProcesses = 4096
	initMemory   = 64 << 20 // the runner's own process 1 counts into the group
	cpuWeight    = 50       // of 100, the usual: jobs give way to the rest
)

// cgroups makes control groups under one name, on version 2 or on the mounted
// controllers of version 1, whichever the host has.
type cgroups struct {
	v2    bool
	roots map[string]string // controller ("" on version 2): folder of all this runner's groups
}

// openCgroups finds the host's kind. name is unique to the runner's data folder.
func openCgroups(mount, name string) (cgroups, error) {
	g := cgroups{roots: map[string]string{}}
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err == nil {
		g.v2 = true
		root := filepath.Join(mount, name)
		if err := os.MkdirAll(root, 0o755); err != nil {
			return g, err
		}
		for _, dir := range []string{mount, root} {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory +pids +cpu"), 0); err != nil {
				return g, err
			}
		}
		g.roots[""] = root
		return g, nil
	}
	for _, c := range []string{"memory", "pids", "cpu"} {
		if _, err := os.Stat(filepath.Join(mount, c, "cgroup.procs")); err != nil {
			return g, fmt.Errorf("the controller %s is not mounted at %s", c, mount)
		}
		root := filepath.Join(mount, c, name)
		if err := os.MkdirAll(root, 0o755); err != nil {
			return g, err
		}
		g.roots[c] = root
	}
	return g, nil
}

// group is the control group of one job.
type group struct {
	v2   bool
	dirs map[string]string
}

// create makes a group that holds memory bytes at most.
func (g *cgroups) create(key string, memory int64) (*group, error) {
	made := &group{v2: g.v2, dirs: map[string]string{}}
	for c, root := range g.roots {
		made.dirs[c] = filepath.Join(root, key)
		if err := os.Mkdir(made.dirs[c], 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, errors.Join(err, made.remove())
		}
	}
	bytes := strconv.FormatInt(memory+initMemory, 10)
	settings := [][3]string{{"memory", "memory.limit_in_bytes", bytes}, {"pids", "pids.max", strconv.Itoa(maxProcesses)},
		{"cpu", "cpu.shares", strconv.Itoa(1024 * cpuWeight / 100)}}
	if g.v2 {
		settings = [][3]string{{"", "memory.max", bytes}, {"", "pids.max", strconv.Itoa(maxProcesses)}, {"", "cpu.weight", strconv.Itoa(cpuWeight)}}
	}
	for _, s := range settings {
		if err := os.WriteFile(filepath.Join(made.dirs[s[0]], s[1]), []byte(s[2]), 0); err != nil {
			return nil, errors.Join(fmt.Errorf("the limit %s: %w", s[1], err), made.remove())
		}
	}
	made.noSwap(bytes)
	return made, nil
}

// noSwap keeps the job from taking swap beyond its memory, where the kernel counts
// swap at all.
func (g *group) noSwap(bytes string) {
	if g.v2 {
		_ = os.WriteFile(filepath.Join(g.dirs[""], "memory.swap.max"), []byte("0"), 0)
		return
	}
	_ = os.WriteFile(filepath.Join(g.dirs["memory"], "memory.memsw.limit_in_bytes"), []byte(bytes), 0)
}

// add puts a process into the group; its children follow.
func (g *group) add(pid int) error {
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return err
		}
	}
	return nil
}

// outOfMemory reports whether the kernel killed something for the memory limit.
func (g *group) outOfMemory() bool {
	path := filepath.Join(g.dirs["memory"], "memory.oom_control")
	if g.v2 {
		path = filepath.Join(g.dirs[""], "memory.events")
	}
	b, _ := os.ReadFile(path)
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok && n != "0" {
			return true
		}
	}
	return false
}

// kill ends all that is in the group.
func (g *group) kill() {
	for _, dir := range g.dirs {
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for line := range strings.Lines(string(b)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// remove ends what is in the group and removes it. A killed process leaves it a
// little later.
func (g *group) remove() (err error) {
	for _, dir := range g.dirs {
		for range 200 {
			if err = os.Remove(dir); !errors.Is(err, unix.EBUSY) {
				break
			}
			g.kill()
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the control group %s: %w", dir, err)
		}
	}
	return nil
}

// list is which jobs have a group.
func (g *cgroups) list() map[string]*group {
	all := map[string]*group{}
	for c, root := range g.roots {
		entries, _ := os.ReadDir(root)
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			if all[e.Name()] == nil {
				all[e.Name()] = &group{v2: g.v2, dirs: map[string]string{}}
			}
			all[e.Name()].dirs[c] = filepath.Join(root, e.Name())
		}
	}
	return all
}

// close removes this runner's own folders when they are empty.
func (g *cgroups) close() {
	for _, root := range g.roots {
		_ = os.Remove(root)
	}
}
