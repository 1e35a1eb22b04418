package cli

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/network"
)

// A node's network is real where the agent may make it and guests use it.
func TestOpenNetwork(t *testing.T) {
	root := os.Geteuid() == 0
	for _, tt := range []struct {
		network, hypervisor string
		none, refused       bool
	}{
		{"", "libvirt", !root, false}, {"none", "libvirt", true, false}, {"none", "fake", true, false},
		{"host", "libvirt", false, false}, {"host", "fake", false, false}, {"bridge", "fake", false, true},
	} {
		o := agentOptions{network: tt.network, hypervisor: tt.hypervisor}
		open, err := o.openNetwork(slog.New(slog.DiscardHandler))
		if (err != nil) != tt.refused || err == nil && (open == nil) != tt.none {
			t.Errorf("%q with %s: %v, %v", tt.network, tt.hypervisor, open != nil, err)
		}
		if open == nil || tt.hypervisor != "fake" {
			continue // the real one is not made here: it is the machine's own
		}
		n, err := open(func(string, net.Listener) {})
		if _, ok := n.(*network.Fake); !ok || err != nil {
			t.Errorf("%T, %v", n, err)
		}
	}
}

// Two agents in one network namespace would take each other's devices away.
func TestNetworkIsClaimedOnce(t *testing.T) {
	first, err := claimNetwork()
	if err != nil {
		t.Skip("an agent runs on this machine")
	}
	if second, err := claimNetwork(); err == nil {
		second.Close()
		t.Error("claimed twice")
	}
	if err := (claimed{&network.Fake{}, first}).Close(); err != nil {
		t.Error(err)
	}
	again, err := claimNetwork()
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if err := (claimed{&network.Fake{}, failing{}}).Close(); err == nil {
		t.Error("an error of the claim is lost")
	}
}

type failing struct{ io.Closer }

func (failing) Close() error { return errors.New("no") }

func TestStateDirOfANode(t *testing.T) {
	a, err1 := stateDir("/srv/a")
	b, err2 := stateDir("/srv/b/../a")
	c, err3 := stateDir("/srv/c")
	if err := errors.Join(err1, err2, err3); err != nil || a != b || a == c {
		t.Errorf("%s %s %s, %v", a, b, c, err)
	}
}
