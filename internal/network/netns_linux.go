package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is an open network namespace.
type namespace struct {
	file  *os.File
	inode uint64
}

func openNamespace(path string) (*namespace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var fst unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Fstatfs(int(f.Fd()), &fst), unix.Fstat(int(f.Fd()), &st)); err != nil {
		f.Close()
		return nil, err
	}
	if fst.Type != unix.NSFS_MAGIC {
		f.Close()
		return nil, fmt.Errorf("network: %s is no namespace: %w", path, fs.ErrNotExist)
	}
	return &namespace{file: f, inode: st.Ino}, nil
}

// currentNamespace is the calling thread's.
func currentNamespace() (*namespace, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return openNamespace("/proc/thread-self/ns/net")
}

func (n *namespace) fd() int { return int(n.file.Fd()) }

func (n *namespace) Close() error { return n.file.Close() }

// do runs fn on a thread inside the namespace. The thread is thrown away afterwards, so that nothing else ever runs on
// a thread that is in the wrong namespace. Sockets that fn opens stay in the namespace.
func (n *namespace) do(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with the goroutine
		if err := unix.Setns(n.fd(), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("network: enter the namespace: %w (root is needed)", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// sysctls writes settings below /proc/sys/net. A setting that this kernel lacks (IPv6 may be off) is left out.
func (n *namespace) sysctls(settings ...[2]string) error {
	return n.do(func() error {
		for _, s := range settings {
			err := os.WriteFile(filepath.Join("/proc/sys/net", s[0]), []byte(s[1]), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("network: set %s: %w", s[0], err)
			}
		}
		return nil
	})
}

// ensureNamespace opens the namespace that is mounted at path, and makes it when there is none. What a crash may leave,
// a plain file without a mount, is mounted over.
func ensureNamespace(path string) (*namespace, error) {
	if n, err := openNamespace(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o400)
	if err != nil {
		return nil, err
	}
	f.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // as in do
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("network: make a namespace: %w (root is needed)", err)
			return
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
			done <- fmt.Errorf("network: keep a namespace at %s: %w", path, err)
			return
		}
		done <- nil
	}()
	if err := <-done; err != nil {
		return nil, err
	}
	return openNamespace(path)
}

// removeNamespace lets go of the namespace mounted at path. It ends when no socket is open in it any more.
func removeNamespace(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			break // no mount (left)
		}
		if err != nil {
			return fmt.Errorf("network: unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
