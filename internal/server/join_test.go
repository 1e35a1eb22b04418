package server_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// machine is one that joins: a key, and what it says of itself.
type machine struct {
	s     *apptest.System
	key   ed25519.PrivateKey
	claim api.NodeClaim
}

// newMachine has the name as hostname, machine id and, with a number, boot id.
func newMachine(s *apptest.System, name string) *machine {
	seed := sha256.Sum256([]byte(name))
	return &machine{s, ed25519.NewKeyFromSeed(seed[:]), api.NodeClaim{Hostname: name + ".lan", MachineID: "machine-" + name, BootID: "boot-" + name + "-1"}}
}

func (m *machine) public() ed25519.PublicKey { return m.key.Public().(ed25519.PublicKey) }

func (m *machine) id() string { return compute.KeyID(m.public()) }

func (m *machine) signer() *httpsig.Signer {
	return &httpsig.Signer{Profile: httpsig.Node, Key: m.key, KeyID: m.id(), Now: m.s.Clock.Now}
}

// sign signs the request with the body that it has.
func sign(s *httpsig.Signer, body []byte) apptest.Option {
	return func(r *http.Request) {
		r.Header.Set("Content-Type", "application/json")
		if err := s.SignRequest(r, body); err != nil {
			panic(err)
		}
	}
}

func (m *machine) joinBody() []byte {
	b, err := json.Marshal(api.NodeJoin{PublicKey: base64.StdEncoding.EncodeToString(m.public()), Hostname: m.claim.Hostname, MachineID: m.claim.MachineID, BootID: m.claim.BootID})
	if err != nil {
		panic(err)
	}
	return b
}

// join asks to be the node, with a join token.
func (m *machine) join(nodeID, token string) *apptest.Answer {
	b := m.joinBody()
	return m.s.As(token).Do("POST", api.NodePath(nodeID, "join"), b, sign(m.signer(), b))
}

// renew asks for a credential, with the key alone.
func (m *machine) renew(nodeID string) *apptest.Answer {
	b, err := json.Marshal(m.claim)
	if err != nil {
		panic(err)
	}
	return m.s.As("").Do("POST", api.NodePath(nodeID, "credential"), b, sign(m.signer(), b))
}

// admitted reads an admission with its credential.
func admitted(t *testing.T, s *apptest.System, a *apptest.Answer) api.Admission {
	t.Helper()
	var out api.Admission
	a.Want(200).Decode(&out)
	if out.Status != api.Admitted || out.Token == "" || out.ExpiresInSeconds != 24*3600 {
		t.Fatalf("admission %+v", out)
	}
	s.Secret(out.Token)
	return out
}

// beat sends a heartbeat of the machine, as it is now.
func (m *machine) beat(nodeID, token string) *apptest.Answer {
	h := apptest.Machine(nodeID)
	h.Hostname, h.MachineID, h.BootID = m.claim.Hostname, m.claim.MachineID, m.claim.BootID
	return m.s.As(token).Do("PUT", api.NodePath(nodeID, "heartbeat"), h)
}

func joinToken(s *apptest.System, in api.CreateToken) string {
	in.Role = "join"
	return s.Token(in)
}

