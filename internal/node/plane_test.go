package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
	"github.com/outcrop-cloud/outcrop/internal/network"
)

var fakeNow = fake.Options{}

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

// guestOf is a guest's way to the metadata service of an agent, over TCP: a guest
// with the address 127.0.0.1.
func guestOf(t *testing.T) (*agent, func(method, path, body string) (int, string)) {
	t.Helper()
	e := newEnvIn(t, t.TempDir(), fakeNow)
	t.Cleanup(func() { e.vms.Close() })
	var serve func(string, net.Listener)
	e.cfg.Network = func(s func(string, net.Listener)) (network.Network, error) { serve = s; return e.net, nil }
	a, err := newAgent(e.cfg, &uplink{tokenFile: e.cfg.TokenFile, dial: func(string) (caller, error) { return e, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close() })
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go serve(subnetA, l)
	t.Cleanup(func() { l.Close() })
	var token string
	return a, func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+l.Addr().String()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-aws-ec2-metadata-token-ttl-seconds", "60")
		if token != "" {
			req.Header.Set("X-aws-ec2-metadata-token", token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "/token") {
			token = string(b)
		}
		return resp.StatusCode, string(b)
	}
}

func local(enabled bool, activation string) known {
	return known{Instances: []api.DesiredInstance{{ID: idA, AgentEnabled: enabled, AgentActivation: activation,
		Interfaces: []api.DesiredInterface{{ID: "eni-aaaaaaaaaa", SubnetID: subnetA, MAC: "02:00:00:00:00:01", Address: "127.0.0.1"}}}}}
}

const beatPath = "/latest/outcrop/agent/heartbeat"

// contract: U-09 U-10 U-18
func TestAgentPlane(t *testing.T) {
	a, call := guestOf(t)
	a.guests.set(local(true, "automatic"))
	if status, _ := call("GET", "/latest/outcrop/agent", ""); status != 401 {
		t.Errorf("without a token: %d", status)
	}
	call("PUT", "/latest/api/token", "")
	var s api.AgentSettings
	status, body := call("GET", "/latest/outcrop/agent", "")
	if json.Unmarshal([]byte(body), &s) != nil || status != 200 || s != (api.AgentSettings{Enabled: true, Activation: "automatic", IntervalSeconds: 30}) {
		t.Errorf("%d %s", status, body)
	}
	hash := "sha256:" + strings.Repeat("0a", 32)
	status, body = call("PUT", beatPath, `{"version":"1","reconcileResult":"ok","boot":{"status":"done","userDataHash":"`+hash+`"},"later":1}`)
	if status != 200 || !strings.Contains(body, `"enabled":true`) {
		t.Errorf("%d %s", status, body)
	}
	m, _ := a.reports.batch(time.Now())
	if len(m.Reports) != 1 || m.Reports[0].InstanceID != idA || m.Reports[0].Boot.UserDataHash != hash || m.Reports[0].Version != "1" {
		t.Errorf("reports %+v", m)
	}

	for _, bad := range []string{"", "{", `{"version":""}`, `{"version":"1","reconcileResult":"fine"}`, `{"version":"` + strings.Repeat("x", 65) + `"}`,
		`{"version":"1\n"}`, `{"version":"1","boot":{"status":"good"}}`, `{"version":"1","boot":{"status":"done","userDataHash":"abc"}}`,
		`{"version":"1","boot":{"status":"error","detail":"` + strings.Repeat("x", 501) + `"}}`, `{"version":"1","installCode":"` + strings.Repeat("x", 129) + `"}`} {
		if status, _ := call("PUT", beatPath, bad); status != 400 {
			t.Errorf("%.60s: %d", bad, status)
		}
	}

	// What a disabled agent says is not passed on, unless it shows a code.
	a.guests.set(local(false, "install-command"))
	a.reports.sent(func() map[string]heard { _, b := a.reports.batch(time.Now()); return b }())
	if status, body := call("PUT", beatPath, `{"version":"1"}`); status != 200 || !strings.Contains(body, `"enabled":false`) {
		t.Errorf("%d %s", status, body)
	}
	if m, _ := a.reports.batch(time.Now()); len(m.Reports) != 0 {
		t.Errorf("reports %+v", m)
	}
	call("PUT", beatPath, `{"version":"1","installCode":"abc"}`)
	if m, _ := a.reports.batch(time.Now()); len(m.Reports) != 1 || m.Reports[0].InstallCode != "abc" {
		t.Errorf("reports %+v", m)
	}

	// The whole surface goes with httpEndpoint.
	k := local(true, "automatic")
	k.Instances[0].Metadata.HTTPEndpoint = "disabled"
	a.guests.set(k)
	if status, _ := call("GET", "/latest/outcrop/agent", ""); status != 403 {
		t.Errorf("disabled: %d", status)
	}
}

func TestInstallFiles(t *testing.T) {
	a, call := guestOf(t)
	a.guests.set(local(true, "install-command"))
	call("PUT", "/latest/api/token", "")
	if status, body := call("GET", "/latest/outcrop/agent/install", ""); status != 200 || !strings.HasPrefix(body, "#!/bin/sh\n") {
		t.Errorf("%d %.40q", status, body)
	}
	if status, body := call("GET", "/latest/outcrop/agent/binary", ""); status != 404 || !strings.Contains(body, "--guest-agent") {
		t.Errorf("%d %s", status, body)
	}
	a.cfg.GuestAgent = filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(a.cfg.GuestAgent, []byte("\x7fELF..."), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, body := call("GET", "/latest/outcrop/agent/binary", ""); status != 200 || body != "\x7fELF..." {
		t.Errorf("%d %q", status, body)
	}
}

// lesson 32
func TestReportsReachTheServer(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		<-time.After(time.Second)
		received := func() (list []api.AgentReports) {
			e.mu.Lock()
			defer e.mu.Unlock()
			return append(list, e.server.reports...)
		}
		e.agent.reports.take(idA, api.AgentHeartbeat{Version: "1"})
		<-time.After(time.Second)
		if got := received(); len(got) != 1 || got[0].Reports[0].AgeMS > 100 {
			t.Fatalf("reports %+v", got)
		}
		// Many make one batch, the latest of each.
		for n := range 10 {
			e.agent.reports.take(idA, api.AgentHeartbeat{Version: fmt.Sprint(n)})
			e.agent.reports.take(idB, api.AgentHeartbeat{Version: fmt.Sprint(n)})
		}
		<-time.After(10 * time.Second)
		if got := received(); len(got) != 2 || len(got[1].Reports) != 2 || got[1].Reports[0].Version != "9" {
			t.Fatalf("reports %+v", got)
		}
		// A server that is away gets it later, with its true age, and the code is not
		// lost by what comes after it.
		e.edit(func() { e.server.down = fault.New(fault.Internal, "down") })
		e.agent.reports.take(idA, api.AgentHeartbeat{Version: "1", InstallCode: "abc"})
		<-time.After(30 * time.Second)
		e.agent.reports.take(idA, api.AgentHeartbeat{Version: "2"})
		<-time.After(30 * time.Second)
		e.edit(func() { e.server.down = nil })
		e.until(t, "a report", 20*time.Second, func() bool { return len(received()) == 3 })
		if r := received()[2].Reports[0]; r.Version != "2" || r.InstallCode != "abc" || r.AgeMS < 30_000 || r.AgeMS > 60_000 {
			t.Errorf("report %+v", r)
		}
		<-time.After(time.Minute)
		if n := len(received()); n != 3 {
			t.Errorf("%d batches", n)
		}
	})
}

