package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// caller is api.Client, and what stands in for it in tests.
type caller interface {
	Do(ctx context.Context, method, path string, in, out any, opts ...api.Option) error
	Upgrade(ctx context.Context, method, path, protocol string) (io.ReadWriteCloser, error)
}

// uplink is the way to the server with the token as it stands in its file, or as
// source has it.
type uplink struct {
	tokenFile string
	source    func() (string, error)
	refused   chan struct{} // capacity 1: the server did not take the token; may be nil
	dial      func(token string) (caller, error)

	mu     sync.Mutex
	token  string
	server caller
}

// Do calls the server; see api.Client.Do.
func (u *uplink) Do(ctx context.Context, method, path string, in, out any, opts ...api.Option) error {
	server, err := u.connect()
	if err != nil {
		return err
	}
	err = server.Do(ctx, method, path, in, out, opts...)
	if u.refused != nil && fault.Is(err, fault.Unauthenticated) {
		nudge(u.refused)
	}
	return err
}

// Upgrade opens a connection of raw bytes; see api.Client.Upgrade.
func (u *uplink) Upgrade(ctx context.Context, method, path, protocol string) (io.ReadWriteCloser, error) {
	server, err := u.connect()
	if err != nil {
		return nil, err
	}
	return server.Upgrade(ctx, method, path, protocol)
}

// connect makes a client anew when the token file holds another token. While the
// file cannot be read, as during its renewal, the last token goes on.
func (u *uplink) connect() (caller, error) {
	token, err := u.read()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.server != nil && (err != nil || token == u.token) {
		return u.server, nil
	}
	if err != nil {
		return nil, err
	}
	server, err := u.dial(token)
	if err != nil {
		return nil, err
	}
	u.token, u.server = token, server
	return server, nil
}

func (u *uplink) read() (string, error) {
	if u.source != nil {
		return u.source()
	}
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
