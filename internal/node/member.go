package node

import (
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// member is who this machine is to its server. It is on the disk before the server
// hears of it, and never changes while the key lives: an agent that is killed at any
// moment comes back as the same node (lesson 8).
type member struct {
	ID            string `json:"id"`
	MachineID     string `json:"machineId,omitempty"`
	Server        string `json:"server"`
	CAFingerprint string `json:"caFingerprint,omitempty"` // of the server's own CA; empty: the system's CAs
	Seed          []byte `json:"key"`                     // of the Ed25519 key, RFC 8032; never leaves the machine
}

// credential is what the server last gave the node's key.
type credential struct {
	Token       string    `json:"token"`
	IssuedAt    time.Time `json:"issuedAt"` // this machine's clock
	LifeSeconds int64     `json:"lifeSeconds"`
	// All that the node may claim to be, where the join token said so.
	Role string `json:"role,omitempty"`
	Zone string `json:"zone,omitempty"`
}

const (
	fileMember     = "node.json"
	fileCredential = "credential.json"
)

func (m *member) key() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(m.Seed) }

// readMember returns nil where there is no identity.
func (l layout) readMember() (*member, error) {
	var m member
	ok, err := readSecret(l.file(fileMember), &m)
	if err != nil || !ok {
		return nil, err
	}
	if len(m.Seed) != ed25519.SeedSize || !compute.ValidNodeID(m.ID) || m.Server == "" {
		return nil, fmt.Errorf("%s is no identity of a node; restore it, or remove it and join again with a token of: outcrop node readmit", l.file(fileMember))
	}
	return &m, nil
}

// readCredential returns false where there is none.
func (l layout) readCredential() (c credential, ok bool, err error) {
	ok, err = readSecret(l.file(fileCredential), &c)
	return c, ok && c.Token != "", err
}

// readSecret reads a file of secrets, which nobody but its owner may read; false
// where it is not there. Its text is in no error.
func readSecret(path string, to any) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return false, fmt.Errorf("others may read %s (%v): chmod 600, and if somebody may have done so: outcrop node readmit", path, info.Mode())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	if json.Unmarshal(b, to) != nil {
		return false, fmt.Errorf("%s cannot be read as JSON; remove it and join again with a token of: outcrop node readmit", path)
	}
	return true, nil
}

func (l layout) writeMember(m *member) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(l.file(fileMember), append(b, '\n'))
}

func (l layout) writeCredential(c credential) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return writeFile(l.file(fileCredential), append(b, '\n'))
}

// identify reads who this machine is, or makes its identity where a join token is
// at hand. made says that nobody has heard of its key yet. The lock of the folder
// is held.
func (l layout) identify(cfg *Config, hostname, machineID string) (m *member, made bool, err error) {
	m, err = l.readMember()
	if err != nil {
		return nil, false, err
	}
	token, tokenErr := cfg.joinToken()
	_, pin := api.SplitToken(token)
	switch {
	case m == nil:
		if tokenErr != nil {
			return nil, false, tokenErr
		}
		m, made = &member{ID: cfg.ID, Server: cmp.Or(cfg.ServerURL, api.DefaultURL), CAFingerprint: pin, MachineID: machineID}, true
	case cfg.ID != "" && cfg.ID != m.ID && !moved(m, machineID):
		return nil, false, fmt.Errorf("%s is the folder of node %q, not of %q; leave --id out, or give this node another --data", l.root, m.ID, cfg.ID)
	case moved(m, machineID):
		if tokenErr != nil {
			return nil, false, fmt.Errorf("%s belongs to the machine with the id %s, and this one is %s: a copy needs a --data and an --id of its own; where this machine takes the other's place, give it the join token of: outcrop node readmit %s", l.root, m.MachineID, machineID, m.ID)
		}
		m, made = &member{ID: cmp.Or(cfg.ID, m.ID), Server: cmp.Or(cfg.ServerURL, m.Server), CAFingerprint: cmp.Or(pin, m.CAFingerprint), MachineID: machineID}, true
	default:
		server, ca := cmp.Or(cfg.ServerURL, m.Server), cmp.Or(pin, m.CAFingerprint)
		if server == m.Server && ca == m.CAFingerprint {
			return m, false, nil
		}
		m.Server, m.CAFingerprint = server, ca // the operator's newer word
		return m, false, l.writeMember(m)
	}
	if m.ID == "" {
		m.ID = hostname
	}
	if !compute.ValidNodeID(m.ID) {
		return nil, false, errBadNodeID(m.ID)
	}
	// The credential of another key first: it must not outlive its identity.
	if err := os.Remove(l.file(fileCredential)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	m.Seed = make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(m.Seed) // never fails since Go 1.24
	cfg.step(stepIdentity, true)
	err = l.writeMember(m)
	cfg.step(stepIdentity, false)
	return m, made, err
}

// moved reports whether the folder is on another machine than it was.
func moved(m *member, machineID string) bool {
	return m.MachineID != "" && machineID != "" && m.MachineID != machineID
}

// joinToken reads the join token anew each time, so that a newer one is taken
// without a restart.
func (c *Config) joinToken() (string, error) {
	token := c.JoinToken
	if c.JoinTokenFile != "" {
		b, err := os.ReadFile(c.JoinTokenFile)
		if err != nil {
			return "", fmt.Errorf("the join token: %w; an operator makes one with: outcrop node join-token", err)
		}
		token = string(b)
	}
	if token = strings.TrimSpace(token); token == "" {
		return "", errors.New("this machine has not joined: give its agent a join token (--join-token-file); an operator makes one with: outcrop node join-token")
	}
	return token, nil
}
