package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// contract: U-19
func TestUpgrade(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/refused":
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"code":"INVALID_STATE","message":"it is stopped; start it"}`)
			return
		case "/plain":
			fmt.Fprint(w, "no upgrade here")
			return
		}
		if r.Proto != "HTTP/1.1" || r.Header.Get("Upgrade") != ConsoleProtocol || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s %v", r.Proto, r.Header)
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", ConsoleProtocol)
		line, _ := rw.ReadString('\n')
		fmt.Fprint(conn, strings.ToUpper(line))
	}))
	defer web.Close()
	c, err := NewClient(web.URL, "secret", "test")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.Upgrade(t.Context(), http.MethodPost, "/up", ConsoleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "both ways\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); err != nil || string(b) != "BOTH WAYS\n" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := c.Upgrade(t.Context(), http.MethodPost, "/refused", ConsoleProtocol); !fault.HasCode(err, "INVALID_STATE") {
		t.Errorf("refused: %v", err)
	}
	if _, err := c.Upgrade(t.Context(), http.MethodPost, "/plain", ConsoleProtocol); err == nil || !strings.Contains(err.Error(), "proxy") {
		t.Errorf("no upgrade: %v", err)
	}
}