// A heartbeat that comes while a batch is on its way is not lost with it.
func TestReportMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReports()
		r.take(idA, api.AgentHeartbeat{Version: "1", InstallCode: "abc"})
		_, batch := r.batch(time.Now())
		<-time.After(time.Millisecond)
		r.take(idA, api.AgentHeartbeat{Version: "2"})
		r.sent(batch)
		m, _ := r.batch(time.Now())
		if len(m.Reports) != 1 || m.Reports[0].Version != "2" || m.Reports[0].InstallCode != "" {
			t.Errorf("reports %+v", m)
		}
	})
}

// contract: U-19
func TestConsoleStream(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		open := func(stream, instance string) net.Conn {
			t.Helper()
			waiting := make(chan net.Conn, 1)
			e.edit(func() {
				e.dialled[stream] = waiting
				e.server.streams[stream] = api.ConsoleStream{ID: stream, InstanceID: instance}
			})
			select {
			case conn := <-waiting:
				return conn
			case <-time.After(10 * time.Second):
				t.Fatal("the node does not call")
				return nil
			}
		}
		conn := open("s-1", idA)
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		echo := make([]byte, 5)
		if _, err := io.ReadFull(conn, echo); err != nil || string(echo) != "hello" {
			t.Errorf("%q, %v", echo, err)
		}
		// A second one is told why not; closing the first makes room.
		second := open("s-2", idA)
		said, _ := io.ReadAll(second)
		if !bytes.Contains(said, []byte("no console")) {
			t.Errorf("the second console hears %q", said)
		}
		conn.Close()
		<-time.After(time.Second)
		third := open("s-3", idA)
		// The end of the VM is the end of the stream.
		e.stop(idA, 0, true)
		if _, err := io.ReadAll(third); err != nil {
			t.Error(err)
		}
		third.Close()
	})
}
