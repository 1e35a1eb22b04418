package apptest

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// Client sends requests as they are, so that a test can send wrong ones too.
type Client struct {
	s     *System
	token string
	http  *http.Client
}

// As is a client with the token; an empty one sends none.
func (s *System) As(token string) *Client {
	s.Secret(token)
	tr := &http.Transport{MaxIdleConnsPerHost: 32, TLSClientConfig: &tls.Config{RootCAs: s.roots}}
	s.t.Cleanup(tr.CloseIdleConnections)
	return &Client{s: s, token: token, http: &http.Client{Transport: tr}}
}

// Token is the token that the client sends.
func (c *Client) Token() string { return c.token }

// Option changes a request before it is sent.
type Option func(*http.Request)

// Header sets a header.
func Header(name, value string) Option { return func(r *http.Request) { r.Header.Set(name, value) } }

// Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	t      testing.TB
	asked  string
}

// Do sends a request: a []byte, string or io.Reader as it is, nil for no body,
// anything else as JSON. It fails the test only when no answer came.
func (c *Client) Do(method, path string, body any, opts ...Option) *Answer {
	c.s.t.Helper()
	a, err := c.Try(method, path, body, opts...)
	if err != nil {
		c.s.t.Fatal(err)
	}
	return a
}

// Try is Do for requests that may get no answer.
func (c *Client) Try(method, path string, body any, opts ...Option) (*Answer, error) {
	var r io.Reader
	kind := ""
	switch b := body.(type) {
	case nil:
	case io.Reader:
		r = b
	case []byte:
		r = bytes.NewReader(b)
	case string:
		r = bytes.NewReader([]byte(b))
	default:
		j, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		r, kind = bytes.NewReader(j), "application/json"
	}
	req, err := http.NewRequestWithContext(c.s.t.Context(), method, c.s.URL+path, r)
	if err != nil {
		return nil, err
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for _, o := range opts {
		o(req)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return &Answer{Status: resp.StatusCode, Header: resp.Header, Body: b, t: c.s.t, asked: method + " " + path}, err
}

// Want fails the test unless the status is the one.
func (a *Answer) Want(status int) *Answer {
	a.t.Helper()
	if a.Status != status {
		a.t.Fatalf("%s: %d %s; want %d", a.asked, a.Status, a.Body, status)
	}
	return a
}

// Decode reads the body as JSON.
func (a *Answer) Decode(out any) *Answer {
	a.t.Helper()
	if err := json.Unmarshal(a.Body, out); err != nil {
		a.t.Fatalf("%s: %v in %s", a.asked, err, a.Body)
	}
	return a
}

// Refusal is the compute API's error envelope (contract E-01).
type Refusal struct {
	Code    string         `json:"code"`
	Message string         `json:"message"`
	Fields  []fault.Field  `json:"fields"`
	Details map[string]any `json:"details"`
}

// Refused fails the test unless the answer is a refusal with the status and code.
func (a *Answer) Refused(status int, code string) Refusal {
	a.t.Helper()
	var r Refusal
	a.Want(status).Decode(&r)
	if r.Code != code || r.Message == "" {
		a.t.Fatalf("%s: %s; want code %s and a message", a.asked, a.Body, code)
	}
	return r
}

// Paths are the places of a refusal's fields, in order.
func (r Refusal) Paths() []string {
	var out []string
	for _, f := range r.Fields {
		out = append(out, f.Path)
	}
	return out
}

// Code is the code of a refusal, empty for none.
func (a *Answer) Code() string {
	var r Refusal
	_ = json.Unmarshal(a.Body, &r)
	return r.Code
}

// Instance reads an instance.
func (c *Client) Instance(project, id string) (i api.Instance) {
	c.s.t.Helper()
	c.Do("GET", api.InstancePath(project, id), nil).Want(http.StatusOK).Decode(&i)
	return i
}
