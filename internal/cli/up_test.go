package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/server"
)

// "outcrop up" that listened on loopback and now on all addresses goes on with the
// tokens that it has.
func TestUpBeyondLoopback(t *testing.T) {
	for url, want := range map[string]string{
		"https://[::]:9418": "https://127.0.0.1:9418", "https://0.0.0.0:9418": "https://127.0.0.1:9418",
		"http://127.0.0.1:9418": "http://127.0.0.1:9418", "https://[fe80::1]:9418": "https://[fe80::1]:9418",
	} {
		if got := ownURL(url); got != want {
			t.Errorf("%s: %s", url, got)
		}
	}
	data := t.TempDir()
	file := filepath.Join(data, "token")
	if err := writeSecret(file, "oct_x"); err != nil {
		t.Fatal(err)
	}
	if got, err := pinned(file, "http://127.0.0.1:1", data); got != "oct_x" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := pinned(file, "https://127.0.0.1:1", data); got != "oct_x" || err != nil { // a CA of somebody else's
		t.Errorf("%q, %v", got, err)
	}
	ca, err := server.LoadOrMakeCA(filepath.Join(data, "server"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := pinned(file, "https://127.0.0.1:1", data)
		if secret, fp := api.SplitToken(got); secret != "oct_x" || fp != ca.Fingerprint() || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		if b, err := os.ReadFile(file); strings.TrimSpace(string(b)) != got || err != nil {
			t.Errorf("the file holds %q, %v", b, err)
		}
	}
	if _, err := pinned(filepath.Join(data, "none"), "http://127.0.0.1:1", data); err == nil {
		t.Error("a token that is not there")
	}
}
