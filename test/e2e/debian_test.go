package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO9Zz0Pq1Kx1F6lq6JvV4XQ4l2VgX0kZk0l0nq2m4b3C somebody@example"

// proofs is user-data that shows on the console what cloud-init made of its seed.
const proofs = `#cloud-config
runcmd:
- |
  {
    echo "proof source=$(cat /run/cloud-init/cloud-id) seed=$(cloud-init query subplatform)"
    echo "proof user-data=$(sha256sum </var/lib/cloud/instance/user-data.txt)"
    echo "proof hostname=$(hostname) id=$(cat /var/lib/cloud/data/instance-id)"
    echo "proof keys=$(cat /home/debian/.ssh/authorized_keys)"
    echo "proof root=$(df --output=size -B1M / | tail -n 1) end"
  } >/dev/console
`

// A stock distribution with the real cloud-init finds the seed before it scans,
// runs what it holds, and goes down when it is asked.
// contract: U-03 U-11 lesson 24
func debianGuest(t *testing.T, l *lab) {
	file, err := l.debian()
	if err != nil {
		libvirtdtest.Missing(t, "the debian image: "+err.Error())
	}
	c := newCloud(t, l)
	image := c.importImage("debian", file)
	c.startNode()
	id := c.launch(api.CreateInstance{Name: "proof-host", ImageID: image, VCPUs: 1, MemoryBytes: 768 << 20, RootVolumeBytes: 4 << 30,
		UserData: encode([]byte(proofs)), PublicKeys: []string{publicKey}})
	// The image takes a moment to come; the server dies in the midst of it.
	c.nodeLogs("phase=preparing")
	c.crashServer()
	c.reaches(id, compute.StateRunning)
	var said string
	await(t, 2*patience, "proof of cloud-init", func() (string, bool) {
		said = c.console(id)
		return said, strings.Contains(said, "proof root=") && strings.Contains(said, " end\n")
	})
	sum := strings.Fields(digest("", []byte(proofs)))[2]
	for _, want := range []string{
		"proof source=nocloud seed=config-disk (/dev/vdb)", "proof user-data=" + strings.TrimPrefix(sum, "sha256="),
		"proof hostname=proof-host id=" + id, "proof keys=" + publicKey,
	} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in the console:\n%s", want, said)
		}
	}
	var mib int
	if _, err := fmt.Sscanf(said[strings.Index(said, "proof root="):], "proof root=%d", &mib); err != nil || mib < 3<<10 {
		t.Errorf("the root file system has %d MiB of a volume of 4 GiB", mib)
	}
	c.stop(id, within(120))
	c.reaches(id, compute.StateStopped)
	if text := c.cli("instance", "console", "proof-host"); !strings.Contains(text, "proof hostname=") {
		t.Error("the console of a stopped guest is gone")
	}
	c.end()
}
