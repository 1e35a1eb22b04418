package node

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor/fake"
)

// A real agent, killed with SIGKILL before or after each step of its join, comes
// back as the same node: one key, one record, one use of a token that has one. Its
// clock is months off the server's, and it joins all the same.
//
// contract: N-21
// lesson 5
// lesson 8
func TestJoinKilledAtEachStep(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	for _, step := range JoinSteps {
		for _, when := range []string{"before", "after"} {
			t.Run(when+" "+step, func(t *testing.T) {
				var token api.NewToken
				s.Operator.Do("POST", "/v1/tokens", api.CreateToken{Role: "join", NodeID: "n1"}).Want(201).Decode(&token)
				s.Secret(token.Secret)
				p := &agentProcess{t: t, s: agentSettings{URL: s.URL, Dir: t.TempDir(), CrashAt: when + ":" + step, Join: true}, stop: make(chan struct{}), done: make(chan struct{})}
				if err := os.WriteFile(p.s.path("join"), []byte(token.Secret), 0o600); err != nil {
					t.Fatal(err)
				}
				go p.run()
				var n api.Node
				for tries := 0; s.Operator.Do("GET", api.NodePath("n1"), nil).Status != 200; tries++ {
					if tries == 600 {
						t.Fatal("the node does not report")
					}
					<-time.After(50 * time.Millisecond)
				}
				close(p.stop)
				<-p.done
				if p.kills != 1 {
					t.Errorf("killed %d times", p.kills)
				}
				s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&n)
				m, err := layout{p.s.path("data")}.readMember()
				if err != nil {
					t.Fatal(err)
				}
				keys, uses := map[string]bool{}, int64(-1)
				var all api.List[api.Token]
				s.Operator.Do("GET", "/v1/tokens?limit=1000", nil).Want(200).Decode(&all)
				for _, k := range all.Items {
					if k.KeyID != "" && k.RevokedAt == nil {
						keys[k.KeyID] = true
					}
					if k.ID == token.ID {
						uses = *k.UsesLeft
					}
				}
				if mine := compute.KeyID(m.key().Public().(ed25519.PublicKey)); len(keys) != 1 || !keys[mine] || uses != 0 {
					t.Errorf("the key is %s, the server knows %v, %d uses are left", mine, keys, uses)
				}
				for _, name := range []string{fileMember, fileCredential} {
					if info, err := os.Stat(p.s.path("data/" + name)); err != nil || info.Mode().Perm() != 0o600 {
						t.Errorf("%s: %v, %v", name, info.Mode(), err)
					}
				}
				s.Operator.Do("DELETE", api.NodePath("n1"), nil).Want(204)
			})
		}
	}
}

// The join token alone makes the agent trust the server's own CA, and no other; so
// does the identity afterwards.
func TestJoinPinsTheCA(t *testing.T) {
	s, other := apptest.Start(t, apptest.Options{TLS: true}), apptest.Start(t, apptest.Options{TLS: true})
	token := s.Token(api.CreateToken{Role: "join", NodeID: "n1"})
	if _, pin := api.SplitToken(token); pin == "" {
		t.Fatal("the token carries no fingerprint")
	}
	cfg := Config{ServerURL: s.URL, ID: "n1", DataDir: t.TempDir(), JoinToken: token, Log: slog.New(slog.DiscardHandler)}
	vms, err := fake.New(fake.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer vms.Close()
	cfg.Hypervisor = vms
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, cfg) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	stop := run()
	for tries := 0; s.Operator.Do("GET", api.NodePath("n1"), nil).Status != 200; tries++ {
		if tries == 600 {
			t.Fatal("the node does not report")
		}
		<-time.After(50 * time.Millisecond)
	}
	stop()
	cfg.JoinToken, cfg.ID, cfg.ServerURL = "", "", "" // --data alone is enough now
	var before, after api.Node
	s.Operator.Do("GET", api.NodePath("n1"), nil).Decode(&before)
	stop = run()
	for tries := 0; !after.LastSeenAt.After(before.LastSeenAt); tries++ {
		if tries == 600 {
			t.Fatal("the node does not come back")
		}
		<-time.After(50 * time.Millisecond)
		s.Operator.Do("GET", api.NodePath("n1"), nil).Decode(&after)
	}
	stop()
	m, err := layout{cfg.DataDir}.readMember()
	if err != nil || m.Server != s.URL || m.CAFingerprint == "" {
		t.Fatalf("%+v, %v", m, err)
	}
	mitm := newMembership(&cfg, layout{cfg.DataDir}, m, func() api.NodeClaim { return api.NodeClaim{Hostname: "h"} },
		func(token string) (caller, error) { return api.NewClient(other.URL, token, "test") })
	if _, err := mitm.renew(t.Context()); err == nil || !strings.Contains(err.Error(), "CA is not the one") {
		t.Errorf("a server of another CA: %v", err)
	}
}