// A machine joins, reports, renews, comes back after its credential has ended, and
// lost answers make no second of anything.
//
// contract: N-01 N-21 N-24
// lesson 8
func TestJoin(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		m := newMachine(s, "a")
		token := joinToken(s, api.CreateToken{})
		first := admitted(t, s, m.join("n1", token))
		if first.Fingerprint != m.id() {
			t.Errorf("fingerprint %q", first.Fingerprint)
		}
		again := admitted(t, s, m.join("n1", token)) // a lost answer; the one use is not taken twice
		m.beat("n1", first.Token).Want(200)
		m.beat("n1", again.Token).Want(200)
		m.beat("n2", again.Token).Refused(403, "FORBIDDEN")
		newMachine(s, "b").join("n2", token).Refused(403, "JOIN_TOKEN_USED")

		s.Clock.Advance(2 * time.Hour) // the join token has ended, the key has not
		m.join("n1", token).Refused(401, "UNAUTHENTICATED")
		third := admitted(t, s, m.renew("n1"))
		m.beat("n1", again.Token).Want(200) // the one before goes on
		m.beat("n1", third.Token).Want(200)
		m.beat("n1", first.Token).Refused(401, "UNAUTHENTICATED") // no more than two at a time

		s.Clock.Advance(24 * time.Hour)
		m.beat("n1", third.Token).Refused(401, "UNAUTHENTICATED")
		m.claim.BootID = "boot-a-2"
		late := admitted(t, s, m.renew("n1"))
		m.beat("n1", late.Token).Want(200)
		var tokens api.List[api.Token]
		s.Operator.Do("GET", "/v1/tokens", nil).Want(200).Decode(&tokens)
		credentials := 0
		for _, tok := range tokens.Items {
			if tok.KeyID == m.id() {
				credentials++
			}
		}
		if credentials != 1 {
			t.Errorf("%d credentials stand: %+v", credentials, tokens.Items)
		}
		var nodes api.List[api.Node]
		s.Operator.Do("GET", "/v1/compute/nodes", nil).Want(200).Decode(&nodes)
		if len(nodes.Items) != 1 {
			t.Errorf("%d nodes", len(nodes.Items))
		}
	})
}

// Every bound of a join token, and what it opens: one route.
//
// contract: N-01 N-24 U-19
func TestJoinTokenIsBound(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	for _, c := range []struct {
		in  api.CreateToken
		bad string
	}{
		{api.CreateToken{}, ""}, {api.CreateToken{ExpiresInSeconds: 1}, ""}, {api.CreateToken{ExpiresInSeconds: 86400}, ""}, {api.CreateToken{ExpiresInSeconds: 86401}, "expiresInSeconds"},
		{api.CreateToken{Uses: 1}, ""}, {api.CreateToken{Uses: 1000}, ""}, {api.CreateToken{Uses: 1001}, "uses"}, {api.CreateToken{Uses: -1}, "uses"},
		{api.CreateToken{NodeID: "n1", Uses: 1}, ""}, {api.CreateToken{NodeID: "n1", Uses: 2}, "uses"}, {api.CreateToken{NodeID: "/"}, "nodeId"}, {api.CreateToken{ProjectID: "p"}, "projectId"},
	} {
		c.in.Role = "join"
		a := s.Operator.Do("POST", "/v1/tokens", c.in)
		if c.bad == "" {
			a.Want(201)
		} else if got := a.Refused(400, "INVALID_INPUT").Paths(); len(got) != 1 || got[0] != c.bad {
			t.Errorf("%+v: problems at %v", c.in, got)
		}
	}
	for _, in := range []api.CreateToken{{Role: "operator", Uses: 1}, {Role: "node", NodeID: "n1", Approve: true}} {
		s.Operator.Do("POST", "/v1/tokens", in).Refused(400, "INVALID_INPUT")
	}

	// Role and zone go from the token into the credential.
	m := newMachine(s, "a")
	bound := joinToken(s, api.CreateToken{NodeID: "n1", NodeRole: "storage", NodeZone: "z1"})
	m.join("n2", bound).Refused(403, "FORBIDDEN")
	got := admitted(t, s, m.join("n1", bound))
	if got.NodeRole != "storage" || got.NodeZone != "z1" {
		t.Errorf("%+v", got)
	}
	m.beat("n1", got.Token).Refused(403, "FORBIDDEN") // a hypervisor in another zone
	h := apptest.Machine("n1")
	h.Role, h.AvailabilityZone = "storage", "z1"
	s.As(got.Token).Do("PUT", api.NodePath("n1", "heartbeat"), h).Want(200)
	if renewed := admitted(t, s, m.renew("n1")); renewed.NodeRole != "storage" {
		t.Errorf("renewed: %+v", renewed)
	}

	// An hour is the default, and uses are counted by machine.
	many := joinToken(s, api.CreateToken{Uses: 2})
	for i, status := range []int{200, 200, 403} {
		newMachine(s, fmt.Sprint("m", i)).join(fmt.Sprint("m", i), many).Want(status)
	}
	s.Clock.Advance(time.Hour - time.Second)
	newMachine(s, "m0").join("m0", many).Want(200)
	s.Clock.Advance(time.Second)
	newMachine(s, "m0").join("m0", many).Refused(401, "UNAUTHENTICATED")

	// Nothing else is open to it.
	c := s.As(joinToken(s, api.CreateToken{}))
	c.Do("GET", "/v1/whoami", nil).Want(200)
	for _, r := range computeRoutes(s.Server) {
		if r.Action == "iam:WhoAmI" || r.Action == "compute:JoinNode" || r.Action == "compute:RenewNodeCredential" {
			continue
		}
		a := c.Do(r.Method, placeholders.Replace(r.Path), nil)
		if a.Status != 403 {
			t.Errorf("%s %s with a join token: %d", r.Method, r.Path, a.Status)
		}
	}
}

