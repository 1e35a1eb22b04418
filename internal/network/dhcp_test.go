package network

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

func testTable() *table {
	s := Subnet{ID: "subnet-aaaaaaaaaa", CIDR: vpc.DefaultCIDR, MTU: 1400, Domain: "internal", Egress: true}
	return newTable(s, []Port{
		{ID: "eni-1", InstanceID: "i-AbC", SubnetID: s.ID, MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Address: netip.MustParseAddr("172.31.0.3"), Hostname: "One"},
		{ID: "eni-2", InstanceID: "i-two", SubnetID: "subnet-bbbbbbbbbb", MAC: vpc.MAC{2, 0, 0, 0, 0, 2}, Address: netip.MustParseAddr("172.31.0.4")},
	})
}

func question(t testing.TB, mac byte, kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	mods = append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, mac}), dhcpv4.WithMessageType(kind)}, mods...)
	m, err := dhcpv4.New(mods...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func ip(s string) net.IP { return net.ParseIP(s).To4() }

// lesson 29
func TestDHCPAnswer(t *testing.T) {
	wants := func(s string) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(ip(s))) }
	server := func(s string) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptServerIdentifier(ip(s))) }
	client := func(s string) dhcpv4.Modifier { return func(m *dhcpv4.DHCPv4) { m.ClientIPAddr = ip(s) } }
	const none = dhcpv4.MessageTypeNone
	for _, c := range []struct {
		name string
		ask  *dhcpv4.DHCPv4
		kind dhcpv4.MessageType
		to   string
	}{
		{"discover", question(t, 1, dhcpv4.MessageTypeDiscover), dhcpv4.MessageTypeOffer, "255.255.255.255"},
		{"discover with a wish", question(t, 1, dhcpv4.MessageTypeDiscover, wants("172.31.0.77")), dhcpv4.MessageTypeOffer, "255.255.255.255"},
		{"select", question(t, 1, dhcpv4.MessageTypeRequest, wants("172.31.0.3"), server("172.31.0.1")), dhcpv4.MessageTypeAck, "255.255.255.255"},
		{"select another server", question(t, 1, dhcpv4.MessageTypeRequest, wants("172.31.0.3"), server("172.31.0.9")), none, ""},
		{"after a reboot", question(t, 1, dhcpv4.MessageTypeRequest, wants("172.31.0.3")), dhcpv4.MessageTypeAck, "255.255.255.255"},
		{"with an old address", question(t, 1, dhcpv4.MessageTypeRequest, wants("10.0.0.3")), dhcpv4.MessageTypeNak, "255.255.255.255"},
		{"renew", question(t, 1, dhcpv4.MessageTypeRequest, client("172.31.0.3")), dhcpv4.MessageTypeAck, "172.31.0.3"},
		{"renew another's address", question(t, 1, dhcpv4.MessageTypeRequest, client("172.31.0.4")), dhcpv4.MessageTypeNak, "255.255.255.255"},
		{"request nothing", question(t, 1, dhcpv4.MessageTypeRequest), dhcpv4.MessageTypeNak, "255.255.255.255"},
		{"inform", question(t, 1, dhcpv4.MessageTypeInform, client("172.31.0.3")), dhcpv4.MessageTypeAck, "172.31.0.3"},
		{"release", question(t, 1, dhcpv4.MessageTypeRelease, client("172.31.0.3")), none, ""},
		{"decline", question(t, 1, dhcpv4.MessageTypeDecline, wants("172.31.0.3")), none, ""},
		{"unknown MAC", question(t, 9, dhcpv4.MessageTypeDiscover), none, ""},
		{"MAC of another subnet", question(t, 2, dhcpv4.MessageTypeDiscover), none, ""},
		{"an offer", question(t, 1, dhcpv4.MessageTypeOffer), none, ""},
	} {
		b, to := dhcpAnswer(testTable(), c.ask.ToBytes())
		if c.kind == none {
			if b != nil {
				t.Errorf("%s is answered", c.name)
			}
			continue
		}
		m, err := dhcpv4.FromBytes(b)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if m.MessageType() != c.kind || to.String() != c.to || m.TransactionID != c.ask.TransactionID {
			t.Errorf("%s: %s to %s", c.name, m.MessageType(), to)
		}
		if m.ServerIdentifier().String() != "172.31.0.1" {
			t.Errorf("%s: server %s", c.name, m.ServerIdentifier())
		}
		switch {
		case c.kind == dhcpv4.MessageTypeNak || c.ask.MessageType() == dhcpv4.MessageTypeInform:
			if addrOf(m.YourIPAddr).IsValid() || m.Options.Has(dhcpv4.OptionIPAddressLeaseTime) {
				t.Errorf("%s: gives %s", c.name, m.YourIPAddr)
			}
		case m.YourIPAddr.String() != "172.31.0.3" || m.IPAddressLeaseTime(0) != time.Hour:
			t.Errorf("%s: gives %s for %v", c.name, m.YourIPAddr, m.IPAddressLeaseTime(0))
		}
		if c.kind == dhcpv4.MessageTypeNak {
			continue
		}
		if m.Router()[0].String() != "172.31.0.1" || m.DNS()[0].String() != "172.31.0.2" || m.SubnetMask().String() != "ffff0000" ||
			m.DomainName() != "internal" || m.HostName() != "one" || string(m.Options.Get(dhcpv4.OptionInterfaceMTU)) != "\x05\x78" {
			t.Errorf("%s: options %s", c.name, m.Options)
		}
		if m.Options.Has(dhcpv4.OptionClasslessStaticRoute) {
			t.Errorf("%s: option 121, which cloud-init 22.4 fails on", c.name)
		}
	}
}

func FuzzDHCP(f *testing.F) {
	f.Add(question(f, 1, dhcpv4.MessageTypeDiscover).ToBytes())
	f.Add(question(f, 1, dhcpv4.MessageTypeRequest, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(ip("172.31.0.3")))).ToBytes())
	f.Add([]byte{})
	t1 := testTable()
	f.Fuzz(func(t *testing.T, b []byte) {
		answer, to := dhcpAnswer(t1, b)
		if answer == nil {
			return
		}
		m, err := dhcpv4.FromBytes(answer)
		if err != nil || m.OpCode != dhcpv4.OpcodeBootReply || !to.IsValid() {
			t.Fatalf("% x: %v to %s", answer, err, to)
		}
		if y := addrOf(m.YourIPAddr); y.IsValid() && y != netip.MustParseAddr("172.31.0.3") {
			t.Fatalf("gives %s", y)
		}
	})
}

// A datagram that is none is passed over, and the end of the socket is the end of the service.
func TestServeDHCP(t *testing.T) {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var current atomic.Pointer[table]
	current.Store(testTable())
	done := make(chan struct{})
	go func() { serveDHCP(conn, &current); close(done) }()
	c, err := net.Dial("udp4", conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("junk")); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	<-done
}
