package node

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// A caller types into a guest and reads what it says, through the server and the node's
// own call to it. One at a time has the console; it ends with the guest, with the caller
// and with the server.
// contract: U-19
func TestConsoleThroughServer(t *testing.T) {
	inPowerWorld(t, func(t *testing.T, w *powerWorld) {
		w.node(compute.NodeReady, time.Minute)
		w.call("PATCH", api.NodePath(w.box.id), map[string]any{"declaredCapabilities": map[string]string{"here": "yes"}}, nil)
		id := w.launch(api.CreateInstance{})
		path := api.InstancePath("default", id, "console", "stream")
		open := func() io.ReadWriteCloser {
			t.Helper()
			conn, err := w.tenant.Upgrade(t.Context(), http.MethodGet, path, api.ConsoleProtocol)
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		echoes := func(conn io.ReadWriteCloser, text string) {
			t.Helper()
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			back := make([]byte, len(text))
			if _, err := io.ReadFull(conn, back); err != nil || string(back) != text {
				t.Fatalf("%q came back as %q, %v", text, back, err)
			}
		}

		conn := open()
		for _, text := range []string{"l", "s\r", "\x00\xff\x1b[A", strings.Repeat("x", 10000)} {
			echoes(conn, text)
		}
		<-time.After(10 * time.Minute) // nobody types
		echoes(conn, "still there\n")
		second := open()
		if said, _ := io.ReadAll(second); !strings.Contains(string(said), "no console") {
			t.Errorf("a second caller hears %q", said)
		}
		second.Close()
		conn.Close() // the caller goes, and makes room
		<-time.After(time.Second)
		conn = open()
		echoes(conn, "again")

		w.call("POST", api.InstancePath("default", id, "stop"), api.StopInstance{Force: true}, nil)
		if _, err := io.ReadAll(conn); err != nil {
			t.Errorf("the guest's end: %v", err)
		}
		conn.Close()
		w.instance(id, compute.StateStopped, time.Minute)
		if _, err := w.tenant.Upgrade(t.Context(), http.MethodGet, path, api.ConsoleProtocol); !fault.HasCode(err, fault.InvalidState) {
			t.Errorf("of a stopped one: %v", err)
		}
		w.call("POST", api.InstancePath("default", id, "start"), nil, nil)
		w.instance(id, compute.StateRunning, time.Minute)

		conn = open()
		echoes(conn, "before the server goes")
		errorsIn(t, w.server.stop(false))
		if _, err := io.ReadAll(conn); err != nil {
			t.Errorf("the server's end: %v", err)
		}
		conn.Close()
		errorsIn(t, w.server.start())
		<-time.After(time.Minute)
		conn = open()
		echoes(conn, "and back")
		conn.Close()

		// A node that does not call back in time.
		w.box.stop()
		if _, err := w.tenant.Upgrade(t.Context(), http.MethodGet, path, api.ConsoleProtocol); !fault.HasCode(err, fault.NodeUnreachable) {
			t.Errorf("of a dead agent: %v", err)
		}
		var events api.List[api.Event]
		w.call("GET", api.InstancePath("default", id, "events"), nil, &events)
		seen := 0
		for _, e := range events.Items {
			if e.Event == "console" && e.Actor != "" {
				seen++
			}
		}
		if seen != 6 {
			t.Errorf("%d consoles on the timeline", seen)
		}
	})
}
