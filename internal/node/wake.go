package node

import (
	"fmt"
	"net"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// checkWake reads the card's address as it is sent.
func (c *Config) checkWake() error {
	if c.WakeMAC == "" {
		return nil
	}
	mac, err := net.ParseMAC(c.WakeMAC)
	if err != nil || len(mac) != 6 {
		return fmt.Errorf("the card that wakes this machine: %q is no Ethernet address, like 3c:fd:fe:00:00:01", c.WakeMAC)
	}
	c.WakeMAC = mac.String()
	return nil
}

// wakes are the Wake-on-LAN packets that the server has asked for: each is sent
// once, and reported until the server no longer asks.
type wakes struct {
	send func(net.HardwareAddr) error

	mu   sync.Mutex
	done map[string]api.WakeReport // by id
}

// set is the server's newest list; it reports whether anything was sent.
func (w *wakes) set(list []api.DesiredWake) (sent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	done := map[string]api.WakeReport{}
	for _, d := range list {
		r, known := w.done[d.ID]
		if !known {
			r = api.WakeReport{ID: d.ID, Error: w.wake(d.MAC)}
			sent = true
		}
		done[d.ID] = r
	}
	w.done = done
	return sent
}

// wake sends one packet and says what went wrong.
func (w *wakes) wake(mac string) string {
	card, err := net.ParseMAC(mac)
	if err == nil {
		err = w.send(card)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// reports are what the next sync says.
func (w *wakes) reports() (out []api.WakeReport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.done {
		out = append(out, r)
	}
	return out
}
