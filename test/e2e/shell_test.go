package e2e

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// shell types commands at a guest's serial console, where the micro image offers a
// root shell.
type shell struct {
	t  *testing.T
	io io.ReadWriteCloser

	mu    sync.Mutex
	heard strings.Builder
	ended error
	n     int
}

// shell opens the console past the agent.
func (c *cloud) shell(id string) *shell {
	c.t.Helper()
	conn, err := c.vms.Console(c.t.Context(), id)
	if err != nil {
		c.t.Fatal(err)
	}
	return newShell(c.t, conn)
}

func newShell(t *testing.T, conn io.ReadWriteCloser) *shell {
	s := &shell{t: t, io: conn}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			s.mu.Lock()
			s.heard.Write(buf[:n])
			s.ended = err
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

// run runs a command and returns what it prints and its status. The end is marked
// by a text that the echo of the command does not hold.
func (s *shell) run(command string) (said string, status int) {
	s.t.Helper()
	s.n++
	begin, end := fmt.Sprintf("BEGIN-%d-", s.n), fmt.Sprintf("END-%d-", s.n)
	s.mu.Lock()
	s.heard.Reset()
	s.mu.Unlock()
	_, err := fmt.Fprintf(s.io, "echo BEGIN-'%d'-; %s; echo END-'%d'-$?-\n", s.n, command, s.n)
	if err != nil {
		s.t.Fatalf("console: %v", err)
	}
	await(s.t, patience, "end of "+command, func() (string, bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		text := strings.ReplaceAll(s.heard.String(), "\r", "")
		_, after, began := strings.Cut(text, begin)
		before, rest, ended := strings.Cut(after, end)
		code, _, whole := strings.Cut(rest, "-")
		if began && ended && whole {
			said = strings.TrimPrefix(before, "\n")
			status, err = strconv.Atoi(code)
			return "", err == nil
		}
		return fmt.Sprintf("%q, %v", text, s.ended), false
	})
	return said, status
}

// can reports whether a command succeeds.
func (s *shell) can(command string) bool {
	s.t.Helper()
	_, status := s.run("{ " + command + "; } >/dev/null 2>&1")
	return status == 0
}

// reaches reports whether TCP gets through to an address and port.
func (s *shell) reaches(address string, port int) bool {
	s.t.Helper()
	return s.can(fmt.Sprintf("nc -w 2 %s %d </dev/null", address, port))
}

// times runs a command n times and returns how long each took, as the guest's own
// clock has it.
func (s *shell) times(n int, command string) (list []time.Duration) {
	s.t.Helper()
	said, _ := s.run(fmt.Sprintf("i=0; while [ $i -lt %d ]; do read a b </proc/uptime; %s >/dev/null 2>&1; read c d </proc/uptime; echo T $a $c; i=$((i+1)); done", n, command))
	for line := range strings.Lines(said) {
		var a, b float64
		if _, err := fmt.Sscanf(line, "T %f %f", &a, &b); err == nil {
			list = append(list, time.Duration((b-a)*float64(time.Second)))
		}
	}
	if len(list) != n {
		s.t.Errorf("%d of %d runs: %q", len(list), n, said)
	}
	return list
}
