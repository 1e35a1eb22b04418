package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Children is the engine that runs each job as a process of this machine: under a
// user of its own, with its own mounts, processes, network, host name and control
// group. It shares the kernel with its host, so it is a lesser wall than an
// instance, and is used only where the operator asked for it.
type Children struct {
	work    string // folder of workspaces, absolute
	slots   int
	visible []string
	init    []string
	spawner spawner

	mu     sync.Mutex
	groups *cgroups
	used   map[int]bool // slots
}

// ChildConfig is what Children is told.
type ChildConfig struct {
	Dir     string   // data folder of the runner
	Slots   int      // as Config.Slots
	Visible []string // files and folders of the host that jobs can read, beside the system's programs
	Init    []string // command line that ends up in JobInit
}

// firstUID is the user of the first slot. The range lies beyond what systemd gives
// to containers and below its foreign range (systemd, UIDS-GIDS.md).
const firstUID = 1_900_000_000

// termGrace is what a job gets between being asked to end and being killed.
const termGrace = 5 * time.Second

// NewChildren makes the engine.
func NewChildren(c ChildConfig) (*Children, error) {
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	for _, path := range c.Visible {
		if !filepath.IsAbs(path) || filepath.Clean(path) == "/" {
			return nil, fmt.Errorf("jobs can be shown absolute paths below /, not %q", path)
		}
	}
	return &Children{work: filepath.Join(dir, dirWork), slots: c.Slots, visible: c.Visible, init: c.Init, used: map[int]bool{}}, nil
}

// Check implements Engine.
func (c *Children) Check(context.Context) string {
	if os.Geteuid() != 0 {
		return "child processes of their own user need a runner that runs as root"
	}
	for _, path := range slices.Concat(systemPaths, c.visible) {
		if within(c.work, path) {
			return fmt.Sprintf("jobs can see %s, and the runner's keys lie below it; move the data folder elsewhere", path)
		}
	}
	if _, err := c.cgroups(); err != nil {
		return "jobs cannot be limited: no control group can be made: " + err.Error()
	}
	return ""
}

// Close removes what the engine has on the machine; no job may run.
func (c *Children) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.groups != nil {
		c.groups.close()
	}
	return nil
}

// cgroups are opened once they can be.
func (c *Children) cgroups() (*cgroups, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.groups == nil {
		sum := sha256.Sum256([]byte(c.work))
		g, err := openCgroups(cgroupMount, "outcrop-runner-"+hex.EncodeToString(sum[:4]))
		if err != nil {
			return nil, err
		}
		c.groups = &g
	}
	return c.groups, nil
}

// Sweep implements Engine.
func (c *Children) Sweep(_ context.Context, running func(string) bool) (gone []string, err error) {
	var errs []error
	if g, err := c.cgroups(); err == nil {
		for key, group := range g.list() {
			if !running(key) {
				errs = append(errs, group.remove())
			}
		}
	}
	all, err := workspaces(c.work)
	errs = append(errs, err)
	for key := range all {
		if !running(key) {
			gone = append(gone, key)
			errs = append(errs, workspace{filepath.Join(c.work, key)}.remove())
		}
	}
	return gone, errors.Join(errs...)
}

// slot takes a free slot, whose user is the job's.
func (c *Children) slot() (n int, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.slots {
		if !c.used[n] {
			c.used[n] = true
			return n, func() { c.mu.Lock(); defer c.mu.Unlock(); delete(c.used, n) }, nil
		}
	}
	return 0, nil, errors.New("all slots are taken")
}

