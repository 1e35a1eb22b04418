package node

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
)

func (e *env) syncCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.syncs)
}

// In peace a node syncs every half minute; what changes on it is told at once.
func TestSyncPace(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		<-time.After(time.Minute)
		before := e.syncCount()
		<-time.After(10 * time.Minute)
		if n := e.syncCount() - before; n < 18 || n > 22 {
			t.Errorf("%d syncs in ten minutes", n)
		}
		if age := e.last(idA).SampleAgeS; age > 10 {
			t.Errorf("the sample is %d s old", age)
		}
		began := time.Now()
		if err := e.vms.Crash(idA, "panic"); err != nil {
			t.Fatal(err)
		}
		e.reaches(t, idA, compute.StateError, 10*time.Second)
		if took := time.Since(began); took > time.Second {
			t.Errorf("told after %v", took)
		}
	})
}

// Many changes make few calls.
func TestSyncCoalesces(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		<-time.After(time.Minute)
		before := e.syncCount()
		for i := range 4 {
			e.create("i-"+strings.Repeat(string(rune('a'+i)), 9), "x")
		}
		<-time.After(5 * time.Second)
		if n := e.syncCount() - before; n > 20 {
			t.Errorf("%d syncs for 4 launches", n)
		}
	})
}

// A server that is slow to answer gets to answering although there is news all
// the time.
func TestNewsDoesNotStarveAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		<-time.After(time.Second)
		e.agent.up.mu.Lock()
		e.agent.up.server = through{e.server, func(ctx context.Context, m, _ string) error {
			if m == http.MethodPost && !sleep(ctx, time.Second) {
				return ctx.Err()
			}
			return nil
		}}
		e.agent.up.mu.Unlock()
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
					e.agent.changed()
				}
			}
		}()
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 2*time.Minute)
	})
}

func TestIDsThatCannotBeAreIgnored(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create("i-../../etc", "x")
		odd := hypervisor.Spec{ID: "odd", UUID: systemUUID("odd"), VCPUs: 1, MemoryBytes: 1 << 26, ConsoleLog: "/x", ConsoleSocket: "/y",
			Disks: []hypervisor.Disk{{Path: "/z", Format: "raw"}}}
		if err := e.vms.Define(t.Context(), odd); err != nil {
			t.Fatal(err)
		}
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		if n := len(e.lastSync().Instances); n != 1 {
			t.Errorf("%d instances", n)
		}
	})
}

func TestUserDataThatArrivesDamagedIsNotUsed(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		hash := digest([]byte("x"))
		e.edit(func() { e.blobs[hash] = []byte("y") })
		e.until(t, "said so", 10*time.Second, func() bool { return strings.Contains(e.last(idA).Message, "damaged") })
		if e.vms.boots(idA) != 0 {
			t.Error("it was booted")
		}
		e.edit(func() { e.blobs[hash] = []byte("x") })
		e.reaches(t, idA, compute.StateRunning, time.Minute)
	})
}

func TestConsoleWishes(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.create(idA, "x")
		e.reaches(t, idA, compute.StateRunning, 10*time.Second)
		before := e.syncCount()
		e.edit(func() { e.wish[idA], e.wish[idB] = true, true })
		e.until(t, "both sent", time.Second, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.consoles[idB] != nil && bytes.Contains(e.consoles[idA], []byte("boots"))
		})
		<-time.After(time.Second)
		if n := e.syncCount() - before; n > 3 {
			t.Errorf("%d syncs for one wish", n)
		}
	})
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.log")
	write := func(p, text string) {
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string) {
		t.Helper()
		if got, err := tail(path, 10); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	check("")
	write(path, "abc")
	check("abc")
	write(path+".0", "0123456789")
	check("3456789abc")
	write(path, "abcdefghijk")
	check("bcdefghijk")
}

func TestFindings(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		<-time.After(time.Minute)
		var codes []string
		for _, f := range e.lastSync().Findings {
			codes = append(codes, f.Code)
			if f.Since == nil || time.Since(*f.Since) < 20*time.Second || f.Message == "" {
				t.Errorf("finding %+v", f)
			}
		}
		if want := []string{findingNoKVM, findingNoLimits}; !slices.Equal(codes, want) {
			t.Errorf("findings %v, want %v", codes, want)
		}
	})
}

// nowhere answers everything with nothing.
type nowhere struct{ caller }

func (nowhere) Do(context.Context, string, string, any, any, ...api.Option) error { return nil }

// contract: N-24 (the token as it stands in its file, read at each connect)
func TestTokenIsRenewed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var dialled []string
	u := &uplink{tokenFile: file, dial: func(token string) (caller, error) {
		dialled = append(dialled, token)
		return nowhere{}, nil
	}}
	call := func() error { return u.Do(t.Context(), "GET", "/", nil, nil) }
	if call() == nil {
		t.Error("a call without any token")
	}
	write("one\n")
	if err := call(); err != nil || u.renewed() {
		t.Error(err)
	}
	write("two")
	if !u.renewed() {
		t.Error("not seen as renewed")
	}
	for range 2 {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	write("")
	if err := call(); err != nil || u.renewed() {
		t.Errorf("an empty file ended the last token: %v", err)
	}
	if want := []string{"one", "two"}; !slices.Equal(dialled, want) {
		t.Errorf("dialled %v", dialled)
	}
}

func TestDataDirHasOneAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnvIn(t, t.TempDir(), fake.Options{})
		e.up(t)
		_, err := newAgent(e.cfg, e.agent.up)
		if err == nil || !strings.Contains(err.Error(), "another node agent") {
			t.Errorf("error %v", err)
		}
		e.downAgent()
		e.up(t)
		e.downAgent()
		e.vms.Close()
	})
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"id":         {ID: "a/b", DataDir: "x", Hypervisor: &fake.Hypervisor{}},
		"hypervisor": {ID: "n1", DataDir: "x"},
		"data":       {ID: "n1", Hypervisor: &fake.Hypervisor{}},
		"role":       {ID: "n1", DataDir: "x", Hypervisor: &fake.Hypervisor{}, Role: "king"},
		"token":      {ID: "n1", DataDir: filepath.Join(t.TempDir(), "x"), Hypervisor: &fake.Hypervisor{}, TokenFile: "/nowhere"},
	} {
		if err := Run(t.Context(), cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestSocketPathFits(t *testing.T) {
	if p := (layout{"/var/lib/outcrop"}).socket(idA); p != "/var/lib/outcrop/instances/"+idA+"/console.sock" {
		t.Error(p)
	}
	if p := (layout{"/" + strings.Repeat("x", 100)}).socket(idA); len(p) > maxSocketPath || !strings.HasPrefix(p, socketRoot) {
		t.Error(p)
	}
}
