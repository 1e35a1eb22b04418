package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

const (
	requestTimeout = 15 * time.Second // of one request; emulated guests are slow
	maxAnswer      = 64 << 10
	tokenTTL       = "21600"
)

// imds is a client of the metadata service with a session token ("version 2").
type imds struct {
	url    string
	client *http.Client
	token  string
}

func newIMDS(url string) *imds {
	// No proxy ever, and a connection per request: the service may restart in between.
	return &imds{url: strings.TrimSuffix(url, "/"), client: &http.Client{Timeout: requestTimeout, Transport: &http.Transport{DisableKeepAlives: true}}}
}

func (m *imds) settings(ctx context.Context) (s api.AgentSettings, err error) {
	return s, m.call(ctx, http.MethodGet, "/latest/outcrop/agent", nil, &s)
}

func (m *imds) heartbeat(ctx context.Context, h api.AgentHeartbeat) (s api.AgentSettings, err error) {
	return s, m.call(ctx, http.MethodPut, "/latest/outcrop/agent/heartbeat", h, &s)
}

// call makes a request with a token, and again with a new one where the token has
// ended.
func (m *imds) call(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	for fresh := false; ; fresh = true {
		if m.token == "" {
			token, err := m.do(ctx, http.MethodPut, "/latest/api/token", "X-Aws-Ec2-Metadata-Token-Ttl-Seconds", tokenTTL, nil)
			if err != nil {
				return fmt.Errorf("session token: %w", err)
			}
			m.token, fresh = strings.TrimSpace(string(token)), true
		}
		answer, err := m.do(ctx, method, path, "X-Aws-Ec2-Metadata-Token", m.token, body)
		if refused, ok := err.(refusal); ok && refused.status == http.StatusUnauthorized {
			m.token = ""
			if !fresh {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		return json.Unmarshal(answer, out)
	}
}

// refusal is an answer other than 200.
type refusal struct {
	status int
	text   string
}

func (r refusal) Error() string { return fmt.Sprintf("%d %s", r.status, r.text) }

func (m *imds) do(ctx context.Context, method, path, header, value string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, m.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set(header, value)
	resp, err := m.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, refusal{resp.StatusCode, strings.TrimSpace(string(answer))}
	}
	return answer, nil
}