var placeholders = strings.NewReplacer("{projectId}", "default", "{nodeId}", "n1", "{instanceId}", "i-000000000", "{imageId}", "img-x", "{tokenId}", "tok-x",
	"{groupId}", "pg-x", "{volumeId}", "vol-x", "{uploadId}", "u", "{position}", "0", "{streamId}", "s", "{sha256}", strings.Repeat("0", 64))

// The signature covers the request and its body, is of the key that it names, of
// now, and is taken once.
//
// contract: N-21
// lesson 5
func TestJoinSignature(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		m, path := newMachine(s, "a"), api.NodePath("n1", "join")
		c := s.As(joinToken(s, api.CreateToken{Uses: 10}))
		body := m.joinBody()
		at := func(d time.Duration) *httpsig.Signer {
			g := m.signer()
			g.Now = func() time.Time { return s.Clock.Now().Add(d) }
			return g
		}
		other := newMachine(s, "b").signer()
		other.KeyID = m.id()
		c.Do("POST", path, body).Refused(401, "UNAUTHENTICATED")
		c.Do("POST", path, body, sign(other, body)).Refused(401, "SIGNATURE_INVALID")
		c.Do("POST", path, body, sign(newMachine(s, "b").signer(), body)).Refused(401, "SIGNATURE_INVALID")
		c.Do("POST", path, body, sign(m.signer(), append(body, ' '))).Refused(401, "SIGNATURE_INVALID")
		c.Do("POST", api.NodePath("n2", "join"), body, func(r *http.Request) {
			sign(m.signer(), body)(r)
			r.URL.Path = path
		}).Refused(401, "SIGNATURE_INVALID")
		runner := m.signer()
		runner.Profile = httpsig.Runner // a signature for one is none for the other
		c.Do("POST", path, body, sign(runner, body)).Refused(401, "SIGNATURE_INVALID")
		c.Do("POST", path, body, sign(at(-5*time.Minute-2*time.Second), body)).Refused(401, "SIGNATURE_STALE")
		stale := c.Do("POST", path, body, sign(at(5*time.Minute+2*time.Second), body)).Refused(401, "SIGNATURE_STALE")
		if skew, _ := stale.Details["skewSeconds"].(float64); skew < 300 || skew > 303 || stale.Details["serverTime"] == nil {
			t.Errorf("details %v", stale.Details)
		}
		once := m.signer()
		once.Nonce = func() string { return "one" }
		c.Do("POST", path, body, sign(once, body)).Want(200)
		c.Do("POST", path, body, sign(once, body)).Refused(401, "SIGNATURE_REPLAYED")
		c.Do("POST", path, body, sign(at(-5*time.Minute+time.Second), body)).Want(200)
		c.Do("POST", path, body, sign(at(5*time.Minute-time.Second), body)).Want(200)
		s.Clock.Advance(2 * time.Minute)
		c.Do("POST", path, body, sign(once, body)).Refused(401, "SIGNATURE_REPLAYED")

		// A body of the greatest size is read, and its problems are named.
		pad := func(n int) []byte {
			return []byte(`{"hostname":"","x":"` + strings.Repeat("x", n-len(`{"hostname":"","x":""}`)) + `"}`)
		}
		c.Do("POST", path, pad(api.MaxJoinBytes)).Refused(400, "INVALID_INPUT")
		c.Do("POST", path, pad(api.MaxJoinBytes+1)).Refused(413, "TOO_LARGE")
		c.Do("POST", api.NodePath(strings.Repeat("n", 64), "join"), body, sign(m.signer(), body)).Refused(400, "INVALID_INPUT")
	})
}

