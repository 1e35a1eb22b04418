package main

import (
	"encoding/binary"
	"os"
	"slices"
	"testing"
)

// newTestProcesses reaps in a goroutine that lives as long as the test process: there is one PID 1 too.
func newTestProcesses(t *testing.T) *processes {
	t.Helper()
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("no /bin/sh")
	}
	p := newProcesses()
	go p.reap()
	return p
}

func TestRun(t *testing.T) {
	p := newTestProcesses(t)
	for _, c := range []struct {
		script string
		status int
		lines  []string
	}{
		{"echo out; echo err >&2; exit 3", 3, []string{"out", "err"}},
		{"kill -9 $$", 128 + 9, nil},
		{"cat; echo -n end", 0, []string{"end"}}, // standard input is empty
	} {
		lines := []string{}
		status, err := p.run(func(line string) { lines = append(lines, line) }, "/bin/sh", "-c", c.script)
		if err != nil || status != c.status || !slices.Equal(lines, c.lines) {
			t.Errorf("run %q = %d, %v, lines %q; want %d, lines %q", c.script, status, err, lines, c.status, c.lines)
		}
	}
	if _, err := p.run(func(string) {}, "/does/not/exist"); err == nil {
		t.Error("running a missing program gave no error")
	}
}

func TestConsoleTTY(t *testing.T) {
	for active, want := range map[string]string{"tty0 ttyS0": "ttyS0", "hvc0": "hvc0", "": "ttyS0"} {
		if got := consoleTTY(active); got != want {
			t.Errorf("consoleTTY(%q) = %q, want %q", active, got, want)
		}
	}
}

func TestIsPowerPress(t *testing.T) {
	event := func(kind, code uint16, value uint32) []byte {
		b := make([]byte, inputEventSize)
		binary.LittleEndian.PutUint16(b[16:], kind)
		binary.LittleEndian.PutUint16(b[18:], code)
		binary.LittleEndian.PutUint32(b[20:], value)
		return b
	}
	for _, c := range []struct {
		name string
		in   []byte
		want bool
	}{
		{"press", event(evKey, keyPower, 1), true},
		{"release", event(evKey, keyPower, 0), false},
		{"another key", event(evKey, 30, 1), false},
		{"synchronisation", event(0, 0, 0), false},
	} {
		if got := isPowerPress(c.in); got != c.want {
			t.Errorf("%s: isPowerPress = %v", c.name, got)
		}
	}
}
