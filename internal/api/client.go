package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// Client speaks the public API. It is safe for concurrent use.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
	agent string
}

// DefaultURL is where a server listens by default (contract E-09).
const DefaultURL = "http://127.0.0.1:9418"

// NewClient makes a client of the server at base with a bearer token. A token
// that carries the fingerprint of the server's own CA (see SplitToken) makes the
// client trust exactly that CA and nothing else. One that is only a dot and that
// fingerprint does no more than that: it is not sent.
func NewClient(base, token, userAgent string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("the server's address %q is not like %s", base, DefaultURL)
	}
	token = strings.TrimSpace(token)
	tr := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: 5 * time.Second,  // an upload learns of a refusal before it sends its bytes
		ResponseHeaderTimeout: 90 * time.Second, // a held sync answers within 60 s
	}
	if _, fp := SplitToken(token); fp != "" {
		tr.TLSClientConfig = Pinned(fp, u.Hostname())
	}
	return &Client{base: u, token: token, http: &http.Client{Transport: tr}, agent: userAgent}, nil
}

// SplitToken takes a token apart into its secret and the hex sha256 of the DER
// of the server's own CA certificate, which is empty where the server has none.
func SplitToken(token string) (secret, caFingerprint string) {
	secret, caFingerprint, _ = strings.Cut(token, ".")
	return secret, caFingerprint
}

// Pinned trusts only a chain that ends in the CA whose DER has the hex sha256, and
// checks the host as usual. The handshake does not know the host where it is an address:
// those are no server names (RFC 6066, section 3).
func Pinned(fingerprint, host string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // replaced by VerifyConnection
		VerifyConnection: func(cs tls.ConnectionState) error {
			return verifyPinned(cs, fingerprint, host)
		},
	}
}

func verifyPinned(cs tls.ConnectionState, fingerprint, host string) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the server shows no certificate")
	}
	for _, ca := range cs.PeerCertificates[1:] {
		sum := sha256.Sum256(ca.Raw)
		if subtle.ConstantTimeCompare([]byte(hex.EncodeToString(sum[:])), []byte(fingerprint)) != 1 {
			continue
		}
		leaf := cs.PeerCertificates[0]
		if err := leaf.CheckSignatureFrom(ca); err != nil {
			return fmt.Errorf("the server's certificate is not from its own CA, as its fingerprint has it: %w", err)
		}
		if now := time.Now(); now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
			return errors.New("the server's certificate is not valid at this machine's time; check both clocks")
		}
		return leaf.VerifyHostname(host)
	}
	return errors.New("the server's CA is not the one with the fingerprint in the token; use a token that this server made, or enrol the host anew if the server was")
}

// Option changes one request.
type Option func(*http.Request)

// IdempotencyKey makes a create safe to send again (contract E-10). Make the key
// once, outside the retry loop.
func IdempotencyKey(key string) Option {
	return func(r *http.Request) { r.Header.Set("Idempotency-Key", key) }
}

// ContentLength tells the server how much will come.
func ContentLength(n int64) Option { return func(r *http.Request) { r.ContentLength = n } }