// Whoever has no key of the node hears the same of a node that is there and of one
// that is not, and not often.
//
// contract: N-24
func TestCredentialTellsNothing(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	m, stranger := newMachine(s, "a"), newMachine(s, "x")
	admitted(t, s, m.join("n1", joinToken(s, api.CreateToken{})))
	there, none := stranger.renew("n1"), stranger.renew("n2")
	if a, b := there.Refused(401, "NODE_KEY_UNKNOWN"), none.Refused(401, "NODE_KEY_UNKNOWN"); strings.ReplaceAll(a.Message, "n1", "n2") != b.Message {
		t.Errorf("a node that is there can be told from none:\n%s\n%s", a.Message, b.Message)
	}
	forger := *stranger
	g := forger.signer()
	g.KeyID = m.id()
	s.As("").Do("POST", api.NodePath("n1", "credential"), "{}", sign(g, []byte("{}"))).Refused(401, "SIGNATURE_INVALID")
	limited := 0
	for range 300 {
		if a := stranger.renew("n1"); a.Status == 429 {
			if limited++; a.Header.Get("Retry-After") == "" {
				t.Fatal("429 without Retry-After")
			}
		}
	}
	if limited < 90 || limited > 110 {
		t.Errorf("%d of 300 were too many", limited)
	}
	admitted(t, s, m.renew("n1")) // whoever signs rightly from the same place
	for range 40 {
		m.renew("n1")
	}
	m.renew("n1").Refused(429, "RATE_LIMITED")
}

// Another machine, or another key, never takes an id over: it is 409 with both
// named, the first goes on, its row does not change, and one event and one finding
// tell of it.
//
// contract: N-21
// lesson 7
func TestClone(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		token := s.Token(api.CreateToken{Role: "node", NodeID: "n1"}) // the plain way, with the same binding
		first, second := newMachine(s, "a"), newMachine(s, "b")
		first.beat("n1", token).Want(200)
		var before, after api.Node
		for range 3 {
			r := second.beat("n1", token).Refused(409, "NODE_ID_CONFLICT")
			for _, want := range []string{"a.lan", "machine-a", "boot-a-1", "b.lan", "machine-b", "boot-b-1", "node readmit n1"} {
				if !strings.Contains(r.Message, want) {
					t.Errorf("%q names no %s", r.Message, want)
				}
			}
			holder, _ := r.Details["holder"].(map[string]any)
			claimant, _ := r.Details["claimant"].(map[string]any)
			if r.Details["nodeId"] != "n1" || holder["machineId"] != "machine-a" || holder["seenAt"] == nil || claimant["machineId"] != "machine-b" || claimant["hostname"] != "b.lan" {
				t.Errorf("details %v", r.Details)
			}
			first.beat("n1", token).Want(200).Decode(&before)
			s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&after)
			if after.Hostname != "a.lan" || !after.LastSeenAt.Equal(before.LastSeenAt) {
				t.Errorf("the row flaps: %+v", after)
			}
		}
		unnamed := *first
		unnamed.claim.MachineID = ""
		unnamed.beat("n1", token).Want(200) // says nothing about it
		first.beat("n1", token).Want(200)
		finding := func() *api.Finding {
			var n api.Node
			s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&n)
			for _, f := range n.Findings {
				if f.Code == "CloneDetected" {
					return &f
				}
			}
			return nil
		}
		if f := finding(); f == nil || !strings.Contains(f.Message, "machine-b") || !strings.Contains(f.NextStep, "readmit n1") || f.Since == nil {
			t.Errorf("finding %+v", f)
		}
		if n := s.Count("event=clone_detected"); n != 1 {
			t.Errorf("%d events for one claimant", n)
		}
		// A join claims as well, with any token: an id that reports is not for the taking.
		for _, join := range []string{joinToken(s, api.CreateToken{}), joinToken(s, api.CreateToken{NodeID: "n1"})} {
			r := second.join("n1", join).Refused(409, "NODE_ID_CONFLICT")
			bound := strings.Contains(r.Message, "machine-a")
			if bound != strings.Contains(r.Message, "boot-a-1") || !strings.Contains(r.Message, "b.lan") || !strings.Contains(r.Message, "a.lan") {
				t.Errorf("message %q", r.Message)
			}
		}
		liar := *second // who knows the machine id and has a token for any id
		liar.claim.MachineID = "machine-a"
		r := liar.join("n1", joinToken(s, api.CreateToken{})).Refused(409, "NODE_ID_CONFLICT")
		if strings.Contains(r.Message, "boot-a-1") {
			t.Errorf("a token for any id shows a node: %q", r.Message)
		}
		// Only the token that was made for the id puts a key to a node that has none.
		own := admitted(t, s, first.join("n1", joinToken(s, api.CreateToken{NodeID: "n1"})))
		first.beat("n1", own.Token).Want(200)
		liar.join("n1", joinToken(s, api.CreateToken{NodeID: "n1"})).Refused(409, "NODE_ID_CONFLICT") // another key
		second.beat("n1", own.Token).Refused(409, "NODE_ID_CONFLICT")                                 // a stolen credential
		second.renew("n1").Refused(401, "NODE_KEY_UNKNOWN")
		stolen := *first
		stolen.claim.MachineID = "machine-c"
		stolen.renew("n1").Refused(409, "NODE_ID_CONFLICT") // a stolen key, on another machine
		first.beat("n1", own.Token).Want(200)
		s.Clock.Advance(compute.ClaimStands)
		admittedAgain := admitted(t, s, first.renew("n1"))
		first.beat("n1", admittedAgain.Token).Want(200)
		if f := finding(); f != nil {
			t.Errorf("it stands for ever: %+v", f)
		}
		s.Clock.Advance(time.Minute)
		// One key is one node.
		first.join("n9", joinToken(s, api.CreateToken{})).Refused(409, "NODE_ID_CONFLICT")
	})
}

