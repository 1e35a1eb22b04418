package api

import (
	"context"
	"net"
	"net/http"
)

// DialBy lets the client reach its server by dial in place of the network, as tests
// do that have no sockets. It is called before the first request.
func (c *Client) DialBy(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	tr := c.http.Transport.(*http.Transport)
	tr.Proxy, tr.DialContext = nil, dial
}