// Do sends in as JSON (an io.Reader as raw bytes, nil as no body) and decodes
// the answer into out (an io.Writer takes the raw bytes, nil drops them). A
// refusal comes back as *fault.Error.
func (c *Client) Do(ctx context.Context, method, path string, in, out any, opts ...Option) error {
	body, contentType, err := encodeBody(in)
	if err != nil {
		return err
	}
	ref, err := url.Parse(path)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.ResolveReference(ref).String(), body)
	if err != nil {
		return err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if secret, _ := SplitToken(c.token); secret != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	req.Header.Set("User-Agent", c.agent)
	for _, o := range opts {
		o(req)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return unreachable(c.base, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 400 {
		return decodeError(resp)
	}
	return decodeBody(resp.Body, out)
}

func encodeBody(in any) (io.Reader, string, error) {
	switch v := in.(type) {
	case nil:
		return nil, "", nil
	case io.Reader:
		return v, "application/octet-stream", nil
	}
	b, err := json.Marshal(in)
	return bytes.NewReader(b), "application/json", err
}

func decodeBody(r io.Reader, out any) error {
	switch v := out.(type) {
	case nil:
		_, err := io.Copy(io.Discard, r)
		return err
	case io.Writer:
		_, err := io.Copy(v, r)
		return err
	}
	return json.NewDecoder(r).Decode(out)
}

// Unreachable means that no answer came: nothing is known of what the server did.
type Unreachable struct {
	Base  string
	Cause error
}

func (e *Unreachable) Error() string {
	return fmt.Sprintf("no answer from %s (%v); is the server running, and is OUTCROP_URL right?", e.Base, e.Cause)
}
func (e *Unreachable) Unwrap() error { return e.Cause }

func unreachable(base *url.URL, err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &Unreachable{Base: base.String(), Cause: err}
}

// errorBody takes both envelopes: the compute API's and the gateway's.
type errorBody struct {
	Code    string            `json:"code"`
	Message string            `json:"message"`
	Fields  []fault.Field     `json:"fields"`
	Details any               `json:"details"`
	Error   *GatewayErrorBody `json:"error"`
}

// retryAfter is the cause of a refusal that says how long to wait (RFC 9110 section
// 10.2.3); callers find it by its method.
type retryAfter time.Duration

// Error says how long.
func (r retryAfter) Error() string { return "the server asks to wait " + time.Duration(r).String() }

// RetryAfter is how long to wait.
func (r retryAfter) RetryAfter() time.Duration { return time.Duration(r) }

func decodeError(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	e := &fault.Error{Kind: fault.KindOf(resp.StatusCode), Code: "HTTP_" + strconv.Itoa(resp.StatusCode)}
	var body errorBody
	if json.Unmarshal(b, &body) == nil {
		if body.Error != nil {
			body.Code, body.Message, body.Details = body.Error.Code, body.Error.Message, body.Error.Details
			body.Fields = body.Error.fields()
		}
		if body.Code != "" {
			e.Code, e.Message, e.Fields, e.Details = body.Code, body.Message, body.Fields, body.Details
		}
	}
	if e.Message == "" {
		e.Message = "the server answered " + resp.Status
	}
	if n, err := strconv.ParseInt(resp.Header.Get("Retry-After"), 10, 32); err == nil && n > 0 {
		e.Cause = retryAfter(time.Duration(n) * time.Second)
	}
	if id := resp.Header.Get("X-Request-Id"); id != "" && e.Kind == fault.Internal {
		e.Message += " (request id " + id + ")"
	}
	return e
}

// Pages calls each for every item of a list, page by page.
func Pages[T any](ctx context.Context, c *Client, path string, each func(T) error) error {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	for cursor := ""; ; {
		var page List[T]
		p := path + sep + "limit=500"
		if cursor != "" {
			p += "&cursor=" + url.QueryEscape(cursor)
		}
		if err := c.Do(ctx, http.MethodGet, p, nil, &page); err != nil {
			return err
		}
		for _, item := range page.Items {
			if err := each(item); err != nil {
				return err
			}
		}
		if page.NextCursor == "" {
			return nil
		}
		cursor = page.NextCursor
	}
}

// InstancePath is the path of an instance, with further segments after it.
func InstancePath(project, id string, more ...string) string {
	p := "/v1/projects/" + url.PathEscape(project) + "/compute/instances"
	if id != "" {
		p += "/" + url.PathEscape(id)
	}
	for _, m := range more {
		p += "/" + m
	}
	return p
}

// ImagePath is the path of an image, or of all with an empty id.
func ImagePath(project, id string) string {
	p := "/v1/projects/" + url.PathEscape(project) + "/compute/images"
	if id != "" {
		p += "/" + url.PathEscape(id)
	}
	return p
}

// NodePath is the path of a node, with further segments after it.
func NodePath(id string, more ...string) string {
	p := "/v1/compute/nodes"
	if id != "" {
		p += "/" + url.PathEscape(id)
	}
	for _, m := range more {
		p += "/" + m
	}
	return p
}
