package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// systemPaths are what of the host a job can read: programs, libraries, and the
// parts of /etc that programs look for. No secrets, no state, no sockets.
var systemPaths = []string{
	"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/opt",
	"/etc/alternatives", "/etc/ca-certificates", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
	"/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/protocols", "/etc/services", "/etc/terminfo", "/etc/magic", "/etc/gitconfig", "/etc/os-release", "/etc/debian_version",
}

// devices are the harmless ones.
var devices = []string{"null", "zero", "full", "random", "urandom"}

// Sizes of the job's own file systems in memory.
const (
	rootOptions = "mode=0755,size=1m,nr_inodes=4k"
	shmOptions  = "mode=1777,size=64m"
)

// buildRoot puts the job's file system together and makes it the root. This mount
// namespace is the job's own: nothing of it reaches the host, and all of it goes
// with the job.
func buildRoot(s *jobSpec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	const plain = unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("tmpfs", s.Root, "tmpfs", plain, rootOptions); err != nil {
		return err
	}
	b := builder{root: s.Root}
	for _, path := range slices.Concat(systemPaths, s.Visible) {
		b.show(path)
	}
	b.bind(s.Home, workDir, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	b.bind(s.Tmp, "/tmp", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	b.mount("proc", "/proc", "proc", plain|unix.MS_NOEXEC, "")
	b.mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, rootOptions)
	for _, d := range devices {
		b.bind("/dev/"+d, "/dev/"+d, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	}
	b.mount("tmpfs", "/dev/shm", "tmpfs", plain|unix.MS_NOEXEC, shmOptions)
	for name, target := range map[string]string{"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2", "/var/tmp": "/tmp"} {
		b.link(name, target)
	}
	b.users(s.UID)
	b.folder("/run")
	b.folder("/root")
	if b.err != nil {
		return b.err
	}
	return pivot(s.Root)
}

// pivot makes dir the root and takes the old one away.
func pivot(dir string) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // the old root lies over the new one, pivot_root(2)
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
}

// builder adds to a root until something goes wrong.
type builder struct {
	root string
	err  error
}

func (b *builder) in(path string) string { return filepath.Join(b.root, path) }

func (b *builder) fail(what string, err error) {
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("%s: %w", what, err)
	}
}

func (b *builder) folder(path string) { b.fail(path, os.MkdirAll(b.in(path), 0o755)) }

func (b *builder) link(path, target string) {
	b.folder(filepath.Dir(path))
	b.fail(path, os.Symlink(target, b.in(path)))
}

// show lets the job read a path of the host, where the host has it.
func (b *builder) show(path string) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		b.fail(path, err)
	case info.Mode()&fs.ModeSymlink != 0: // /bin and the like on a merged /usr
		target, err := os.Readlink(path)
		b.fail(path, err)
		b.link(path, target)
	default:
		b.bind(path, path, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	}
}

// bind shows from, with all that is mounted below it, as path.
func (b *builder) bind(from, path string, attributes uint64) {
	if b.err != nil {
		return
	}
	info, err := os.Stat(from)
	if err != nil {
		b.fail(path, err)
		return
	}
	target := b.in(path)
	if info.IsDir() {
		b.folder(path)
	} else {
		b.folder(filepath.Dir(path))
		b.fail(path, os.WriteFile(target, nil, 0o644))
	}
	b.fail(path, unix.Mount(from, target, "", unix.MS_BIND|unix.MS_REC, ""))
	b.fail(path, unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attributes}))
}

func (b *builder) mount(source, path, kind string, flags uintptr, options string) {
	b.folder(path)
	b.fail(path, unix.Mount(source, b.in(path), kind, flags, options))
}

// users lets programs find a name for the job's user and for root, and no others.
func (b *builder) users(uid int) {
	for path, text := range map[string]string{
		"/etc/passwd":        fmt.Sprintf("root:x:0:0:root:/root:/usr/sbin/nologin\njob:x:%d:%d:job:%s:/bin/sh\n", uid, uid, workDir),
		"/etc/group":         fmt.Sprintf("root:x:0:\njob:x:%d:\n", uid),
		"/etc/hosts":         "127.0.0.1 localhost job\n::1 localhost job\n",
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
		"/etc/hostname":      "job\n",
	} {
		b.folder("/etc")
		b.fail(path, os.WriteFile(b.in(path), []byte(text), 0o644))
	}
}

// loopbackUp turns on the only network that a job has.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r)
}
