package server

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// consoleStreamRoutes join a caller's connection and one that the node dials.
func (s *Server) consoleStreamRoutes() {
	open := op("GET", "/v1/projects/{projectId}/compute/instances/{instanceId}/console/stream", iam.OpenConsole, 101, "Open the two-way serial console")
	open.Description = "Send Connection: Upgrade and Upgrade: " + api.ConsoleProtocol + "; after 101 the connection carries raw bytes both ways."
	open.Parameters = pathParams(open.Path)
	response(&open, 101, "The connection is the console.", "", nil)
	s.raw(open, func(w http.ResponseWriter, r *http.Request) error {
		if err := wantsUpgrade(r); err != nil {
			return err
		}
		node, err := s.control.OpenConsole(r.Context(), callerOf(r.Context()), r.PathValue("projectId"), r.PathValue("instanceId"))
		if err != nil {
			return err
		}
		defer node.Close()
		caller, err := hijack(w)
		if err != nil {
			return err
		}
		s.join(caller, node)
		return nil
	})

	serve := op("POST", "/v1/compute/nodes/{nodeId}/streams/{streamId}", iam.ServeConsole, 101, "Serve a console that somebody waits for (agent-only)")
	serve.Parameters = pathParams(serve.Path)
	response(&serve, 101, "The connection is the console.", "", nil)
	s.raw(serve, func(w http.ResponseWriter, r *http.Request) error {
		if err := wantsUpgrade(r); err != nil {
			return err
		}
		deliver, err := s.control.ClaimStream(callerOf(r.Context()), r.PathValue("nodeId"), r.PathValue("streamId"))
		if err != nil {
			return err
		}
		conn, err := hijack(w)
		if err != nil {
			// Whoever waits must not wait for ever.
			a, b := net.Pipe()
			a.Close()
			deliver(b)
			return err
		}
		deliver(conn)
		return nil
	})
}

func wantsUpgrade(r *http.Request) error {
	if r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), api.ConsoleProtocol) {
		return fault.New(fault.Invalid, "ask by HTTP/1.1 with Connection: Upgrade and Upgrade: %s", api.ConsoleProtocol)
	}
	return nil
}

// hijacked is a connection with what was read of it already.
type hijacked struct {
	net.Conn
	r *bufio.Reader
}

func (h *hijacked) Read(p []byte) (int, error) { return h.r.Read(p) }

func hijack(w http.ResponseWriter) (io.ReadWriteCloser, error) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	if x, ok := w.(*exchange); ok {
		x.status = http.StatusSwitchingProtocols
	}
	_ = conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+api.ConsoleProtocol+"\r\n\r\n"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &hijacked{Conn: conn, r: buf.Reader}, nil
}

// join copies both ways until one end closes or the server stops.
func (s *Server) join(a, b io.ReadWriteCloser) {
	done := make(chan struct{}, 2)
	pipe := func(to, from io.ReadWriteCloser) {
		_, _ = io.Copy(to, from)
		done <- struct{}{}
	}
	go pipe(a, b)
	go pipe(b, a)
	select {
	case <-done:
		done <- struct{}{} // counted again below
	case <-s.stopping:
	}
	a.Close()
	b.Close()
	for range 2 {
		<-done
	}
}
