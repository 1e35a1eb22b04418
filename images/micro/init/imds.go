package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	imdsURL     = "http://169.254.169.254"
	imdsTimeout = 15 * time.Second // of one request
	imdsLimit   = 1 << 20          // of one answer, in bytes
)

// imds is a client of an EC2-shaped metadata service that uses session tokens ("version 2").
type imds struct {
	url    string
	client *http.Client
	token  string
}

func newIMDS(url string) *imds {
	// Each request on a connection of its own: reads are rare, and the service may restart in between.
	return &imds{url: url, client: &http.Client{Timeout: imdsTimeout, Transport: &http.Transport{DisableKeepAlives: true}}}
}

// refused is an answer that asking again does not change.
type refused struct{ status string }

func (r refused) Error() string { return r.status }

// get reads one path, with a token taken on first use.
func (s *imds) get(ctx context.Context, path string) ([]byte, error) {
	if s.token == "" {
		token, err := s.do(ctx, http.MethodPut, "latest/api/token", "X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		if err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		s.token = strings.TrimSpace(string(token))
	}
	b, err := s.do(ctx, http.MethodGet, path, "X-Aws-Ec2-Metadata-Token", s.token)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

func (s *imds) do(ctx context.Context, method, path, header, value string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.url+"/"+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(header, value)
	answer, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests:
		return nil, errors.New(answer.Status)
	case answer.StatusCode != http.StatusOK:
		return nil, refused{answer.Status}
	}
	return io.ReadAll(io.LimitReader(answer.Body, imdsLimit))
}

// retry calls ask until it succeeds, is refused, or ctx is over, with a pause before each further try.
func retry(ctx context.Context, pause func(), ask func() ([]byte, error)) ([]byte, error) {
	for {
		b, err := ask()
		if err == nil || errors.As(err, new(refused)) || ctx.Err() != nil {
			return b, err
		}
		pause()
	}
}
