package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// table is what the services of a subnet answer from: the subnet and its ports. It is replaced as a whole, never changed.
type table struct {
	Subnet
	byMAC     map[vpc.MAC]Port
	byName    map[string]Port // host name or instance id, lower case
	byAddress map[netip.Addr]Port
}

func newTable(s Subnet, ports []Port) *table {
	t := &table{s, map[vpc.MAC]Port{}, map[string]Port{}, map[netip.Addr]Port{}}
	for _, p := range ports {
		if p.SubnetID != s.ID {
			continue
		}
		t.byMAC[p.MAC], t.byAddress[p.Address] = p, p
		for _, name := range []string{p.InstanceID, p.Hostname} {
			if name != "" {
				t.byName[strings.ToLower(name)] = p
			}
		}
	}
	return t
}

// services are what runs for one subnet: sockets in its router, bound to the device that the guests are behind.
type services struct {
	table   atomic.Pointer[table]
	at      place
	closers []func() // the latest first
	done    sync.WaitGroup
}

// place is where sockets are: a namespace, and the device that they are bound to. They do not follow a device that is
// made anew under the same name.
type place struct {
	inode  uint64
	device int
}

func (s *services) close() {
	for _, c := range slices.Backward(s.closers) {
		c()
	}
	s.done.Wait()
}

// serve starts the subnet's services, or gives the running ones their new table. A router or a device made anew needs
// new sockets.
func (k *Kernel) serve(r *router, s Subnet, ports []Port) error {
	t := newTable(s, ports)
	device, err := r.netlink.LinkByName(guestLink)
	if err != nil {
		return err
	}
	at := place{r.inode, device.Attrs().Index}
	old := k.running[s.ID]
	if old != nil && old.at == at {
		old.table.Store(t)
		return nil
	}
	if old != nil {
		k.stop(s.ID, old)
	}
	run := &services{at: at}
	run.table.Store(t)
	if err := r.do(func() error { return k.listen(run, s) }); err != nil {
		run.close()
		return fmt.Errorf("start the services: %w", err)
	}
	k.running[s.ID] = run
	return nil
}

// stop ends a subnet's services and forgets what its namespace was.
func (k *Kernel) stop(subnetID string, s *services) {
	s.close()
	delete(k.running, subnetID)
	delete(k.loaded, s.at.inode)
}

// listen opens the sockets. It runs inside the router.
func (k *Kernel) listen(run *services, s Subnet) error {
	bound := net.ListenConfig{Control: bindToGuests}
	packets := func(addr netip.Addr, port uint16) (net.PacketConn, error) {
		c, err := bound.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(addr, port).String())
		if err == nil {
			run.closers = append(run.closers, func() { c.Close() })
		}
		return c, err
	}
	streams := func(addr netip.Addr, port uint16) (net.Listener, error) {
		l, err := bound.Listen(context.Background(), "tcp4", netip.AddrPortFrom(addr, port).String())
		if err == nil {
			run.closers = append(run.closers, func() { l.Close() })
		}
		return l, err
	}
	dhcpUDP, err1 := packets(netip.IPv4Unspecified(), dhcpServerPort)
	dnsUDP, err2 := packets(vpc.DNS(s.CIDR), dnsPort)
	dnsTCP, err3 := streams(vpc.DNS(s.CIDR), dnsPort)
	metadata, err4 := streams(MetadataAddr, httpPort)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	run.done.Go(func() { serveDHCP(dhcpUDP, &run.table) })
	ctx, cancel := context.WithCancel(context.Background())
	names := dns.HandlerFunc(newResolver(ctx, &run.table, k.config.Resolvers, k.dial).handle)
	for _, server := range []*dns.Server{{PacketConn: dnsUDP, Handler: names}, {Listener: dnsTCP, Handler: names}} {
		run.done.Go(func() { _ = server.ActivateAndServe() })               // ends by its socket's end
		run.closers = append(run.closers, func() { _ = server.Shutdown() }) // without waiting for idle guests
	}
	run.closers = append(run.closers, cancel)
	if k.config.Metadata != nil {
		run.done.Go(func() { k.config.Metadata(s.ID, metadata) })
	}
	return nil
}

// bindToGuests binds a socket to the guests' device. Datagrams go out without a UDP checksum, which IPv4 allows: one that
// is left to the card to fill in looks wrong to DHCP clients that read raw packets.
func bindToGuests(network, _ string, c syscall.RawConn) (err error) {
	controlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, guestLink)
		if network == "udp4" {
			err = errors.Join(err,
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1))
		}
	})
	return errors.Join(controlErr, err)
}

// dial opens a socket to a name server of the host's, from the host's namespace.
func (k *Kernel) dial(ctx context.Context, network string, to netip.AddrPort) (conn net.Conn, err error) {
	err = k.host.do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, to.String())
		return err
	})
	return conn, err
}
