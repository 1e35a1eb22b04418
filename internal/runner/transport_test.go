package runner

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/server"
)

// A host speaks to nobody but the gateway whose CA it was enrolled with, at the
// name or the address that it was enrolled for.
func TestTransportIsPinned(t *testing.T) {
	ca, err := server.LoadOrMakeCA(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := server.LoadOrMakeCA(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		names       []string // of the certificate
		fingerprint string
		wrong       string // empty: it works
	}{
		"own":          {[]string{"127.0.0.1"}, ca.Fingerprint(), ""},
		"another CA":   {[]string{"127.0.0.1"}, other.Fingerprint(), "fingerprint"},
		"another host": {[]string{"127.0.0.2", "elsewhere.example"}, ca.Fingerprint(), "127.0.0.1"},
		"no pin":       {[]string{"127.0.0.1"}, "", "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			cert, err := ca.Certificate(c.names, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			s := httptest.NewUnstartedServer(http.NotFoundHandler())
			s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
			s.StartTLS()
			defer s.Close()
			tr := newTransport(c.fingerprint, "127.0.0.1")
			defer tr.CloseIdleConnections()
			resp, err := (&http.Client{Transport: tr}).Get(s.URL)
			if err == nil {
				resp.Body.Close()
			}
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("%v, want %q", err, c.wrong)
			}
		})
	}
}
