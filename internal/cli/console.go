package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"

	"golang.org/x/term"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// escapeKey is Ctrl-], which ends a two-way console.
const escapeKey = 0x1d

// attachConsole joins this terminal and the instance's serial console until
// Ctrl-], the end of the input, or the end of the guest.
func (a *app) attachConsole(ctx context.Context, id string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	conn, err := c.Upgrade(ctx, http.MethodGet, api.InstancePath(a.settings().project, id, "console", "stream"), api.ConsoleProtocol)
	if err != nil {
		return err
	}
	defer conn.Close()
	a.notef("connected to the console of %s; Ctrl-] ends it", id)
	restore, err := a.rawTerminal()
	if err != nil {
		return err
	}
	defer restore()
	done := make(chan error, 2)
	go func() {
		_, err := io.Copy(conn, &untilEscape{r: a.stdin})
		if err == nil && !a.terminalInput() {
			return // the input was a pipe: what the guest still says is wanted
		}
		done <- err
	}()
	go func() {
		_, err := io.Copy(a.stdout, conn)
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
	}
	if errors.Is(err, errEscape) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

// errEscape: the escape key was pressed, which ends it whatever the input is.
var errEscape = errors.New("escape")

// untilEscape ends with errEscape where the escape key is pressed.
type untilEscape struct{ r io.Reader }

func (u *untilEscape) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if i := bytes.IndexByte(p[:n], escapeKey); i >= 0 {
		return i, errEscape
	}
	return n, err
}

func (a *app) terminalInput() bool {
	f, ok := a.stdin.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// rawTerminal sends each key as it is pressed, also Ctrl-C, until restore.
func (a *app) rawTerminal() (restore func(), err error) {
	if !a.terminalInput() {
		return func() {}, nil
	}
	fd := int(a.stdin.(*os.File).Fd())
	old, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(fd, old) }, nil
}
