package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

const (
	consoleTail    = 256 << 10
	consoleTimeout = 30 * time.Second
)

// sendConsole sends the last bytes of a VM's console. A VM without any sends
// none, so that nobody waits for them.
func (a *agent) sendConsole(ctx context.Context, id string) {
	if !compute.ValidInstanceID(id) {
		return
	}
	text, err := tail(filepath.Join(a.dir.instance(id), fileConsole), consoleTail)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, consoleTimeout)
		defer cancel()
		err = a.up.Do(ctx, http.MethodPut, a.path("instances", id, "console"), bytes.NewReader(text), nil)
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("a console could not be sent", "instance", id, "error", err)
	}
}

// tail returns the last n bytes of a log. virtlogd begins a new file when one is
// full and keeps the one before as PATH.0, so the end may be in both.
func tail(path string, n int64) ([]byte, error) {
	last, err := tailFile(path, n)
	if err != nil || int64(len(last)) == n {
		return last, err
	}
	before, err := tailFile(path+".0", n-int64(len(last)))
	return append(before, last...), err
}

func tailFile(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, info.Size()-n), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, n))
}
