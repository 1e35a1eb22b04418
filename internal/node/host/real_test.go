package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// insideEnv is set for the test's program where systemd runs it in a container.
const insideEnv = "OUTCROP_HOST_TEST"

func TestMain(m *testing.M) {
	// systemd-nspawn says so in its containers, and nobody else anywhere.
	manager, _ := os.ReadFile("/run/host/container-manager")
	if dir := os.Getenv(insideEnv); dir != "" && strings.HasPrefix(string(manager), "systemd-nspawn") {
		inside(dir)
		return
	}
	os.Exit(m.Run())
}

// inside is a service of the container's systemd. It does what a file says, and notes
// how the reservation went and why the action was refused.
func inside(dir string) {
	s, ctx := &Systemd{}, context.Background()
	verb, err := os.ReadFile(filepath.Join(dir, "verb"))
	if err != nil {
		fmt.Println(err)
		return
	}
	note := filepath.Join(dir, string(verb))
	kept := fmt.Sprintf("%v\n", s.KeepMemory(ctx, 64<<20))
	_ = os.WriteFile(note, []byte(kept), 0o600)
	if err := s.Power(ctx, compute.PowerVerb(verb)); err != nil {
		_ = os.WriteFile(note, []byte(kept+err.Error()), 0o600)
	}
}

// A real systemd, in a container of this machine's own programs: it reboots and powers
// off as it is told, and takes the reservation, whether or not this kernel's
// control groups can keep it. Nothing of this machine goes down.
// contract: N-10 N-19
func TestRealSystemd(t *testing.T) {
	nspawn, err := exec.LookPath("systemd-nspawn")
	if err != nil || os.Getuid() != 0 || testing.Short() {
		t.Skip("needs root and systemd-nspawn")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, name := t.TempDir(), fmt.Sprintf("outcrop-test-%d", os.Getpid())
	unit := func(file, text string) string {
		t.Helper()
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return "--bind-ro=" + path + ":/etc/systemd/system/" + file
	}
	service := unit("try.service", "[Service]\nType=oneshot\nEnvironment="+insideEnv+"=/mnt\nExecStart=/mnt/host.test\n")
	target := unit("try.target", "[Unit]\nWants=try.service dbus.socket\nAfter=dbus.socket\n")
	boot := func() (code int, said string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, nspawn, "--quiet", "--volatile=yes", "--directory=/", "--machine="+name, "--private-network", "--register=no", "--keep-unit",
			"--bind="+dir+":/mnt", "--bind-ro="+self+":/mnt/host.test", service, target, "--console=pipe", "--boot", "systemd.unit=try.target", "systemd.firstboot=off")
		out, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(out)
	}
	t.Cleanup(func() { _ = os.Remove("/run/systemd/nspawn/propagate/" + name) })
	// systemd-nspawn(1): a container that reboots and is not booted again ends with 133.
	for verb, want := range map[compute.PowerVerb]int{compute.PowerReboot: 133, compute.PowerShutdown: 0} {
		if err := os.WriteFile(filepath.Join(dir, "verb"), []byte(verb), 0o600); err != nil {
			t.Fatal(err)
		}
		code, said := boot()
		b, err := os.ReadFile(filepath.Join(dir, string(verb)))
		if err != nil {
			t.Skipf("no container can be booted here: %d: %s", code, said)
		}
		kept, refused, _ := strings.Cut(string(b), "\n")
		if code != want || refused != "" {
			t.Errorf("%s: the container ended with %d, want %d; refused %q; it said:\n%s", verb, code, want, refused, said)
		}
		if kept != "<nil>" && !strings.Contains(kept, "version 2 of control groups") {
			t.Errorf("the reservation: %s", kept)
		}
	}
}