// A copy of the disk has the machine id, the key and the credential. It is told by
// its boot, when the first boot is heard of again; from then on it neither beats nor
// syncs nor renews.
//
// contract: N-21
// lesson 7
func TestCopiedDisk(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		m := newMachine(s, "a")
		got := admitted(t, s, m.join("n1", joinToken(s, api.CreateToken{})))
		sync := func(m *machine) *apptest.Answer {
			return s.As(got.Token).Do("POST", api.NodePath("n1", "sync"), api.SyncRequest{BootID: m.claim.BootID, Instances: []api.ObservedInstance{}})
		}
		m.beat("n1", got.Token).Want(200)
		sync(m).Want(200)
		twin := *m
		twin.claim.BootID = "boot-twin"
		twin.beat("n1", got.Token).Want(200) // looks like a reboot
		sync(&twin).Want(200)
		sync(m).Refused(409, "NODE_ID_CONFLICT") // not before it has been heard of
		m.beat("n1", got.Token).Want(200)
		sync(m).Want(200)
		r := twin.beat("n1", got.Token).Refused(409, "NODE_ID_CONFLICT")
		if !strings.Contains(r.Message, "copies") || !strings.Contains(r.Message, "boot-twin") || !strings.Contains(r.Message, "boot-a-1") {
			t.Errorf("message %q", r.Message)
		}
		sync(&twin).Refused(409, "NODE_ID_CONFLICT")
		twin.renew("n1").Refused(409, "NODE_ID_CONFLICT")
		m.beat("n1", got.Token).Want(200)
		if n := s.Count("event=clone_detected"); n != 1 {
			t.Errorf("%d events", n)
		}
		m.claim.BootID = "boot-a-2" // a real reboot goes on
		m.beat("n1", got.Token).Want(200)
		admitted(t, s, m.renew("n1"))
		twin.beat("n1", got.Token).Refused(409, "NODE_ID_CONFLICT")
		s.Restart()
		twin.beat("n1", got.Token).Refused(409, "NODE_ID_CONFLICT")
		m.beat("n1", got.Token).Want(200)
	})
}

