package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/libvirt/libvirtdtest"
)

// TestAgent has the guest agent in real guests, both ways that it comes there.
// contract: U-03 U-07 U-08 U-09 U-10 lesson 26 lesson 32
func TestAgent(t *testing.T) {
	isolated(t, []string{"micro", "debian"}, func(t *testing.T, l *lab) {
		t.Run("Automatic", func(t *testing.T) { automatic(t, l) })
		t.Run("InstallCommand", func(t *testing.T) { installCommand(t, l) })
	})
}

const activationTag = "stratum.dev/agent-activation=automatic"

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// healthy waits until an instance shows the health, and what its agent says is ok.
func (c *cloud) healthy(id, health string, ok func(i api.Instance) bool) (i api.Instance) {
	c.t.Helper()
	await(c.t, 2*patience, health+" instance "+id, func() (string, bool) {
		i = c.get(id)
		return fmt.Sprintf("%s %s, %+v, %+v, %+v", i.State, i.Health, i.HealthReason, i.AgentStatus, i.Boot), i.Health == health && (ok == nil || ok(i))
	})
	return i
}

func (c *cloud) agent(id, verb string, in, out any) {
	c.t.Helper()
	c.call(http.MethodPost, api.InstancePath(project, id, verb+"-agent"), in, out)
}

// automatic: the agent is in the image and follows the flag.
func automatic(t *testing.T, l *lab) {
	c := newCloud(t, l)
	c.network = "host"
	c.image = c.cli("image", "import", "-q", "--name", "with-agent", "--tag", activationTag, l.micro)
	c.startNode()
	yes := true
	data := []byte("#!/bin/sh\necho hello\nexit 3\n")
	began := time.Now()
	id := c.launch(api.CreateInstance{Name: "auto", ImageID: c.image, VCPUs: 1, MemoryBytes: guestMemory, UserData: encode(data), AgentEnabled: &yes})
	i := c.healthy(id, "healthy", func(i api.Instance) bool { return i.Boot != nil && i.Boot.Status != "running" })
	t.Logf("create → agent healthy: %v", time.Since(began).Round(10*time.Millisecond))
	if i.AgentActivation != "automatic" || i.AgentStatus.Version == "" || i.AgentStatus.LastReconcileResult != "ok" || i.AgentEnrolledAt != nil {
		t.Errorf("activation %s, enrolled %v, agent %+v", i.AgentActivation, i.AgentEnrolledAt, i.AgentStatus)
	}
	// What this boot really ran, and what came of it.
	if i.Boot.Status != "error" || i.Boot.UserDataHash != hash(data) || i.UserDataHash != hash(data) || !strings.Contains(i.Boot.Detail, "scripts-user") {
		t.Errorf("boot %+v, want an error of %s", i.Boot, hash(data))
	}

	c.agent(id, "disable", nil, nil)
	c.healthy(id, "agent_disabled", nil)
	c.says(id, 1, "outcrop-micro: agent end status=0")
	began = time.Now()
	c.agent(id, "enable", nil, nil)
	asked := time.Now()
	i = c.healthy(id, "healthy", func(i api.Instance) bool { return i.AgentStatus.LastHeartbeatAt.After(asked) })
	t.Logf("enable-agent → first heartbeat: %v", time.Since(began).Round(10*time.Millisecond))
	if i.AgentEnrolledAt == nil || time.Since(began) > time.Minute {
		t.Errorf("enrolled at %v, after %v", i.AgentEnrolledAt, time.Since(began))
	}
	// The agent's reports survive its node's: what it says next is heard.
	c.node.kill()
	c.startNode()
	killed := time.Now()
	c.healthy(id, "healthy", func(i api.Instance) bool { return i.AgentStatus.LastHeartbeatAt.After(killed) })
	c.endNetworked()
}

// endNetworked ends all, with what a node with networks keeps for itself.
func (c *cloud) endNetworked() {
	c.t.Helper()
	for _, id := range c.ids {
		c.terminate(id)
	}
	for _, id := range c.ids {
		c.reaches(id, compute.StateTerminated)
	}
	await(c.t, soon, "removal of all devices", func() (string, bool) {
		left := devices(c.t)
		return strings.Join(left, " "), len(left) == 0
	})
	c.node.stop(c.t)
	c.server.stop(c.t)
}

