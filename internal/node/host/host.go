// Package host acts on the machine that a node's agent runs on: it powers it off,
// keeps memory for its own services, and wakes its neighbours.
//
// Nothing here is done for real but by Systemd, so that a test never takes down
// the machine that it runs on.
package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Host is the machine.
type Host interface {
	// Power lets the machine power off or boot again. It returns as soon as the
	// machine has taken the order.
	Power(ctx context.Context, verb compute.PowerVerb) error
	// KeepMemory keeps so many bytes for the machine's own services, whatever its
	// guests use; 0 ends that.
	KeepMemory(ctx context.Context, bytes int64) error
	// Wake sends one Wake-on-LAN packet for a network card to the segments that this
	// machine has an address in. Nobody answers it.
	Wake(card net.HardwareAddr) error
}

// ErrNoSystemd is what Systemd answers on a machine that something else runs.
var ErrNoSystemd = errors.New("no systemd runs this machine, so its agent cannot act on it")

// Open returns the host of a kind: "systemd", "record", which notes in the file
// what it would have done, or "none".
func Open(kind, file string) (Host, error) {
	switch kind {
	case "", "systemd":
		return &Systemd{}, nil
	case "record":
		return Record(file), nil
	case "none":
		return None{}, nil
	}
	return nil, fmt.Errorf("want systemd, record or none, not %q", kind)
}

// None is a machine that nobody may act on.
type None struct{}

var errNone = errors.New("the node's agent may not act on this machine; start it with --power systemd")

func (None) Power(context.Context, compute.PowerVerb) error { return errNone }
func (None) KeepMemory(context.Context, int64) error        { return errNone }
func (None) Wake(net.HardwareAddr) error                    { return errNone }

// Record is the file that says, one JSON object a line, what would have been done.
type Record string

// Recorded is one line of a Record.
type Recorded struct {
	At         time.Time         `json:"at"`
	Power      compute.PowerVerb `json:"power,omitempty"`
	KeepMemory *int64            `json:"keepMemoryBytes,omitempty"`
	Wake       string            `json:"wake,omitempty"` // a card's address
}

func (r Record) Power(_ context.Context, verb compute.PowerVerb) error {
	return r.add(Recorded{Power: verb})
}

func (r Record) KeepMemory(_ context.Context, bytes int64) error {
	return r.add(Recorded{KeepMemory: &bytes})
}

func (r Record) Wake(card net.HardwareAddr) error { return r.add(Recorded{Wake: card.String()}) }

func (r Record) add(what Recorded) error {
	what.At = time.Now().UTC()
	line, err := json.Marshal(what)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(string(r)), 0o711); err != nil {
		return err
	}
	f, err := os.OpenFile(string(r), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}
