package runner

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// reserveBytes is what the runner keeps for itself, so that it can still write
// when a job has filled the disk (lesson 40).
const reserveBytes = 8 << 20

// reserve is a file that only takes space.
type reserve struct {
	path string
	mu   sync.Mutex
}

// keep makes the file where it is missing and there is room for it.
func (r *reserve) keep() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if info, err := os.Stat(r.path); err == nil && info.Size() == reserveBytes {
		return nil
	}
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, reserveBytes)
	if err := errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(r.path)
		return err
	}
	return nil
}

// release gives the space back. It reports whether there was any.
func (r *reserve) release() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return os.Remove(r.path) == nil
}

// logBytes bounds each of the two files of the log.
const logBytes = 4 << 20

// logFile is the runner's own log: bounded, private, and written on a full disk
// too, from the reserve. What cannot be written is dropped; the runner goes on.
type logFile struct {
	path    string
	reserve *reserve

	mu   sync.Mutex
	f    *os.File
	size int64
}

// Write adds whole lines.
func (l *logFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.write(b)
	if errors.Is(err, unix.ENOSPC) && l.reserve.release() {
		err = l.write(b)
	}
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

func (l *logFile) write(b []byte) error {
	if l.f == nil || l.size+int64(len(b)) > logBytes {
		if err := l.turn(); err != nil {
			return err
		}
	}
	n, err := l.f.Write(b)
	l.size += int64(n)
	return err
}

// turn opens the file, or puts a full one aside for a new one.
func (l *logFile) turn() error {
	if l.f != nil {
		_ = l.f.Close()
		l.f = nil
	}
	info, err := os.Lstat(l.path)
	if err == nil && info.Size() >= logBytes/2 {
		err = os.Rename(l.path, l.path+".1")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if l.f, err = os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	l.size, err = l.f.Seek(0, io.SeekEnd)
	return err
}

func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	return l.f.Close()
}

// lockDir makes this the only runner of the data folder until the file is closed
// or the process ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, fileLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(errors.New("another runner works in "+dir), f.Close())
	}
	return f, nil
}
