package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// request is an HTTP/1.1 request whose bytes are ready but for a moment in the
// middle, which is new in every sending.
type request struct {
	bytes []byte
	at    int // where the moment stands
}

// momentLayout has a fixed width.
const momentLayout = "2006-01-02T15:04:05.000000000Z"

func newRequest(method, path, host, token string, body []byte) (request, error) {
	at := bytes.Index(body, []byte(momentLayout))
	if at < 0 {
		return request{}, errors.New("the body has no place for the moment")
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", method, path, host, token, len(body))
	at += b.Len()
	b.Write(body)
	return request{b.Bytes(), at}, nil
}

// generator sends requests over keep-alive connections, one after the other on
// each. It does as little as it can, as it shares the machine with what it
// measures: a dear generator makes every server look alike.
type generator struct {
	conns []*loadConn
}

type loadConn struct {
	c        net.Conn
	r        *bufio.Reader
	requests []request // its own share
	next     int
	took     []time.Duration
}

// newGenerator connects n times to addr and deals out the requests.
func newGenerator(addr string, n int, requests []request) (*generator, error) {
	g := &generator{}
	for i := range min(n, len(requests)) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			g.close()
			return nil, err
		}
		lc := &loadConn{c: c, r: bufio.NewReader(c)}
		for j := i; j < len(requests); j += n {
			lc.requests = append(lc.requests, requests[j])
		}
		g.conns = append(g.conns, lc)
	}
	return g, nil
}

func (g *generator) close() {
	for _, c := range g.conns {
		c.c.Close()
	}
}

// measured is what one window under load showed.
type measured struct {
	perSecond float64
	p50, p99  time.Duration
	count     int
}

// sendFor keeps all connections busy for the time.
func (g *generator) sendFor(ctx context.Context, d time.Duration) (measured, error) {
	var over atomic.Bool
	timer := time.AfterFunc(d, func() { over.Store(true) })
	defer timer.Stop()
	return g.send(func(*loadConn) bool { return !over.Load() && ctx.Err() == nil })
}

// sendAll sends every request once.
func (g *generator) sendAll(ctx context.Context) (measured, error) {
	return g.send(func(c *loadConn) bool { return len(c.took) < len(c.requests) && ctx.Err() == nil })
}

func (g *generator) send(more func(*loadConn) bool) (m measured, err error) {
	errs := make([]error, len(g.conns))
	var wg sync.WaitGroup
	begun := time.Now()
	for i, c := range g.conns {
		c.took = c.took[:0]
		wg.Go(func() {
			for errs[i] == nil && more(c) {
				errs[i] = c.once()
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(begun)
	for _, err := range errs {
		if err != nil {
			return m, err // one tells enough
		}
	}
	var all []time.Duration
	for _, c := range g.conns {
		all = append(all, c.took...)
	}
	if len(all) == 0 {
		return m, errors.New("nothing was answered in the time")
	}
	slices.Sort(all)
	m.count = len(all)
	m.perSecond = float64(len(all)) / elapsed.Seconds()
	m.p50, m.p99 = all[len(all)/2], all[len(all)*99/100]
	return m, nil
}

func (c *loadConn) once() error {
	r := c.requests[c.next]
	c.next = (c.next + 1) % len(c.requests)
	begun := time.Now()
	begun.UTC().AppendFormat(r.bytes[r.at:r.at], momentLayout)
	if _, err := c.c.Write(r.bytes); err != nil {
		return err
	}
	if err := c.answer(); err != nil {
		return err
	}
	c.took = append(c.took, time.Since(begun))
	return nil
}

var lengthHeader = []byte("Content-Length: ")

// answer reads one answer, which must be 200 with a Content-Length.
func (c *loadConn) answer() error {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	ok := bytes.HasPrefix(line, []byte("HTTP/1.1 200 "))
	status := string(line[:min(len(line), 40)])
	length := -1
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if n, found := bytes.CutPrefix(line, lengthHeader); found {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(n))); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return fmt.Errorf("answer %q without a length", status)
	}
	if !ok {
		body := make([]byte, min(length, 500))
		_, _ = io.ReadFull(c.r, body)
		return fmt.Errorf("answer %q: %s", status, body)
	}
	_, err = c.r.Discard(length)
	return err
}
