package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	nameTTL         = 60 // seconds
	upstreamTimeout = 1500 * time.Millisecond
	upstreamAtOnce  = 64 // questions of one subnet on their way out
	// upstreamPause is how long nobody is asked after all name servers were silent, so that a guest's boot does not
	// wait for each name anew.
	upstreamPause = 5 * time.Second
)

// resolver is a subnet's name server. It knows the subnet's own names; the rest it asks of the host's name servers, and
// says at once that a name does not exist when there is no way out: a guest waits for any other answer.
type resolver struct {
	ctx      context.Context
	table    *atomic.Pointer[table]
	upstream func() []netip.AddrPort
	dial     dialer
	slots    chan struct{}
	resume   atomic.Int64 // no name server is asked before this, Unix nanoseconds
}

type dialer func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)

// newResolver is a resolver whose questions to others end with ctx.
func newResolver(ctx context.Context, t *atomic.Pointer[table], upstream func() []netip.AddrPort, dial dialer) *resolver {
	return &resolver{ctx: ctx, table: t, upstream: upstream, dial: dial, slots: make(chan struct{}, upstreamAtOnce)}
}

func (r *resolver) handle(w dns.ResponseWriter, ask *dns.Msg) {
	network := w.LocalAddr().Network()
	_ = w.WriteMsg(r.answer(network, ask)) // a guest that got no answer asks again
}

// answer is the answer to one question that came over this network (udp or tcp).
func (r *resolver) answer(network string, ask *dns.Msg) *dns.Msg {
	reply := new(dns.Msg)
	if len(ask.Question) != 1 || ask.Opcode != dns.OpcodeQuery {
		return reply.SetRcode(ask, dns.RcodeNotImplemented)
	}
	t := r.table.Load()
	if own, mine := t.answer(ask.Question[0]); mine {
		reply.SetReply(ask)
		reply.Authoritative, reply.RecursionAvailable = true, true
		if own == nil {
			reply.Rcode = dns.RcodeNameError
		}
		reply.Answer = own
		return reply
	}
	if !t.Egress {
		return reply.SetRcode(ask, dns.RcodeNameError)
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		return reply.SetRcode(ask, dns.RcodeServerFailure)
	}
	return r.forward(network, ask)
}

// forward asks the host's name servers in their order.
func (r *resolver) forward(network string, ask *dns.Msg) *dns.Msg {
	rcode := dns.RcodeNameError
	for _, server := range r.upstream() {
		if time.Now().UnixNano() < r.resume.Load() {
			return new(dns.Msg).SetRcode(ask, dns.RcodeServerFailure)
		}
		reply, err := r.exchange(network, server, ask)
		if err == nil {
			return reply
		}
		if isTimeout(err) {
			rcode = dns.RcodeServerFailure
		}
	}
	if rcode == dns.RcodeServerFailure {
		r.resume.Store(time.Now().Add(upstreamPause).UnixNano())
	}
	return new(dns.Msg).SetRcode(ask, rcode)
}

func (r *resolver) exchange(network string, server netip.AddrPort, ask *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(r.ctx, upstreamTimeout)
	defer cancel()
	conn, err := r.dial(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(r.ctx, func() { conn.Close() })()
	c := dns.Client{Net: network, Timeout: upstreamTimeout, UDPSize: dns.MaxMsgSize}
	reply, _, err := c.ExchangeWithConnContext(ctx, ask, &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize})
	return reply, err
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// answer is the records for a name of the subnet's own and whether the name is under our care at all: below the domain,
// or the reverse of an address of the range. nil with true: there is no such name.
func (t *table) answer(q dns.Question) ([]dns.RR, bool) {
	name := strings.ToLower(q.Name)
	header := dns.RR_Header{Name: q.Name, Class: dns.ClassINET, Ttl: nameTTL}
	if label, ok := strings.CutSuffix(name, "."+dns.Fqdn(t.Domain)); ok {
		p, known := t.byName[label]
		if !known {
			return nil, true
		}
		if q.Qtype != dns.TypeA {
			return []dns.RR{}, true
		}
		header.Rrtype = dns.TypeA
		return []dns.RR{&dns.A{Hdr: header, A: p.Address.AsSlice()}}, true
	}
	a, ok := reverse(name)
	if !ok || !t.CIDR.Contains(a) {
		return nil, false
	}
	p, known := t.byAddress[a]
	if !known || p.Hostname == "" {
		return nil, true
	}
	if q.Qtype != dns.TypePTR {
		return []dns.RR{}, true
	}
	header.Rrtype = dns.TypePTR
	return []dns.RR{&dns.PTR{Hdr: header, Ptr: dns.Fqdn(strings.ToLower(p.Hostname) + "." + t.Domain)}}, true
}

// reverse reads 4.3.2.1.in-addr.arpa.
func reverse(name string) (netip.Addr, bool) {
	rest, ok := strings.CutSuffix(name, ".in-addr.arpa.")
	if !ok {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(rest)
	if err != nil || !a.Is4() {
		return netip.Addr{}, false
	}
	b := a.As4()
	return netip.AddrFrom4([4]byte{b[3], b[2], b[1], b[0]}), true
}

// readResolvers are the name servers of a resolv.conf; none when it cannot be read.
func readResolvers(path string) []netip.AddrPort {
	c, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return nil
	}
	var list []netip.AddrPort
	for _, s := range c.Servers {
		if a, err := netip.ParseAddr(s); err == nil {
			list = append(list, netip.AddrPortFrom(a, dnsPort))
		}
	}
	return list
}
