package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The nodes may be starting many guests at once, so nothing here gives up quickly.
const (
	nic         = "eth0"
	leaseWait   = 90 * time.Second
	imdsWait    = 90 * time.Second
	imdsPause   = 2 * time.Second
	agentPath   = "/bin/outcrop-guest"
	agentPause  = 15 * time.Second // how soon a dormant agent follows its being enabled
	dhcpScript  = "/etc/udhcpc.sh"
	leasePrefix = "lease " // what dhcpScript says once an address is set
)

// network brings the first interface up, reads the metadata service over it and starts the guest agent.
type network struct {
	con   *console
	procs *processes
}

// up runs beside the rest of the boot, which does not wait for a network.
func (n *network) up() {
	if err := linkUp("lo"); err != nil {
		n.con.fact("net", "device", "lo", "error", err)
	}
	sys := os.DirFS("/sys")
	mac := sysText(sys, "class/net/"+nic+"/address")
	if mac == "" {
		n.con.fact("no nic")
		return
	}
	n.con.fact("nic", "device", nic, "mac", mac, "mtu", sysText(sys, "class/net/"+nic+"/mtu"))
	if err := linkUp(nic); err != nil {
		n.con.fact("net", "device", nic, "error", err)
		return
	}
	first := make(chan string, 1)
	go n.dhcp(first)
	select {
	case lease := <-first:
		n.con.line(formatFact("net") + " " + lease)
	case <-time.After(leaseWait):
		n.con.fact("net", "error", fmt.Sprintf("no DHCP lease within %s", leaseWait))
		n.con.line(formatFact("net") + " " + <-first)
	}
	go n.readMetadata()
	if _, err := os.Stat(agentPath); err == nil {
		n.runAgent()
	}
}

// dhcp keeps the DHCP client running and hands over the first lease as "address=... router=...".
func (n *network) dhcp(first chan<- string) {
	said := func(line string) {
		lease, ok := strings.CutPrefix(line, leasePrefix)
		if !ok {
			return // the client's own chatter
		}
		select {
		case first <- lease:
		default: // a renewal
		}
	}
	for ; ; time.Sleep(imdsPause) {
		_, err := n.procs.run(said, "/bin/udhcpc", "-f", "-i", nic, "-s", dhcpScript,
			"-t", "10", "-T", "2", "-A", "2", "-O", "mtu", "-O", "staticroutes")
		if err != nil {
			n.con.fact("net", "error", err)
			return
		}
	}
}

// readMetadata prints what the metadata service holds for this instance.
func (n *network) readMetadata() {
	ctx, cancel := context.WithTimeout(context.Background(), imdsWait)
	defer cancel()
	service := newIMDS(imdsURL)
	pause := func() { time.Sleep(imdsPause) }
	id, err := retry(ctx, pause, func() ([]byte, error) { return service.get(ctx, "latest/meta-data/instance-id") })
	if err != nil {
		n.con.fact("imds", "error", err)
		return
	}
	n.con.fact("imds", "instance-id", string(id))
	userData, err := retry(ctx, pause, func() ([]byte, error) { return service.get(ctx, "latest/user-data") })
	if err != nil {
		n.con.fact("imds user-data", "error", err)
		return
	}
	n.con.fact("imds user-data", digest(userData)...)
}

// runAgent keeps the guest agent running, its output on the console. It never returns. An agent that is not enabled ends
// at once, so its end is told once and not each time.
func (n *network) runAgent() {
	said := func(line string) { n.con.line("outcrop-guest: " + line) }
	n.con.fact("agent begin")
	told := ""
	for ; ; time.Sleep(agentPause) {
		status, err := n.procs.run(said, agentPath, "guest")
		end := formatFact("agent end", "status", status)
		if err != nil {
			end = formatFact("agent end", "error", err)
		}
		if end != told {
			n.con.line(end)
			told = end
		}
	}
}

func linkUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		return err
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}