// The machine that joined is the node from then on, before it ever reported.
// contract: N-21
func TestJoinedButNotReported(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		m, thief := newMachine(s, "a"), newMachine(s, "b")
		got := admitted(t, s, m.join("n1", joinToken(s, api.CreateToken{})))
		thief.beat("n1", got.Token).Refused(409, "NODE_ID_CONFLICT")
		s.Operator.Do("GET", api.NodePath("n1"), nil).Refused(404, "NOT_FOUND")
		thief.join("n1", joinToken(s, api.CreateToken{})).Refused(409, "NODE_ID_CONFLICT")
		m.beat("n1", got.Token).Want(200)

		never := newMachine(s, "c")
		token := joinToken(s, api.CreateToken{})
		lost := admitted(t, s, never.join("n2", token))
		s.Operator.Do("DELETE", api.NodePath("n2"), nil).Want(204)
		s.Operator.Do("DELETE", api.NodePath("n2"), nil).Refused(404, "NOT_FOUND")
		never.renew("n2").Refused(401, "NODE_KEY_UNKNOWN")
		never.beat("n2", lost.Token).Refused(401, "UNAUTHENTICATED")
	})
}

// Deleting a node ends its key with its tokens, so its agent does not bring it back.
// contract: N-21
// lesson 8
func TestDeletedNodeHasNoKey(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	m := newMachine(s, "a")
	got := admitted(t, s, m.join("n1", joinToken(s, api.CreateToken{})))
	m.beat("n1", got.Token).Want(200)
	left := joinToken(s, api.CreateToken{NodeID: "n1"})
	s.Operator.Do("DELETE", api.NodePath("n1"), nil).Want(204)
	m.beat("n1", got.Token).Refused(401, "UNAUTHENTICATED")
	m.renew("n1").Refused(401, "NODE_KEY_UNKNOWN")
	m.join("n1", left).Refused(401, "UNAUTHENTICATED")
}

// A reinstalled host is re-admitted by one call: new key, new machine id, the same
// node with what is placed there.
//
// contract: N-21
// lesson 8
func TestReadmit(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		old := newMachine(s, "a")
		got := admitted(t, s, old.join("n1", joinToken(s, api.CreateToken{})))
		old.beat("n1", got.Token).Want(200)
		i := s.Create("default", api.CreateInstance{})
		fresh := newMachine(s, "a-again")
		fresh.join("n1", joinToken(s, api.CreateToken{NodeID: "n1"})).Refused(409, "NODE_ID_CONFLICT")
		s.Operator.Do("POST", api.NodePath("nobody", "readmit"), nil).Refused(404, "NOT_FOUND")
		for _, bad := range []string{`{"expiresInSeconds":86401}`, `{"nodeRole":"king"}`, `{"x":1}`} {
			s.Operator.Do("POST", api.NodePath("n1", "readmit"), bad, apptest.Header("Content-Type", "application/json")).Refused(400, "INVALID_INPUT")
		}
		old.beat("n1", got.Token).Want(200)

		var token api.NewToken
		s.Operator.Do("POST", api.NodePath("n1", "readmit"), nil).Want(201).Decode(&token)
		s.Secret(token.Secret)
		if token.Role != "join" || token.NodeID != "n1" || *token.UsesLeft != 1 {
			t.Errorf("token %+v", token.Token)
		}
		old.beat("n1", got.Token).Refused(401, "UNAUTHENTICATED")
		old.renew("n1").Refused(401, "NODE_KEY_UNKNOWN")
		was := s.Operator.Instance("default", i.ID)
		next := admitted(t, s, fresh.join("n1", token.Secret))
		fresh.beat("n1", next.Token).Want(200)
		old.beat("n1", next.Token).Refused(409, "NODE_ID_CONFLICT")
		if now := s.Operator.Instance("default", i.ID); now.NodeID != was.NodeID || now.State != was.State {
			t.Errorf("an instance was %s on %q and is %s on %q", was.State, was.NodeID, now.State, now.NodeID)
		}
		var n api.Node
		s.Operator.Do("GET", api.NodePath("n1"), nil).Want(200).Decode(&n)
		if n.Hostname != "a-again.lan" {
			t.Errorf("the node is %s", n.Hostname)
		}
	})
}

