package network

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// loaded says which rules a namespace was given, and its rules' generation right after. While the generation is the same,
// nobody has changed anything there.
type loaded struct {
	what       string
	generation uint32
}

// loadRules runs load, which makes so many transactions, unless the namespace still has just what it loaded for the
// same what. A transaction makes the kernel wait for all its readers, some ten milliseconds.
func (k *Kernel) loadRules(ns *namespace, what string, transactions uint32, load func() error) error {
	before, err := generation(ns)
	if err != nil {
		return err
	}
	if l, ok := k.loaded[ns.inode]; ok && l == (loaded{what, before}) {
		return nil
	}
	delete(k.loaded, ns.inode)
	if err := load(); err != nil {
		return err
	}
	after, err := generation(ns)
	if err != nil {
		return err
	}
	if after == before+transactions { // else somebody else changed rules meanwhile: look again next time
		k.loaded[ns.inode] = loaded{what, after}
	}
	return nil
}

// generation asks the kernel for the number that each change of a namespace's rules raises by one.
func generation(ns *namespace) (uint32, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.fd()})
	if err != nil {
		return 0, fmt.Errorf("network: open nftables: %w", err)
	}
	defer c.Close()
	answer, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   make([]byte, 4), // nfgenmsg: no family
	})
	if err != nil {
		return 0, fmt.Errorf("network: ask nftables for its generation: %w", err)
	}
	for _, m := range answer {
		if len(m.Data) < 4 {
			continue
		}
		attrs, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return 0, err
		}
		attrs.ByteOrder = binary.BigEndian
		for attrs.Next() {
			if attrs.Type() == unix.NFTA_GEN_ID {
				return attrs.Uint32(), nil
			}
		}
	}
	return 0, errors.New("network: nftables tells no generation")
}
