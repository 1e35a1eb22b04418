package node

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/network"
)

// The install script in a guest without systemd: the agent comes and shows its code.
// What it writes to is hidden from this machine by a mount namespace. contract: U-09
func TestInstallScript(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the agent")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes a mount namespace")
	}
	for _, tool := range []string{"curl", "unshare", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	e := newEnvIn(t, t.TempDir(), fakeNow)
	defer e.vms.Close()
	var serve func(string, net.Listener)
	e.cfg.Network = func(s func(string, net.Listener)) (network.Network, error) { serve = s; return e.net, nil }
	e.cfg.GuestAgent = filepath.Join(t.TempDir(), "outcrop-guest")
	build := exec.Command("go", "build", "-o", e.cfg.GuestAgent, "github.com/outcrop-cloud/outcrop/cmd/outcrop-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	a, err := newAgent(e.cfg, &uplink{tokenFile: e.cfg.TokenFile, dial: func(string) (caller, error) { return e, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go serve(subnetA, l)
	a.guests.set(local(true, "install-command"))
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", `
		mount -t tmpfs none /usr/local/sbin && mount -t tmpfs none /var/lib && mount -t tmpfs none /run || exit 99
		sh -s -- one-time <"$1" && exec sleep 60`, "sh", "install.sh")
	cmd.Env = append(os.Environ(), "OUTCROP_METADATA_URL=http://"+l.Addr().String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // its own process group
	timeout := time.After(30 * time.Second)
	select {
	case <-a.reports.poke:
	case err := <-ended:
		t.Fatalf("the script ended: %v\n%s", err, out.String())
	case <-timeout:
		t.Fatal("no heartbeat")
	}
	m, _ := a.reports.batch(time.Now())
	if r := m.Reports[0]; r.InstallCode != "one-time" || r.Boot == nil {
		t.Errorf("report %+v", r)
	}
}