// Approval, and each reason for which it is refused.
//
// contract: N-22
func TestApproval(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		token := joinToken(s, api.CreateToken{Uses: 10, Approve: true})
		pending := func() (out api.List[api.PendingJoin]) {
			s.Operator.Do("GET", "/v1/compute/node-joins", nil).Want(200).Decode(&out)
			return out
		}
		decide := func(id, verb string, in api.JoinVerdict) *apptest.Answer {
			return s.Operator.Do("POST", "/v1/compute/node-joins/"+id+"/"+verb, in)
		}
		refused := func(a *apptest.Answer, reason string) {
			t.Helper()
			if r := a.Refused(409, "JOIN_APPROVAL_REFUSED"); r.Details["reason"] != reason {
				t.Errorf("%s: details %v, want %s", r.Message, r.Details, reason)
			}
		}
		m := newMachine(s, "a")
		var wait api.Admission
		m.join("n1", token).Want(202).Decode(&wait)
		if wait.Status != api.Pending || wait.Token != "" || wait.Fingerprint != m.id() {
			t.Errorf("%+v", wait)
		}
		m.join("n1", token).Want(202)
		m.renew("n1").Want(202)
		list := pending().Items
		if len(list) != 1 || list[0].NodeID != "n1" || list[0].Fingerprint != m.id() || list[0].Hostname != "a.lan" || list[0].MachineID != "machine-a" || list[0].ExpiresAt.Sub(list[0].CreatedAt) != 24*time.Hour {
			t.Errorf("pending: %+v", list)
		}
		newMachine(s, "b").join("n1", token).Refused(409, "NODE_ID_CONFLICT") // it is asked for

		for _, c := range []struct {
			id, fingerprint string
			field           string
		}{{"n1", "x", "fingerprint"}, {"n1", strings.Repeat("x", 50), "fingerprint"}, {"-", "", "nodeId"}} {
			if got := decide(c.id, "approve", api.JoinVerdict{Fingerprint: c.fingerprint}).Refused(400, "INVALID_INPUT").Paths(); len(got) != 1 || got[0] != c.field {
				t.Errorf("%q %q: problems at %v", c.id, c.fingerprint, got)
			}
		}
		refused(decide("n7", "approve", api.JoinVerdict{}), "NOT_PENDING")
		refused(decide("n7", "refuse", api.JoinVerdict{}), "NOT_PENDING")
		refused(decide("n1", "approve", api.JoinVerdict{Fingerprint: newMachine(s, "b").id()}), "FINGERPRINT_MISMATCH")
		s.Clock.Advance(2 * time.Hour) // longer than the token lives
		m.renew("n1").Want(202)
		decide("n1", "approve", api.JoinVerdict{Fingerprint: m.id()}).Want(200)
		refused(decide("n1", "approve", api.JoinVerdict{}), "NOT_PENDING")
		got := admitted(t, s, m.renew("n1"))
		m.beat("n1", got.Token).Want(200)
		if left := pending().Items; len(left) != 0 {
			t.Errorf("still pending: %+v", left)
		}

		token = joinToken(s, api.CreateToken{Uses: 10, Approve: true})
		b := newMachine(s, "b")
		b.join("n2", token).Want(202)
		decide("n2", "refuse", api.JoinVerdict{}).Want(200)
		refused(decide("n2", "approve", api.JoinVerdict{}), "NOT_PENDING")
		b.renew("n2").Refused(403, "JOIN_REFUSED")
		b.join("n2", token).Refused(403, "JOIN_REFUSED")
		b.join("n2", joinToken(s, api.CreateToken{})).Want(200) // another token, another try

		c := newMachine(s, "c")
		c.join("n3", token).Want(202)
		s.Node("n3") // meanwhile, the plain way
		refused(decide("n3", "approve", api.JoinVerdict{}), "NODE_TAKEN")
		decide("n3", "refuse", api.JoinVerdict{}).Want(200)

		d := newMachine(s, "d")
		d.join("n4", token).Want(202)
		s.Clock.Advance(compute.JoinWaits - time.Second)
		d.renew("n4").Want(202)
		s.Clock.Advance(time.Second)
		d.renew("n4").Refused(401, "NODE_KEY_UNKNOWN")
		refused(decide("n4", "approve", api.JoinVerdict{}), "EXPIRED")
		newMachine(s, "e").join("n4", joinToken(s, api.CreateToken{Approve: true})).Want(202) // the id is free again
		s.Operator.Do("DELETE", api.NodePath("n4"), nil).Want(204)
		refused(decide("n4", "approve", api.JoinVerdict{}), "NOT_PENDING")
	})
}

