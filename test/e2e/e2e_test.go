package e2e

import (
	"flag"
	"os"
	"testing"
)

// atOnce is how many scenarios run side by side: they mostly wait for guests,
// and lab.boots keeps those from overloading the machine.
const atOnce = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", atOnce)
	os.Exit(m.Run())
}

// scenarios are the whole suite, the longest first.
var scenarios = []struct {
	name string
	run  func(*testing.T, *lab)
}{
	{"Debian", debianGuest},
	{"AgentCrashesPreparing", agentCrashesPreparing},
	{"AgentCrashesDefining", agentCrashesDefining},
	{"AgentCrashesBooting", agentCrashesBooting},
	{"ServerCrashes", serverCrashes},
	{"TenAtOnce", tenAtOnce},
	{"LibvirtdCrashes", libvirtdCrashes},
	{"Demo", demoPath},
	{"DemoPostgres", demoPostgres},
	{"UserData", userDataBytes},
	{"Reboot", reboots},
	{"StubbornGuest", stubbornGuest},
	{"GuestEnds", guestEnds},
	{"TerminateAnywhere", terminateAnywhere},
	{"DeadNode", deadNode},
	{"FullDisk", fullDisk},
	{"TLS", tlsBeyondLoopback},
}

// TestEndToEnd runs all scenarios against one libvirtd, each with a server and a
// node of its own.
func TestEndToEnd(t *testing.T) {
	l := newLab(t)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.run(t, l)
		})
	}
}
