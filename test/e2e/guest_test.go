package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// What the micro image says on its console; see images/README.md.
const (
	saysUserland = "outcrop-micro: userland"
	saysReady    = "outcrop-micro: ready"
	saysPowerOff = "outcrop-micro: power off"
)

// console is all that an instance ever wrote to its console, read from the node's
// own log: it tells of dead agents' guests, too.
func (c *cloud) console(id string) string {
	b, _ := os.ReadFile(c.path("node/instances/" + id + "/console.log")) // none yet: it has said nothing
	return strings.ReplaceAll(string(b), "\r", "")
}

// boots are the guest's userland boots, what each said.
func (c *cloud) boots(id string) []string {
	return strings.Split(c.console(id), saysUserland)[1:]
}

// says waits until the guest says text in its nth boot and returns all that it
// has said in it.
func (c *cloud) says(id string, n int, text string) (said string) {
	c.t.Helper()
	await(c.t, patience, fmt.Sprintf("%q in boot %d of %s", text, n, id), func() (string, bool) {
		all := c.boots(id)
		if len(all) < n {
			return fmt.Sprintf("%d boots, console %q", len(all), c.console(id)), false
		}
		said = all[n-1]
		return said, strings.Contains(said, text)
	})
	return said
}

// booted holds that the guest has booted exactly n times.
func (c *cloud) booted(id string, n int) {
	c.t.Helper()
	if all := c.boots(id); len(all) != n {
		c.t.Errorf("%s booted %d times, want %d:\n%s", id, len(all), n, c.console(id))
	}
}

// digest is how the micro image tells of a file's bytes.
func digest(name string, b []byte) string {
	sum := sha256.Sum256(b)
	return fmt.Sprintf("outcrop-micro: %s bytes=%d sha256=%s\n", name, len(b), hex.EncodeToString(sum[:]))
}

// vm is the hypervisor's own view of an instance.
func (c *cloud) vm(id string) hypervisor.VM {
	c.t.Helper()
	vm, err := c.vms.Get(c.t.Context(), id)
	if err != nil {
		c.t.Fatal(err)
	}
	return vm
}
