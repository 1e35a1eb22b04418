package node

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/node/detect"
)

// Steps of joining, for CrashAt.
const (
	stepIdentity   = "identity"
	stepJoin       = "join"
	stepCredential = "credential"
)

// JoinSteps are the steps of a machine's join, in their order.
var JoinSteps = []string{stepIdentity, stepJoin, stepCredential}

func (c *Config) step(name string, before bool) {
	if c.StepHook != nil {
		c.StepHook("", name, before)
	}
}

// membership keeps the node's credential: it joins, renews and remembers.
type membership struct {
	*member
	cfg    *Config
	log    *slog.Logger
	dir    layout
	signer httpsig.Signer
	claim  func() api.NodeClaim
	dial   func(token string) (caller, error)
	again  chan struct{} // capacity 1: the server did not take the credential

	mu    sync.Mutex
	have  credential
	ahead time.Duration // of the server's clock before this machine's
}

func newMembership(cfg *Config, dir layout, m *member, claim func() api.NodeClaim, dial func(token string) (caller, error)) *membership {
	s := &membership{member: m, cfg: cfg, log: cfg.Log, dir: dir, claim: claim, dial: dial, again: make(chan struct{}, 1)}
	key := m.key()
	s.signer = httpsig.Signer{Profile: httpsig.Node, Key: key, KeyID: compute.KeyID(key.Public().(ed25519.PublicKey)), Now: s.now}
	return s
}

func (s *membership) publicKey() string {
	return base64.StdEncoding.EncodeToString(s.signer.Key.Public().(ed25519.PublicKey))
}

// now is the signing clock, which follows the server's (lesson 5).
func (s *membership) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.ahead)
}

// token is what the node's requests carry.
func (s *membership) token() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have.Token, nil
}

// due is when the credential is to be renewed: when half of its life is over.
func (s *membership) due() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have.IssuedAt.Add(time.Duration(s.have.LifeSeconds) * time.Second / 2)
}

// take writes a credential down and then uses it: until then the old one goes on.
func (s *membership) take(a api.Admission) error {
	c := credential{Token: a.Token, IssuedAt: time.Now().Round(0), LifeSeconds: a.ExpiresInSeconds, Role: a.NodeRole, Zone: a.NodeZone}
	s.cfg.step(stepCredential, true)
	err := s.dir.writeCredential(c)
	s.cfg.step(stepCredential, false)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have = c
	return nil
}

// ask asks for a credential once: by the key, and where the server does not know
// that, by the join token.
func (s *membership) ask(ctx context.Context, fresh bool) (a api.Admission, err error) {
	if !fresh {
		a, err = s.renew(ctx)
		if !fault.HasCode(err, fault.NodeKeyUnknown) && !fault.HasCode(err, fault.JoinRefused) {
			return a, err
		}
	}
	token, tokenErr := s.cfg.joinToken()
	if tokenErr != nil {
		return a, cmp.Or(err, tokenErr)
	}
	c := s.claim()
	s.cfg.step(stepJoin, true)
	a, err = s.send(ctx, "join", token, api.NodeJoin{PublicKey: s.publicKey(), Hostname: c.Hostname, MachineID: c.MachineID, BootID: c.BootID})
	s.cfg.step(stepJoin, false)
	return a, err
}

// renew asks for a credential by the key alone. A token that is nothing but the
// CA's fingerprint pins the server and is not sent.
func (s *membership) renew(ctx context.Context) (api.Admission, error) {
	pin := ""
	if s.CAFingerprint != "" {
		pin = "." + s.CAFingerprint
	}
	return s.send(ctx, "credential", pin, s.claim())
}

// send sends a signed request, a second time where this machine's clock was off.
func (s *membership) send(ctx context.Context, what, token string, in any) (a api.Admission, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return a, err
	}
	server, err := s.dial(token)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	once := func() error {
		var signErr error
		err := server.Do(ctx, http.MethodPost, api.NodePath(s.ID, what), bytes.NewReader(body), &a, func(r *http.Request) {
			r.Header.Set("Content-Type", "application/json")
			signErr = s.signer.SignRequest(r, body)
		})
		return cmp.Or(signErr, err)
	}
	if err = once(); fault.HasCode(err, fault.SignatureStale) && s.correct(err) {
		err = once()
	}
	return a, err
}

// correct sets the signing clock by what the server said of its own.
func (s *membership) correct(err error) bool {
	var d api.ClockDetails
	b, jsonErr := json.Marshal(fault.From(err).Details)
	if jsonErr != nil || json.Unmarshal(b, &d) != nil || d.ServerTime.IsZero() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = time.Until(d.ServerTime)
	s.log.Warn("this machine's clock is off; the node's requests are dated by the server's from now on. Set the clock right", "off", (-s.ahead).Round(time.Second))
	return true
}

