package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// service is a metadata service of one instance, with tokens; it fails its first answers as a service that starts would.
func service(t *testing.T, failures int, files map[string]string) *imds {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, known := files[r.URL.Path]
		switch {
		case failures > 0:
			failures--
			http.Error(w, "starting", http.StatusServiceUnavailable)
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
			if r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") == "" {
				http.Error(w, "no TTL", http.StatusBadRequest)
				return
			}
			_, _ = w.Write([]byte("secret-token"))
		case r.Header.Get("X-aws-ec2-metadata-token") != "secret-token":
			http.Error(w, "no token", http.StatusUnauthorized)
		case !known:
			http.NotFound(w, r)
		default:
			_, _ = w.Write([]byte(body))
		}
	}))
	t.Cleanup(server.Close)
	return newIMDS(server.URL)
}

func TestIMDS(t *testing.T) {
	const userData = "\x00binary\r\n"
	for _, c := range []struct {
		name     string
		failures int
		path     string
		want     string
		pauses   int
		err      string
	}{
		{"user-data", 0, "latest/user-data", userData, 0, ""},
		{"service that starts late", 3, "latest/user-data", userData, 3, ""},
		{"nothing there: asked once", 0, "latest/other", "", 0, "latest/other: 404 Not Found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := service(t, c.failures, map[string]string{"/latest/user-data": userData})
			pauses := 0
			b, err := retry(t.Context(), func() { pauses++ }, func() ([]byte, error) { return s.get(t.Context(), c.path) })
			if string(b) != c.want || pauses != c.pauses {
				t.Errorf("got %q after %d pauses, want %q after %d", b, pauses, c.want, c.pauses)
			}
			if got := message(err); got != c.err {
				t.Errorf("error %q, want %q", got, c.err)
			}
		})
	}
}

func TestRetryEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	_, err := retry(ctx, cancel, func() ([]byte, error) { tries++; return nil, errors.New("unreachable") })
	if message(err) != "unreachable" || tries != 2 {
		t.Errorf("%d tries, error %v; want 2 tries and the last error", tries, err)
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
