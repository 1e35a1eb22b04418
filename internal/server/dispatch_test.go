package server

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// What no route takes is answered in the envelope of its area.
// contract: E-01
func TestUnrouted(t *testing.T) {
	h, _ := heartbeatServer(t, 0)
	for _, c := range []struct {
		method, path string
		status       int
		allow, body  string
	}{
		{"GET", "/nowhere", 404, "", `{"code":"NOT_FOUND","message":"there is no /nowhere in this API`},
		{"GET", "/v1/hosts/a/b/c", 404, "", `{"error":{"code":"not_found"`},
		{"PUT", "/v1/compute/nodes", 405, "GET, HEAD", `{"code":"METHOD_NOT_ALLOWED","message":"PUT is not for /v1/compute/nodes; it takes GET, HEAD"}`},
		{"GET", "/v1//whoami", 307, "", ""},
		{"GET", "/healthz", 200, "", "ok\n"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		if w.Code != c.status || w.Header().Get("Allow") != c.allow || !strings.HasPrefix(w.Body.String(), c.body) || w.Header().Get("X-Request-Id") == "" {
			t.Errorf("%s %s: %d, Allow %q, %s", c.method, c.path, w.Code, w.Header().Get("Allow"), w.Body)
		}
		if c.status >= 400 && w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: content type %q", c.method, c.path, w.Header().Get("Content-Type"))
		}
	}
}