// Pauses while an operator has not approved the machine.
const (
	approvalFirst = 2 * time.Second
	approvalMost  = 30 * time.Second
)

// join asks until the node has a credential or ctx ends. A refusal is told and
// asked about again slowly: an operator can put it right from afar, and a newer
// join token is taken from its file.
func (s *membership) join(ctx context.Context, fresh bool) error {
	pace := newPace(s.log, "join")
	pace.advice = s.advice
	waits := backoff{first: approvalFirst, most: approvalMost}
	for said := false; ; fresh = false {
		a, err := s.ask(ctx, fresh)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var next time.Duration
		switch {
		case err != nil:
			next = pace.failed(err)
		case a.Token != "":
			pace.worked()
			s.log.Info("this machine has joined", "node", s.ID, "fingerprint", a.Fingerprint, "server", s.Server)
			return s.take(a)
		default:
			pace.worked()
			if !said {
				s.log.Info("this machine waits for an operator's approval", "node", s.ID, "fingerprint", a.Fingerprint,
					"do", "outcrop node approve "+s.ID+" --fingerprint "+a.Fingerprint)
				said = true
			}
			next = waits.next()
		}
		if !sleep(ctx, next) {
			return ctx.Err()
		}
	}
}

// renewApart keeps renewals apart when the server takes no credential for long.
const renewApart = 10 * time.Second

// renewals keep the credential of a node that has joined fresh.
func (a *agent) renewals(ctx context.Context) {
	s := a.member
	if s == nil {
		return
	}
	pace := newPace(a.log, "renewal of the node's credential")
	pace.advice = s.advice
	for {
		if wait(ctx, max(time.Until(s.due()), 0), s.again) == cut {
			return
		}
		next := renewApart
		got, err := s.ask(ctx, false)
		if err == nil && got.Token != "" {
			err = s.take(got)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			next = max(next, pace.failed(err))
		default:
			pace.worked()
		}
		if !sleep(ctx, next) {
			return
		}
	}
}

// advice says what a person has to do about a refused join or renewal.
func (s *membership) advice(err error) string {
	newToken := "make a new join token (outcrop node join-token --id " + s.ID + ") and put it where this one was; it is taken without a restart"
	switch {
	case fault.HasCode(err, fault.JoinRefused):
		return "an operator has refused this machine; if that was wrong, " + newToken
	case fault.HasCode(err, fault.JoinTokenUsed):
		return "the join token was for others; " + newToken
	case fault.HasCode(err, fault.NodeKeyUnknown):
		return "the server does not know this machine's key; if the node was readmitted or deleted, " + newToken
	case fault.HasCode(err, fault.SignatureStale):
		return "set this machine's clock by NTP"
	case fault.Is(err, fault.Unauthenticated):
		return "the join token is not valid any more; " + newToken
	case fault.Is(err, fault.Forbidden):
		return "the join token is for another node; " + newToken
	}
	return adviceFor(err)
}

// claimOf describes the machine.
func claimOf(id string, m detect.Facts) api.NodeClaim {
	return api.NodeClaim{Hostname: cmp.Or(m.Hostname, id), MachineID: m.MachineID, BootID: m.BootID}
}

// runMember is Run for a machine that joins by a key of its own.
func runMember(ctx context.Context, cfg Config) error {
	dir := layout{root: cfg.DataDir}
	lock, err := dir.open()
	if err != nil {
		return err
	}
	look := func() detect.Facts { return detect.Machine(os.DirFS("/"), cfg.DataDir) }
	here := look()
	m, fresh, err := dir.identify(&cfg, here.Hostname, here.MachineID)
	if err != nil {
		lock.Close()
		return err
	}
	cfg.ID, cfg.ServerURL = m.ID, m.Server
	dial := func(token string) (caller, error) {
		return api.NewClient(cfg.ServerURL, token, "outcrop-node/"+cfg.Version)
	}
	if _, err := dial(""); err != nil { // a bad address
		lock.Close()
		return err
	}
	s := newMembership(&cfg, dir, m, func() api.NodeClaim { return claimOf(m.ID, look()) }, dial)
	var ok bool
	if s.have, ok, err = dir.readCredential(); err == nil && !ok {
		err = s.join(ctx, fresh)
	}
	if err != nil {
		lock.Close()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	cfg.Zone = cmp.Or(cfg.Zone, s.have.Zone)
	cfg.Role = cmp.Or(cfg.Role, compute.Role(s.have.Role), compute.RoleHypervisor)
	a, err := makeAgent(cfg, &uplink{source: s.token, refused: s.again, dial: dial}, dir, lock)
	if err != nil {
		return err
	}
	a.member = s
	a.run(ctx)
	return a.close()
}