// No more than so many machines wait at a time.
// contract: N-22
func TestPendingJoinsAreBounded(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	token := joinToken(s, api.CreateToken{Uses: 1000, Approve: true})
	for i := range compute.MaxPendingJoins {
		newMachine(s, fmt.Sprint("m", i)).join(fmt.Sprint("m", i), token).Want(202)
	}
	more := joinToken(s, api.CreateToken{Approve: true})
	newMachine(s, "x").join("x", more).Refused(409, "CONFLICT")
	s.Operator.Do("POST", "/v1/compute/node-joins/m5/refuse", nil).Want(200)
	newMachine(s, "x").join("x", more).Want(202) // and the refused try took no use
	seen, cursor := 0, ""
	for {
		var page api.List[api.PendingJoin]
		s.Operator.Do("GET", "/v1/compute/node-joins?limit=300&cursor="+cursor, nil).Want(200).Decode(&page)
		seen += len(page.Items)
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	if seen != compute.MaxPendingJoins {
		t.Errorf("the pages hold %d", seen)
	}
}

// Many machines ask for one id at once: one has it, and all others hear of it.
// contract: N-21
func TestJoinRace(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		token := joinToken(s, api.CreateToken{Uses: 100})
		statuses := make([]int, 20)
		var all sync.WaitGroup
		for i := range statuses {
			m := newMachine(s, fmt.Sprint("m", i/2)) // two requests each
			all.Go(func() { statuses[i] = m.join("n1", token).Status })
		}
		all.Wait()
		in := map[int]bool{}
		for i, status := range statuses {
			switch status {
			case 200:
				in[i/2] = true
			case 409:
			default:
				t.Errorf("request %d: %d", i, status)
			}
		}
		if len(in) != 1 {
			t.Errorf("%d machines are the node: %v", len(in), statuses)
		}
	})
}

// Two servers on one database are asked for one id at the same moment, by two
// machines: one has it.
// contract: N-21
func TestJoinRaceOfTwoServers(t *testing.T) {
	s := apptest.Start(t, apptest.Options{Kind: "postgres"})
	db, err := store.Open(t.Context(), s.Database())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	second, err := control.New(control.Options{DB: db, Dir: t.TempDir(), Now: s.Clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	var token api.NewToken
	s.Operator.Do("POST", "/v1/tokens", api.CreateToken{Role: "join", Uses: 1000}).Want(201).Decode(&token)
	s.Secret(token.Secret)
	who := iam.Caller{Role: iam.Join, TokenID: token.ID}
	both := 0
	for i := range 40 {
		id := fmt.Sprint("n", i)
		ask := func(c *control.Control, m *machine) error {
			r, err := http.NewRequest("POST", s.URL+api.NodePath(id, "join"), nil)
			if err != nil {
				return err
			}
			b := m.joinBody()
			sign(m.signer(), b)(r)
			_, err = c.JoinNode(t.Context(), who, &control.SignedRequest{NodeID: id, Source: "test", Message: httpsig.FromRequest(r), Body: b})
			return err
		}
		var errs [2]error
		var all sync.WaitGroup
		for n, c := range []*control.Control{s.Control, second} {
			m := newMachine(s, fmt.Sprint(id, n))
			all.Go(func() { errs[n] = ask(c, m) })
		}
		all.Wait()
		for n, err := range errs {
			if err == nil && errs[1-n] == nil {
				both++
			}
			if err != nil && !fault.HasCode(err, fault.NodeIDConflict) {
				t.Errorf("%s: %v", id, err)
			}
		}
	}
	if both > 0 {
		t.Errorf("%d of 40 ids went to two machines", both/2)
	}
}