// commands hands a guest what it is to run: it asks a server outside, which is the
// way of somebody who pastes a command into a terminal.
type commands struct {
	mu   sync.Mutex
	text string
}

func (c *commands) set(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = text
}

func (c *commands) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.text == "" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	fmt.Fprintln(w, c.text)
}

// firstBoot runs the command of enable-agent when there is one, tells when the agent
// is gone again, and has the next boot use the metadata service alone.
const firstBoot = `#cloud-config
bootcmd:
- echo "first bootcmd" >/dev/console
runcmd:
- echo "proof source=$(cloud-id)" >/dev/console
- "echo 'datasource_list: [Ec2]' >/etc/cloud/cloud.cfg.d/99-ec2.cfg"
- |
  cat >/usr/local/bin/paste <<'SCRIPT'
  #!/bin/sh
  until curl -sf http://` + somewhere + `:8080/ -o /run/pasted; do sleep 1; done
  sh /run/pasted >/dev/console 2>&1
  echo "proof unit=$(systemctl is-active outcrop-guest.service)" >/dev/console
  SCRIPT
- chmod 755 /usr/local/bin/paste
- systemd-run --unit paste /usr/local/bin/paste
`

// secondBoot: no bootcmd may wait for a unit, which would wait for the boot.
const secondBoot = `#cloud-config
bootcmd:
- |
  cat >/usr/local/bin/watch-agent <<'SCRIPT'
  #!/bin/sh
  while [ -e /usr/local/sbin/outcrop-guest ] || [ -e /etc/systemd/system/outcrop-guest.service ]; do sleep 1; done
  echo "proof uninstalled" >/dev/console
  SCRIPT
- chmod 755 /usr/local/bin/watch-agent
- systemd-run --no-block --unit watch-agent /usr/local/bin/watch-agent
- echo "second user-data=$(sha256sum </var/lib/cloud/instance/user-data.txt) source=$(cut -d ' ' -f 2 /var/lib/cloud/instance/datasource)" >/dev/console
runcmd:
- echo "rerun id=$(cat /var/lib/cloud/data/instance-id) source=$(cut -d ' ' -f 2 /var/lib/cloud/instance/datasource)." >/dev/console
`