// Run implements Engine.
func (c *Children) Run(ctx context.Context, j *Job) (exit int64, err error) {
	slot, release, err := c.slot()
	if err != nil {
		return 0, err
	}
	defer release()
	groups, err := c.cgroups()
	if err != nil {
		return 0, err
	}
	uid := firstUID + slot
	ws, err := makeWorkspace(c.work, j, uid)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, ws.remove()) }()
	group, err := groups.create(j.Key(), j.MemoryBytes)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, group.remove()) }()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go ws.watch(ctx, j.DiskBytes, stop)
	p := &process{spec: jobSpec{Command: j.Command, Env: j.Env, UID: uid, Home: ws.home(), Tmp: ws.tmp(), Root: ws.root(), Visible: c.visible, FileBytes: j.DiskBytes}}
	end, err := p.run(ctx, &c.spawner, c.init, group, j.Output)
	var unfit *Unfit
	switch {
	case errors.As(context.Cause(ctx), &unfit):
		return 0, unfit
	case err != nil && group.outOfMemory():
		return 0, &Unfit{fmt.Sprintf("killed by the kernel, as it needed more than its memory of %d bytes", j.MemoryBytes)}
	case err != nil:
		return 0, err
	case end.Error != "":
		return 0, errors.New(end.Error)
	case group.outOfMemory():
		fmt.Fprintf(j.Output, "outcrop: the kernel killed processes of the job, which needed more than its memory of %d bytes\n", j.MemoryBytes)
	}
	return end.Exit, nil
}

// watchDisk is how often a job's files are counted.
const watchDisk = 5 * time.Second

// watch ends a job that takes more disk than it asked for.
func (w workspace) watch(ctx context.Context, limit int64, stop context.CancelCauseFunc) {
	for limit > 0 && pause(ctx, watchDisk, nil) {
		if n, err := w.usage(); err == nil && n > limit {
			stop(&Unfit{fmt.Sprintf("killed, as its files take %d bytes and it asked for %d", n, limit)})
		}
	}
}

// process is a job's process 1 as seen from the host.
type process struct {
	spec jobSpec
	cmd  *exec.Cmd
}

// run starts process 1, gives it the job, and waits until all of the job is gone.
func (p *process) run(ctx context.Context, s *spawner, command []string, g *group, out io.Writer) (jobEnd, error) {
	specR, specW, err := os.Pipe()
	if err != nil {
		return jobEnd{}, err
	}
	defer specW.Close() // process 1 ends when this end is closed, so also with the runner
	endR, endW, err := os.Pipe()
	if err != nil {
		return jobEnd{}, errors.Join(err, specR.Close())
	}
	defer endR.Close()
	p.cmd = exec.Command(command[0], command[1:]...)
	p.cmd.Env = []string{}
	p.cmd.Dir = "/"
	p.cmd.Stdout, p.cmd.Stderr = out, out // one pipe, so in order
	p.cmd.ExtraFiles = []*os.File{specR, endW}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     true, Pdeathsig: syscall.SIGKILL,
	}
	err = s.start(p.cmd)
	specR.Close()
	endW.Close()
	if err != nil {
		return jobEnd{}, fmt.Errorf("no process with namespaces of its own can be made: %w", err)
	}
	defer p.cmd.Process.Kill()
	if err := g.add(p.cmd.Process.Pid); err != nil {
		return jobEnd{}, errors.Join(err, p.cmd.Process.Kill(), p.cmd.Wait())
	}
	defer context.AfterFunc(ctx, func() { p.stop(context.Cause(ctx)) })()
	if err := json.NewEncoder(specW).Encode(p.spec); err != nil {
		return jobEnd{}, errors.Join(err, p.cmd.Process.Kill(), p.cmd.Wait())
	}
	var end jobEnd
	told := json.NewDecoder(io.LimitReader(endR, 64<<10)).Decode(&end)
	err = p.cmd.Wait()
	if told != nil {
		return end, fmt.Errorf("the job's processes were killed from outside (%v)", err)
	}
	return end, nil
}

// stop asks the job to end and then kills it; what lost its lease gets no time.
// Killing process 1 kills all that it ever started.
func (p *process) stop(cause error) {
	if !errors.Is(cause, ErrLeaseLost) && p.cmd.Process.Signal(syscall.SIGTERM) == nil {
		time.AfterFunc(termGrace, func() { _ = p.cmd.Process.Kill() })
		return
	}
	_ = p.cmd.Process.Kill()
}
