package network

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The vocabulary that the rule sets of filter_linux.go are written in. A match is a piece of a rule; a rule is matches
// and a verdict, joined.
type match []expr.Any

const tableName = "outcrop"

// ruleset collects one table; it replaces the whole table of that name in one transaction.
type ruleset struct {
	conn  *nftables.Conn
	table *nftables.Table
}

func newRuleset(ns *namespace, family nftables.TableFamily) (*ruleset, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(ns.fd()))
	if err != nil {
		return nil, err
	}
	r := &ruleset{conn: conn, table: &nftables.Table{Family: family, Name: tableName}}
	conn.AddTable(r.table) // so that the deletion always finds one
	conn.DelTable(r.table)
	conn.AddTable(r.table)
	return r, nil
}

func (r *ruleset) commit() error { return r.conn.Flush() }

func (r *ruleset) chain(name string) *nftables.Chain {
	return r.conn.AddChain(&nftables.Chain{Name: name, Table: r.table})
}

func (r *ruleset) hook(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority, policy nftables.ChainPolicy) *nftables.Chain {
	return r.conn.AddChain(&nftables.Chain{
		Name: name, Table: r.table, Type: kind, Hooknum: hook, Priority: &priority, Policy: &policy,
	})
}

func (r *ruleset) rule(c *nftables.Chain, parts ...match) {
	var exprs []expr.Any
	for _, p := range parts {
		exprs = append(exprs, p...)
	}
	r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: c, Exprs: exprs})
}

// set adds a named set with its elements, in messages small enough for netlink.
func (r *ruleset) set(name string, key nftables.SetDatatype, keys [][]byte) (*nftables.Set, error) {
	s := &nftables.Set{Table: r.table, Name: name, KeyType: key, Concatenation: true}
	if err := r.conn.AddSet(s, nil); err != nil {
		return nil, err
	}
	const chunk = 500
	for len(keys) > 0 {
		n := min(chunk, len(keys))
		elements := make([]nftables.SetElement, n)
		for i, k := range keys[:n] {
			elements[i].Key = k
		}
		if err := r.conn.SetAddElements(s, elements); err != nil {
			return nil, err
		}
		keys = keys[n:]
	}
	return s, nil
}

func verdict(k expr.VerdictKind) match { return match{&expr.Verdict{Kind: k}} }

var (
	accept     = verdict(expr.VerdictAccept)
	drop       = verdict(expr.VerdictDrop)
	notrack    = match{&expr.Notrack{}}
	masquerade = match{&expr.Masq{}}
)

func goTo(chain string) match { return match{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }

// reject answers with an ICMP unreachable of this code, so that a guest's program fails at once and does not hang.
func reject(code uint8) match {
	return match{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
}

const (
	icmpPortUnreachable = 3
	icmpAdminProhibited = 13
)

// device compares the name of the incoming or outgoing device; a name with a * at its end is a prefix.
func device(key expr.MetaKey, name string, op expr.CmpOp) match {
	data := ifname(name)
	if p, ok := strings.CutSuffix(name, "*"); ok {
		data = []byte(p)
	}
	return match{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
}

func in(name string) match     { return device(expr.MetaKeyIIFNAME, name, expr.CmpOpEq) }
func out(name string) match    { return device(expr.MetaKeyOIFNAME, name, expr.CmpOpEq) }
func notOut(name string) match { return device(expr.MetaKeyOIFNAME, name, expr.CmpOpNeq) }

func ifname(name string) []byte {
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}

func payload(base expr.PayloadBase, offset uint32, want ...byte) match {
	return match{
		&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: uint32(len(want))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: want},
	}
}

func etherType(t uint16) match {
	return payload(expr.PayloadBaseLLHeader, 12, binary.BigEndian.AppendUint16(nil, t)...)
}

func protocol(p byte) match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p}}}
}

func sourcePort(proto byte, p uint16) match {
	return append(protocol(proto), payload(expr.PayloadBaseTransportHeader, 0, binary.BigEndian.AppendUint16(nil, p)...)...)
}

func port(proto byte, p uint16) match {
	return append(protocol(proto), payload(expr.PayloadBaseTransportHeader, 2, binary.BigEndian.AppendUint16(nil, p)...)...)
}

func ipv4() match {
	return match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}}}
}

func source(p netip.Prefix) match      { return address(12, p, expr.CmpOpEq) }
func destination(p netip.Prefix) match { return address(16, p, expr.CmpOpEq) }

// address compares an IPv4 address at an offset of the network header.
func address(offset uint32, p netip.Prefix, op expr.CmpOp) match {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))
	if p.Bits() == 0 {
		mask = make([]byte, 4)
	}
	return match{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// owned tells whether (incoming device, bytes of the packet) is in the set.
func owned(s *nftables.Set, base expr.PayloadBase, offset, length uint32, isNot bool) match {
	return match{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1},
		&expr.Payload{DestRegister: unix.NFT_REG_2, Base: base, Offset: offset, Len: length},
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: s.Name, SetID: s.ID, Invert: isNot},
	}
}

func ctState(bits uint32) match {
	return match{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func replies() match { return ctState(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED) }

// toLocal matches what is for an address of this namespace, broadcasts included.
func toLocal() [2]match {
	kind := func(rtn uint32) match {
		return match{
			&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(rtn)},
		}
	}
	return [2]match{kind(unix.RTN_LOCAL), kind(unix.RTN_BROADCAST)}
}

// clampMSS lowers the segment size of new connections to what the route can carry, for paths that lose ICMP.
func clampMSS() match {
	const tcpFlags, syn, rst, optMaxSeg = 13, 0x02, 0x04, 2
	return append(protocol(unix.IPPROTO_TCP),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn | rst}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{syn}},
		&expr.Rt{Register: 1, Key: expr.RtTCPMSS},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{SourceRegister: 1, Type: optMaxSeg, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
	)
}

func key(device string, rest []byte) []byte {
	pad := (4 - len(rest)%4) % 4
	return bytes.Join([][]byte{ifname(device), rest, make([]byte, pad)}, nil)
}
