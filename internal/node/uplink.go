package node

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// doFunc is api.Client.Do.
type doFunc func(ctx context.Context, method, path string, in, out any, opts ...api.Option) error

// uplink is the way to the server with the token as it stands in its file.
type uplink struct {
	tokenFile string
	dial      func(token string) (doFunc, error)

	mu    sync.Mutex
	token string
	do    doFunc
}

// Do calls the server; see api.Client.Do.
func (u *uplink) Do(ctx context.Context, method, path string, in, out any, opts ...api.Option) error {
	do, err := u.connect()
	if err != nil {
		return err
	}
	return do(ctx, method, path, in, out, opts...)
}

// connect makes a client anew when the token file holds another token. While the
// file cannot be read, as during its renewal, the last token goes on.
func (u *uplink) connect() (doFunc, error) {
	token, err := u.read()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.do != nil && (err != nil || token == u.token) {
		return u.do, nil
	}
	if err != nil {
		return nil, err
	}
	do, err := u.dial(token)
	if err != nil {
		return nil, err
	}
	u.token, u.do = token, do
	return do, nil
}

func (u *uplink) read() (string, error) {
	b, err := os.ReadFile(u.tokenFile)
	if err != nil {
		return "", fmt.Errorf("the node's token: %w; make one with outcrop token create --role node --node ID", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("the node's token: %s is empty", u.tokenFile)
	}
	return token, nil
}

// renewed reports whether the token file holds another token than the one in use.
func (u *uplink) renewed() bool {
	token, err := u.read()
	u.mu.Lock()
	defer u.mu.Unlock()
	return err == nil && token != u.token
}
