package runner

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
)

// Codes of refusals that the runner acts on (contract, E-07).
const (
	codeStale    = "runner_key_signature_stale"
	codeReplayed = "runner_key_signature_replayed"
	codeLost     = "lease_lost"
	codeNotFound = "not_found"
	codeUntyped  = "http_" // and the status: no answer of a gateway
)

// maxAnswer bounds an answer; a claimed job has 192 KiB of command and
// environment at most.
const maxAnswer = 4 << 20

// client speaks to the gateway as one host and signs what it sends.
type client struct {
	base   *url.URL
	appID  string
	secret string
	agent  string
	signer *httpsig.Signer // nil: a plain key
	clock  *clock
	http   *http.Client
	log    *slog.Logger
}

// newClient makes the client of an enrolled host.
func newClient(id *Identity, key ed25519.PrivateKey, secret string, c *clock, transport http.RoundTripper, version string, log *slog.Logger) (*client, error) {
	base, err := parseServer(id.Server)
	if err != nil {
		return nil, err
	}
	if transport == nil {
		transport = newTransport(id.CAFingerprint, base.Hostname())
	}
	return &client{base: base, appID: id.AppID, secret: secret, agent: "outcrop/" + version, clock: c, log: log,
		http:   &http.Client{Transport: transport},
		signer: &httpsig.Signer{Profile: httpsig.Runner, Key: key, KeyID: id.KeyID, Now: c.signing},
	}, nil
}

func parseServer(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("the server's address %q is not like %s", text, api.DefaultURL)
	}
	return u, nil
}

// newTransport trusts the system's CAs, or only the CA of the fingerprint (hex
// sha256 of its DER).
func newTransport(fingerprint, host string) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = 30 * time.Second
	if fingerprint != "" {
		t.TLSClientConfig = api.Pinned(fingerprint, host)
	}
	return t
}

// refusal is what the gateway answered instead of doing it.
type refusal struct {
	Status     int
	Code       string
	Message    string
	RetryAfter time.Duration
	ServerTime time.Time // zero when not told
}

func (r *refusal) Error() string { return r.Code + ": " + r.Message }

// refusedWith reports whether err is a refusal with the code.
func refusedWith(err error, code string) bool {
	var r *refusal
	return errors.As(err, &r) && r.Code == code
}

// final reports whether the gateway refused for good: sending the same again cannot
// help. What something on the way answers in its place is not final.
func final(err error) bool {
	var r *refusal
	return errors.As(err, &r) && !strings.HasPrefix(r.Code, codeUntyped) && r.Status >= 400 && r.Status < 500 &&
		r.Status != http.StatusUnauthorized && r.Status != http.StatusRequestTimeout && r.Status != http.StatusTooManyRequests
}

// post sends in and decodes the answer into out. It sends a second time, signed
// anew, where the first attempt told how to do better.
func (c *client) post(ctx context.Context, path string, in, out any, header ...string) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	err = c.once(ctx, path, body, out, header)
	var r *refusal
	switch {
	case !errors.As(err, &r):
		return err
	case r.Code == codeStale && !r.ServerTime.IsZero():
		skew := c.clock.correct(r.ServerTime)
		c.log.Warn("this machine's clock is off; requests are dated by the server's clock from now on. Set the clock right",
			"off", skew.Round(time.Second))
	case r.Code != codeReplayed:
		return err
	}
	return c.once(ctx, path, body, out, header)
}

// once sends one attempt. Each has a nonce and a date of its own.
func (c *client) once(ctx context.Context, path string, body []byte, out any, header []string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.secret)
	req.Header.Set("X-Outerlayer-App-Id", c.appID)
	req.Header.Set("User-Agent", c.agent)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if c.signer != nil {
		if err := c.signer.SignRequest(req, body); err != nil {
			return err
		}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("no answer from %s: %w", c.base.Host, unwrapURL(err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case resp.StatusCode >= 300: // a refusal whose text breaks off is still one
		return readRefusal(resp, b)
	case err != nil:
		return fmt.Errorf("the answer of %s broke off: %w", c.base.Host, err)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s did not answer as a gateway does: %w", c.base.Host, err)
	}
	return nil
}

// unwrapURL takes the address off an error of net/http, which only repeats it.
func unwrapURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func readRefusal(resp *http.Response, body []byte) *refusal {
	r := &refusal{Status: resp.StatusCode, Code: codeUntyped + strconv.Itoa(resp.StatusCode), Message: "the server answered " + resp.Status,
		RetryAfter: retryAfter(resp.Header.Get("Retry-After"))}
	var e struct {
		Error struct {
			Code, Message string
			Details       json.RawMessage
		}
	}
	if json.Unmarshal(body, &e) == nil && e.Error.Code != "" {
		r.Code, r.Message = e.Error.Code, e.Error.Message
	}
	if r.Code == codeStale {
		r.ServerTime = serverTime(resp.Header, e.Error.Details)
	}
	return r
}

// serverTime is the server's clock: as the refusal tells it, else as every HTTP
// answer does.
func serverTime(h http.Header, details json.RawMessage) time.Time {
	var d api.ClockDetails
	if json.Unmarshal(details, &d) == nil && !d.ServerTime.IsZero() {
		return d.ServerTime
	}
	t, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return time.Time{}
	}
	return t
}

// maxRetryAfter bounds how long a server can send a host away.
const maxRetryAfter = 10 * time.Minute

// retryAfter reads the header in either of its forms (RFC 9110 section 10.2.3).
func retryAfter(text string) time.Duration {
	text = strings.TrimSpace(text)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.Duration(min(max(n, 0), int64(maxRetryAfter/time.Second))) * time.Second
	}
	if t, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(t), 0), maxRetryAfter)
	}
	return 0
}
