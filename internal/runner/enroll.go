package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

// Enrollment is how a host becomes known to a gateway.
type Enrollment struct {
	Dir           string // data folder of the runner
	Server        string
	CAFingerprint string
	AppID         string
	Host          string // name of this host
	// Token is used once and not kept: an operator's token, or an API key that
	// holds api_key.insert, hosts.ingest and work.claim.
	Token string
	// KeyID is the id of a runner key that somebody made for this host's public
	// key beforehand; Token is then that key itself.
	KeyID string

	Transport http.RoundTripper // nil: HTTP over the network
}

// permissions are all that a runner key needs.
var permissions = []string{string(fleet.HostsIngest), string(fleet.WorkClaim)}

// Enroll makes the host's key if there is none yet, has the gateway bind a runner
// key to it, and keeps both in the data folder. The host's private key never
// leaves it. Enrolling again makes another runner key for the same host key.
func Enroll(ctx context.Context, e Enrollment) (Identity, error) {
	id := Identity{Server: e.Server, AppID: e.AppID, Host: e.Host, KeyID: e.KeyID, MachineID: machineID()}
	secret, fingerprint := api.SplitToken(strings.TrimSpace(e.Token))
	if id.CAFingerprint = e.CAFingerprint; id.CAFingerprint == "" {
		id.CAFingerprint = fingerprint
	}
	_, public, err := HostKey(e.Dir) // on the disk before anybody hears of it (lesson 8)
	if err != nil {
		return id, err
	}
	if id.KeyID == "" {
		if id.KeyID, secret, err = e.makeKey(ctx, &id, secret, public); err != nil {
			return id, err
		}
	}
	if !strings.HasPrefix(secret, fleet.SecretPrefix) {
		return id, fmt.Errorf("the key that came with --key-id is no API key (%s…)", fleet.SecretPrefix)
	}
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return id, err
	}
	return id, errors.Join(
		writeOwn(filepath.Join(e.Dir, fileSecret), []byte(secret+"\n")),
		writeOwn(filepath.Join(e.Dir, fileIdentity), append(b, '\n')))
}

// makeKey asks the gateway for the runner key.
func (e *Enrollment) makeKey(ctx context.Context, id *Identity, secret, public string) (keyID, plaintext string, err error) {
	base, err := parseServer(e.Server)
	if err != nil {
		return "", "", err
	}
	c := &client{base: base, appID: e.AppID, secret: secret, agent: "outcrop", http: &http.Client{Transport: e.Transport}}
	if e.Transport == nil {
		c.http.Transport = newTransport(id.CAFingerprint, base.Hostname())
	}
	var out api.Data[api.NewAPIKey]
	err = c.once(ctx, "/v1/api-keys", mustJSON(api.CreateAPIKey{Name: "runner " + e.Host, Permissions: permissions,
		Runner: &api.RunnerKey{Host: e.Host, PublicKey: public}}), &out, nil)
	var refused *refusal
	if errors.As(err, &refused) { // the command line speaks the client's errors
		err = fault.Coded(fault.KindOf(refused.Status), refused.Code, "%s", refused.Message)
	}
	if err == nil && (out.Data.ID == "" || out.Data.PlaintextKey == "") {
		err = errors.New("the gateway made no runner key; is the server's address right?")
	}
	return out.Data.ID, out.Data.PlaintextKey, err
}

// mustJSON is for the runner's own types, which can always be written.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// Hostname is the name that a host has when nobody gives it one.
func Hostname() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "runner"
	}
	return name
}
