package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// ConsoleProtocol is what a two-way console upgrades its connection to: raw bytes
// both ways until either end closes.
const ConsoleProtocol = "outcrop-console"

// Upgrade turns a request into a connection of raw bytes (RFC 9110, section 7.8).
// The transport speaks HTTP/1.1 only, which has upgrades. The connection ends with
// ctx or with Close.
func (c *Client) Upgrade(ctx context.Context, method, path, protocol string) (io.ReadWriteCloser, error) {
	ref, err := url.Parse(path)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.ResolveReference(ref).String(), nil)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, unreachable(c.base, err)
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		return nil, decodeError(resp)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		resp.Body.Close()
		return nil, fmt.Errorf("the server answered %s instead of switching to %s; does a proxy stand between?", resp.Status, protocol)
	}
	return conn, nil
}
