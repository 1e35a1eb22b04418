package server

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// arriving bounds the time that a body takes. Its deadline ends with the body: one
// that stayed behind would end a held answer, as the connection is still read
// for the caller's leaving.
type arriving struct {
	io.ReadCloser
	rc      *http.ResponseController
	within  time.Duration
	renewed bool // by every read: bounds a standstill, not the whole
	begun   bool
}

// bound makes the body of r arrive within the time; the last bound holds. A
// renewed one is for bodies of any size.
func bound(w http.ResponseWriter, r *http.Request, within time.Duration, renewed bool) {
	body := r.Body
	if a, ok := body.(*arriving); ok {
		body = a.ReadCloser
	}
	if body != nil && body != http.NoBody {
		r.Body = &arriving{ReadCloser: body, rc: http.NewResponseController(w), within: within, renewed: renewed}
	}
}

func (a *arriving) Read(p []byte) (int, error) {
	if !a.begun || a.renewed {
		_ = a.rc.SetReadDeadline(time.Now().Add(a.within))
		a.begun = true
	}
	n, err := a.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		_ = a.rc.SetReadDeadline(time.Time{})
		return n, io.EOF
	}
	return n, errBrokenBody()
}
