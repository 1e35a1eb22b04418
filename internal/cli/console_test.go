package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// What is typed goes to the guest up to Ctrl-] and not beyond; what the guest says comes
// out byte for byte, also after the end of an input that is a pipe.
// contract: U-19
func TestConsoleInteractive(t *testing.T) {
	for _, tt := range []struct {
		name, typed, guest string
		says               string // of the guest, when it has heard all that it waits for
	}{
		{"a pipe", "uname\npoweroff\n", "uname\npoweroff\n", "Linux\r\n\x1b[0m\x00bye"},
		{"the escape key", "ls\n\x1dnever sent", "ls\n", "file\r\n"},
		{"the escape key first", "\x1d", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			heard := make(chan string, 1)
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v1/projects/shop/compute/instances/i-000000001/console/stream" || r.Header.Get("Upgrade") != api.ConsoleProtocol {
					http.Error(w, `{"code":"NOT_FOUND","message":"no"}`, http.StatusNotFound)
					return
				}
				conn, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", api.ConsoleProtocol)
				b := make([]byte, len(tt.guest))
				if _, err := io.ReadFull(rw, b); err != nil {
					t.Error(err)
				}
				_, _ = io.WriteString(conn, tt.says)
				if strings.Contains(tt.typed, "\x1d") { // the caller ends it
					rest, _ := io.ReadAll(rw)
					b = append(b, rest...)
				}
				heard <- string(b)
			}))
			defer web.Close()
			var stdout, stderr bytes.Buffer
			a := &app{stdin: strings.NewReader(tt.typed), stdout: &stdout, stderr: &stderr, now: time.Now, after: time.After,
				getenv: func(k string) string {
					return map[string]string{"OUTCROP_URL": web.URL, "OUTCROP_TOKEN": "secret", "XDG_CONFIG_HOME": t.TempDir()}[k]
				}}
			if code := a.run(t.Context(), []string{"instance", "console", "-i", "i-000000001", "--project", "shop"}); code != 0 {
				t.Fatalf("exit %d: %s", code, stderr.String())
			}
			if got := <-heard; got != tt.guest {
				t.Errorf("the guest heard %q, want %q", got, tt.guest)
			}
			if !strings.Contains(tt.typed, "\x1d") && stdout.String() != tt.says {
				t.Errorf("it said %q, want %q", stdout.String(), tt.says)
			}
			if !strings.Contains(stderr.String(), "Ctrl-] ends it") {
				t.Errorf("stderr %q", stderr.String())
			}
		})
	}
}