// installCommand: the agent comes by the one-time command, into a stock Debian with the
// real cloud-init, whose second boot has the Ec2 data source.
func installCommand(t *testing.T, l *lab) {
	file, err := l.debian()
	if err != nil {
		libvirtdtest.Missing(t, "the debian image: "+err.Error())
	}
	c := newCloud(t, l)
	c.network = "host"
	image := c.importImage("debian", file)
	pasted := &commands{}
	listener, err := listenIn(outsideOf(t), somewhere+":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() { _ = http.Serve(listener, pasted) }()
	c.startNode()
	no := false
	began := time.Now()
	id := c.launch(api.CreateInstance{Name: "stock", ImageID: image, VCPUs: 2, MemoryBytes: 1 << 30, RootVolumeBytes: 3 << 30,
		UserData: encode([]byte(firstBoot)), AgentEnabled: &no, PublicKeys: []string{publicKey}})
	if i := c.get(id); i.Health != "agent_disabled" || i.AgentActivation != "install-command" {
		t.Errorf("health %s, activation %s", i.Health, i.AgentActivation)
	}
	c.consoleSays(id, "proof source=nocloud")
	t.Logf("create → runcmd by NoCloud: %v", time.Since(began).Round(10*time.Millisecond))

	var enabled api.EnabledAgent
	c.agent(id, "enable", nil, &enabled)
	if !enabled.AgentEnrollmentPending || enabled.InstallCommand == "" {
		t.Fatalf("enable-agent answers %+v", enabled)
	}
	began = time.Now()
	pasted.set(enabled.InstallCommand)
	c.consoleSays(id, "proof unit=active")
	i := c.healthy(id, "healthy", func(i api.Instance) bool { return i.Boot != nil && i.Boot.Status != "running" })
	t.Logf("install command → agent healthy: %v", time.Since(began).Round(10*time.Millisecond))
	if i.AgentEnrollmentPending || i.AgentEnrolledAt == nil || i.Boot.Status != "done" || i.Boot.UserDataHash != hash([]byte(firstBoot)) {
		t.Errorf("pending %v, enrolled %v, boot %+v", i.AgentEnrollmentPending, i.AgentEnrolledAt, i.Boot)
	}
	address := i.PrimaryPrivateIP

	// The next boot has other user-data, from the metadata service.
	c.stop(id, within(120))
	c.reaches(id, compute.StateStopped)
	if _, err := c.putUserData(id, []byte(secondBoot)); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	c.start(id)
	c.consoleSays(id, "second user-data="+strings.TrimPrefix(hash([]byte(secondBoot)), "sha256:"))
	c.consoleSays(id, "source=DataSourceEc2Local")
	i = c.healthy(id, "healthy", func(i api.Instance) bool {
		return i.Boot != nil && i.Boot.Status != "running" && i.Boot.UserDataHash == hash([]byte(secondBoot))
	})
	t.Logf("start → boot by Ec2 reported done: %v", time.Since(began).Round(10*time.Millisecond))
	if i.Boot.Status != "done" || i.PrimaryPrivateIP != address {
		t.Errorf("boot %+v, address %s, it was %s", i.Boot, i.PrimaryPrivateIP, address)
	}

	if strings.Contains(c.console(id), "rerun id=") {
		t.Error("what runs once in an instance's life ran on its second boot, by itself")
	}
	// lesson 26: the Ec2 data source sees a rerun as NoCloud does.
	c.stop(id, within(120))
	c.reaches(id, compute.StateStopped)
	dormant := c.dormant(file) // boots meanwhile
	began = time.Now()
	c.call(http.MethodPost, api.InstancePath(project, id, "start"), api.StartInstance{Rerun: true}, nil)
	c.consoleSays(id, "source=DataSourceEc2Local.")
	t.Logf("start → runcmd by Ec2 run again: %v", time.Since(began).Round(10*time.Millisecond))
	if said := c.console(id); strings.Contains(said, "rerun id="+id) || !strings.Contains(said, "rerun id=i-") {
		t.Errorf("no new instance-id:\n%s", said)
	}

	c.followed(dormant)
	began = time.Now()
	c.agent(id, "disable", nil, nil)
	c.consoleSays(id, "proof uninstalled")
	t.Logf("disable-agent → uninstalled: %v", time.Since(began).Round(10*time.Millisecond))
	c.endNetworked()
}

// dormant launches a Debian that ships the agent, which is not enabled.
func (c *cloud) dormant(file string) (id string) {
	c.t.Helper()
	image := c.cli("image", "import", "-q", "--name", "ships-agent", "--tag", activationTag, file)
	no := false
	return c.launch(api.CreateInstance{Name: "dormant", ImageID: image, VCPUs: 2, MemoryBytes: 1 << 30, RootVolumeBytes: 3 << 30,
		UserData: encode([]byte("#cloud-config\nbootcmd:\n- echo \"proof booting\" >/dev/console\n")), AgentEnabled: &no})
}

// followed holds that systemd's timer in a dormant Debian follows the flag both ways.
func (c *cloud) followed(id string) {
	c.t.Helper()
	c.consoleSays(id, "proof booting")
	c.healthy(id, "agent_disabled", func(i api.Instance) bool {
		return i.AgentActivation == "automatic" && i.AgentStatus.LastHeartbeatAt == nil
	})
	c.agent(id, "enable", nil, nil)
	began := time.Now()
	i := c.healthy(id, "healthy", func(i api.Instance) bool { return i.Boot != nil && i.Boot.Status == "done" })
	c.t.Logf("enable-agent → boot reported by an agent that a timer started: %v", time.Since(began).Round(10*time.Millisecond))
	if i.AgentEnrollmentPending {
		c.t.Error("an agent of the image has to enroll")
	}
	c.agent(id, "disable", nil, nil)
	c.healthy(id, "agent_disabled", nil)
}

// consoleSays waits for a text anywhere in the console.
func (c *cloud) consoleSays(id, text string) {
	c.t.Helper()
	await(c.t, 3*patience, fmt.Sprintf("%q on the console of %s", text, id), func() (string, bool) {
		said := c.console(id)
		return said[max(0, len(said)-2000):], strings.Contains(said, text)
	})
}
