package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// jobSpec is what process 1 of a job is told, through a pipe: nothing of it, the
// environment least of all, stands on a command line.
type jobSpec struct {
	Command   []string
	Env       map[string]string
	UID       int // also the group
	Root      string
	Home, Tmp string
	Visible   []string
	FileBytes int64 // largest file; 0: no limit
}

// jobEnd is what it tells at the end.
type jobEnd struct {
	Exit  int64  // of the command; 128 and the signal that killed it
	Error string // why the command was not run
}

// The descriptors that process 1 starts with.
const (
	fdSpec = 3
	fdEnd  = 4
)

// JobInit is process 1 of a job: it builds the file system that the job sees,
// becomes the job's user for good, runs the command, and reports how it ended.
// When it ends the kernel ends all other processes of the job. It does not return.
func JobInit() {
	runtime.LockOSThread() // what the kernel keeps per thread is set and inherited here
	end := jobEnd{}
	exit, err := jobInit()
	if end.Exit = exit; err != nil {
		end.Error = err.Error()
	}
	_ = json.NewEncoder(os.NewFile(fdEnd, "end")).Encode(end)
	os.Exit(0)
}

func jobInit() (int64, error) {
	if os.Getpid() != 1 {
		return 0, errors.New("this command is the runner's own; it begins in namespaces that the runner makes")
	}
	syscall.CloseOnExec(fdSpec)
	syscall.CloseOnExec(fdEnd)
	pipe := os.NewFile(fdSpec, "spec")
	decoder := json.NewDecoder(pipe)
	var spec jobSpec
	if err := decoder.Decode(&spec); err != nil {
		return 0, fmt.Errorf("the job did not reach its process: %w", err)
	}
	go func() { // the runner is gone when the pipe ends
		_, _ = io.Copy(io.Discard, pipe)
		os.Exit(1)
	}()
	if err := enclose(&spec); err != nil {
		return 0, err
	}
	if err := become(&spec); err != nil {
		return 0, err
	}
	return command(&spec)
}

// enclose takes the host out of the job's sight.
func enclose(s *jobSpec) error {
	if err := buildRoot(s); err != nil {
		return fmt.Errorf("the job's file system: %w", err)
	}
	if err := unix.Sethostname([]byte("job")); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("the job's loopback: %w", err)
	}
	// A session keyring would be inherited from the runner.
	_, _, _ = unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0) // the runner's own is better
	return nil
}

// become makes this process the job's user, with no way back.
func become(s *jobSpec) error {
	limits := map[int]uint64{unix.RLIMIT_CORE: 0}
	if s.FileBytes > 0 {
		limits[unix.RLIMIT_FSIZE] = uint64(s.FileBytes)
	}
	for what, n := range limits {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("a limit of the job: %w", err)
		}
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("a capability stays: %w", err)
		}
	}
	// These three change every thread; becoming no root drops all capabilities.
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(s.UID, s.UID, s.UID), syscall.Setresuid(s.UID, s.UID, s.UID)); err != nil {
		return fmt.Errorf("the job's user: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	// The change of user cleared what the runner had set.
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}

// workDir is the job's home as it sees it.
const workDir = "/workspace"

// command runs the job's command and returns its exit code, reaping whatever else
// ends meanwhile, as process 1 must.
func command(s *jobSpec) (int64, error) {
	env := map[string]string{"HOME": workDir, "TMPDIR": "/tmp", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG": "C.UTF-8", "USER": "job", "LOGNAME": "job"}
	for k, v := range s.Env {
		env[k] = v
	}
	var list []string
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	if err := os.Chdir(workDir); err != nil {
		return 0, err
	}
	_ = os.Setenv("PATH", env["PATH"])
	path, err := exec.LookPath(s.Command[0])
	if err != nil {
		return notRun(s.Command[0], err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	pid, err := start(path, s, list, null.Fd())
	if err != nil {
		return notRun(s.Command[0], err)
	}
	go func() {
		for range ended {
			_ = unix.Kill(-pid, unix.SIGTERM)
		}
	}()
	return reap(pid)
}

// notRun is what a shell would answer for a program that cannot be run.
func notRun(name string, err error) (int64, error) {
	fmt.Fprintf(os.Stderr, "outcrop: cannot run %q: %v\n", name, err)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return 127, nil
	}
	return 126, nil
}

// start begins the command in a session of its own and, where the host allows it,
// in a user namespace that knows no other user: not even root, so there is nobody
// else to become.
func start(path string, s *jobSpec, env []string, stdin uintptr) (pid int, err error) {
	id := []syscall.SysProcIDMap{{ContainerID: s.UID, HostID: s.UID, Size: 1}}
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{stdin, 1, 2}, Sys: &syscall.SysProcAttr{
		Setsid: true, Cloneflags: unix.CLONE_NEWUSER, UidMappings: id, GidMappings: id}}
	// A process that cannot be dumped cannot be given its mappings by its own user.
	// Afterwards the job must not be able to look into this one.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	pid, err = syscall.ForkExec(path, s.Command, attr)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EUSERS) || errors.Is(err, syscall.EINVAL) {
		attr.Sys = &syscall.SysProcAttr{Setsid: true}
		pid, err = syscall.ForkExec(path, s.Command, attr)
	}
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err == nil { // the kernel takes the command before this process, and before the runner
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("500"), 0)
	}
	return pid, err
}

func reap(pid int) (int64, error) {
	for {
		var status syscall.WaitStatus
		n, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case n == pid && status.Signaled():
			return 128 + int64(status.Signal()), nil
		case n == pid && status.Exited():
			return int64(status.ExitStatus()), nil
		}
	}
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