// doorman is a server that answers joins and renewals as a test says, and checks who
// signed them.
type doorman struct {
	t   *testing.T
	key ed25519.PublicKey

	mu     sync.Mutex
	asked  []string // "join TOKEN" or "credential TOKEN"
	at     []time.Time
	answer func(what string) (api.Admission, error)
}

func (d *doorman) dial(token string) (caller, error) { return visitor{d, token}, nil }

type visitor struct {
	*doorman
	token string
}

func (v visitor) Upgrade(context.Context, string, string, string) (io.ReadWriteCloser, error) {
	return nil, errors.New("no")
}

func (v visitor) Do(ctx context.Context, method, path string, in, out any, opts ...api.Option) error {
	body, err := io.ReadAll(in.(io.Reader))
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://server"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for _, o := range opts {
		o(r)
	}
	policy := httpsig.Policy{Profile: httpsig.Node, Skew: time.Minute, Now: time.Now}
	if _, err := policy.Verify(httpsig.FromRequest(r), body, func(string) (ed25519.PublicKey, error) { return v.key, nil }); err != nil {
		v.t.Errorf("%s: %v", path, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	what := filepath.Base(path)
	v.asked, v.at = append(v.asked, strings.TrimSpace(what+" "+v.token)), append(v.at, time.Now())
	a, err := v.answer(what)
	*out.(*api.Admission) = a
	return err
}

// joinEnv is a membership whose server is a doorman.
func joinEnv(t *testing.T) (*membership, *doorman, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	dir := layout{t.TempDir()}
	cfg := &Config{ID: "n1", ServerURL: "http://server", DataDir: dir.root, JoinTokenFile: filepath.Join(dir.root, "join"), Log: slog.New(slog.NewTextHandler(&log, nil))}
	if err := os.WriteFile(cfg.JoinTokenFile, []byte("oct_one.cafe\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, fresh, err := dir.identify(cfg, "host", "machine-1")
	if err != nil || !fresh {
		t.Fatal(m, fresh, err)
	}
	d := &doorman{t: t, key: m.key().Public().(ed25519.PublicKey)}
	return newMembership(cfg, dir, m, func() api.NodeClaim { return api.NodeClaim{Hostname: "h", MachineID: "machine-1"} }, d.dial), d, &log
}

var goodAdmission = api.Admission{Status: api.Admitted, Token: "oct_credential", ExpiresInSeconds: 24 * 3600, NodeZone: "z1"}

// contract: N-22
func TestJoinWaitsForApproval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d, log := joinEnv(t)
		begun, polls := time.Now(), 0
		d.answer = func(what string) (api.Admission, error) {
			if polls++; time.Since(begun) < 10*time.Minute {
				return api.Admission{Status: api.Pending, Fingerprint: "SHA256:x"}, nil
			}
			return goodAdmission, nil
		}
		if err := s.join(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if d.asked[0] != "join oct_one.cafe" || slices.ContainsFunc(d.asked[1:], func(a string) bool { return a != "credential .cafe" }) {
			t.Errorf("asked %v", d.asked)
		}
		if polls < 20 || polls > 60 {
			t.Errorf("%d polls in ten minutes", polls)
		}
		if n := strings.Count(log.String(), "waits for an operator"); n != 1 || !strings.Contains(log.String(), "outcrop node approve n1 --fingerprint SHA256:x") {
			t.Errorf("said %d times: %s", n, log)
		}
		if c, ok, err := s.dir.readCredential(); !ok || err != nil || c.Token != "oct_credential" || c.Zone != "z1" {
			t.Errorf("%+v %v %v", c, ok, err)
		}
		if strings.Contains(log.String(), "oct_") {
			t.Errorf("a token stands in the log: %s", log)
		}
	})
}

// A refused machine says what to do, asks again rarely, and takes a new join token
// from its file without a restart.
//
// contract: N-21 N-22
func TestJoinIsRefused(t *testing.T) {
	for code, c := range map[string]struct {
		kind fault.Kind
		say  string
	}{
		fault.JoinRefused: {fault.Forbidden, "an operator has refused this machine"}, fault.JoinTokenUsed: {fault.Forbidden, "was for others"},
		"UNAUTHENTICATED": {fault.Unauthenticated, "is not valid any more"}, "FORBIDDEN": {fault.Forbidden, "is for another node"},
		fault.NodeIDConflict: {fault.Conflict, "outcrop node readmit"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, d, log := joinEnv(t)
			d.answer = func(what string) (api.Admission, error) {
				switch token := d.asked[len(d.asked)-1]; {
				case token == "join oct_two":
					return goodAdmission, nil
				case what == "join":
					return api.Admission{}, fault.Coded(c.kind, code, "no")
				}
				return api.Admission{}, fault.Coded(fault.Unauthenticated, fault.NodeKeyUnknown, "not known")
			}
			done := make(chan error, 1)
			go func() { done <- s.join(t.Context(), true) }()
			<-time.After(10 * time.Minute)
			synctest.Wait()
			d.mu.Lock()
			asked := len(d.asked)
			d.mu.Unlock()
			if n := strings.Count(log.String(), "join failed"); n != 1 || !strings.Contains(log.String(), c.say) {
				t.Errorf("%s: said %d times: %s", code, n, log)
			}
			if asked > 2*(10*60/25) {
				t.Errorf("%s: asked %d times in ten minutes", code, asked)
			}
			if err := os.WriteFile(s.cfg.JoinTokenFile, []byte("oct_two"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// The credential is renewed when half of its life is over, at once when the server
// does not take it, and until then the old one goes on.
//
// contract: N-21
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d, _ := joinEnv(t)
		down, n := false, 0
		d.answer = func(string) (api.Admission, error) {
			if down {
				return api.Admission{}, errors.New("down")
			}
			n++
			a := goodAdmission
			a.Token = fmt.Sprint("oct_", n)
			return a, nil
		}
		if err := s.join(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		token := func() string { v, _ := s.token(); return v }
		a := &agent{log: s.log, member: s}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { a.renewals(ctx) })
		is := func(want string) {
			t.Helper()
			synctest.Wait()
			if c, _, err := s.dir.readCredential(); token() != want || c.Token != want || err != nil {
				t.Errorf("token %q, on disk %q, %v; want %q", token(), c.Token, err, want)
			}
		}
		<-time.After(12*time.Hour - time.Second)
		is("oct_1")
		<-time.After(time.Minute)
		is("oct_2")
		d.mu.Lock()
		down = true
		d.mu.Unlock()
		<-time.After(30 * time.Hour) // longer than it lives
		is("oct_2")
		d.mu.Lock()
		down = false
		d.mu.Unlock()
		<-time.After(time.Minute)
		is("oct_3")
		refused := &uplink{source: s.token, refused: s.again, dial: func(string) (caller, error) { return unauthorized{}, nil }}
		for range 3 {
			_ = refused.Do(ctx, "GET", "/", nil, nil)
		}
		<-time.After(time.Second)
		is("oct_4")
		cancel()
		running.Wait()
		for i, asked := range d.asked[1:] {
			if asked != "credential .cafe" {
				t.Errorf("request %d: %s", i, asked)
			}
		}
		for i := 2; i < len(d.at); i++ {
			if gap := d.at[i].Sub(d.at[i-1]); gap < renewApart {
				t.Errorf("renewals are %v apart", gap)
			}
		}
	})
}

type unauthorized struct{ nowhere }

func (unauthorized) Do(context.Context, string, string, any, any, ...api.Option) error {
	return fault.New(fault.Unauthenticated, "no")
}

// Who the machine is: kept over restarts, not taken from a copy of the folder, not
// read when others may read it, and made anew where the machine was reinstalled and
// has a join token.
//
// contract: N-21
// lesson 7
// lesson 8
func TestIdentify(t *testing.T) {
	dir := layout{t.TempDir()}
	cfg := func(change func(*Config)) *Config {
		c := &Config{DataDir: dir.root, ID: "n1", ServerURL: "http://a", JoinToken: "oct_x.aaaa"}
		if change != nil {
			change(c)
		}
		return c
	}
	none := func(c *Config) { c.JoinToken = "" }
	if _, _, err := dir.identify(cfg(none), "host", "m1"); err == nil || !strings.Contains(err.Error(), "outcrop node join-token") {
		t.Errorf("no identity and no token: %v", err)
	}
	if _, _, err := dir.identify(cfg(func(c *Config) { c.ID = "" }), "bad host", "m1"); err == nil {
		t.Error("a node without a name")
	}
	first, fresh, err := dir.identify(cfg(func(c *Config) { c.ID = "" }), "n1", "m1")
	if err != nil || !fresh || first.ID != "n1" || first.MachineID != "m1" || first.CAFingerprint != "aaaa" {
		t.Fatalf("%+v %v %v", first, fresh, err)
	}
	if err := dir.writeCredential(credential{Token: "t"}); err != nil {
		t.Fatal(err)
	}
	same := func(c *Config, machine string) *member {
		t.Helper()
		m, fresh, err := dir.identify(c, "other", machine)
		if err != nil || fresh || !bytes.Equal(m.Seed, first.Seed) || m.ID != "n1" {
			t.Errorf("%+v, fresh %v, %v", m, fresh, err)
		}
		return m
	}
	same(cfg(none), "m1")
	same(cfg(nil), "m1")
	same(cfg(none), "") // the machine does not say; no copy is proved
	if m := same(cfg(func(c *Config) { c.ID, c.ServerURL, c.JoinToken = "", "", "" }), "m1"); m.Server != "http://a" {
		t.Errorf("the server is %q", m.Server)
	}
	if m := same(cfg(func(c *Config) { c.ServerURL, c.JoinToken = "http://b", "oct_y.bbbb" }), "m1"); m.Server != "http://b" || m.CAFingerprint != "bbbb" {
		t.Errorf("%+v", m)
	}
	if m := same(cfg(func(c *Config) { c.ServerURL = "" }), "m1"); m.Server != "http://b" {
		t.Errorf("the server's move is forgotten: %q", m.Server)
	}
	if _, _, err := dir.identify(cfg(func(c *Config) { c.ID = "n2" }), "h", "m1"); err == nil || !strings.Contains(err.Error(), `"n1"`) {
		t.Errorf("another node's folder: %v", err)
	}
	if _, _, err := dir.identify(cfg(none), "h", "m2"); err == nil || !strings.Contains(err.Error(), "outcrop node readmit n1") {
		t.Errorf("a copy of the folder: %v", err)
	}
	same(cfg(none), "m1")
	again, fresh, err := dir.identify(cfg(nil), "h", "m2")
	if err != nil || !fresh || bytes.Equal(again.Seed, first.Seed) || again.MachineID != "m2" || again.ID != "n1" {
		t.Errorf("%+v %v %v", again, fresh, err)
	}
	if named, fresh, err := dir.identify(cfg(func(c *Config) { c.ID = "n3" }), "h", "m3"); err != nil || !fresh || named.ID != "n3" {
		t.Errorf("a copy of a disk with a name and a token of its own: %+v %v %v", named, fresh, err)
	}
	if _, ok, err := dir.readCredential(); ok || err != nil {
		t.Errorf("the credential of the machine before is still there: %v", err)
	}
	if err := os.Chmod(dir.file(fileMember), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, _, err := dir.identify(cfg(func(c *Config) { c.ID = "n3" }), "h", "m3"); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("others may read it: %v", err)
	}
	for _, text := range []string{"", "{", `{"id":"n1"}`, `{"id":"n1","server":"x","key":"AAAA"}`} {
		if err := writeFile(dir.file(fileMember), []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := dir.identify(cfg(nil), "h", "m2"); err == nil || !strings.Contains(err.Error(), "readmit") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
