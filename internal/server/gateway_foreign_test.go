package server_test

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/httpsig"
)

// The npm package http-message-signatures signs a heartbeat, the gateway takes
// it, and takes it once.
//
// contract: R-21 R-22 R-24
func TestForeignClientHeartbeat(t *testing.T) {
	e := sqliteGateway(t, nil)
	k := e.newRunner(e.newApp("factory"), "builder-1", "hosts.ingest")
	body := []byte(`{"host":"builder-1","cliVersion":"2.0.0","runnerProtocol":1,"pollSeconds":30,"slotsUsed":0,"slotsTotal":2}`)
	signed := signForeign(t, map[string]any{
		"do": "sign", "privateKey": privatePEM(t, k), "keyid": k.id, "label": "runner", "nonce": "npm-1", "created": e.clock.now().Unix(),
		"fields": []string{"@method", "@path", "@query", "content-digest"}, "params": []string{"created", "nonce", "keyid", "alg"},
		"request": map[string]any{"method": "POST", "url": e.url + "/v1/hosts/heartbeat",
			"headers": map[string]string{"Content-Digest": httpsig.ContentDigest(httpsig.SHA256, body)}},
	})
	for n, want := range []int{http.StatusOK, http.StatusUnauthorized} { // the second is a replay
		r, err := http.NewRequestWithContext(t.Context(), "POST", e.url+"/v1/hosts/heartbeat", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+k.secret)
		r.Header.Set("X-Outerlayer-App-Id", k.app)
		r.Header.Set("Content-Type", "application/json")
		for name, value := range signed {
			r.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Data  struct{ Host, Status string }
			Error struct{ Code string }
		}
		err = json.NewDecoder(resp.Body).Decode(&answer)
		resp.Body.Close()
		if err != nil || resp.StatusCode != want {
			t.Fatalf("request %d: %d, %+v, %v; want %d", n, resp.StatusCode, answer, err, want)
		}
		if n == 0 && (answer.Data.Host != "builder-1" || answer.Data.Status != "ok") || n == 1 && answer.Error.Code != "runner_key_signature_replayed" {
			t.Errorf("request %d: %+v", n, answer)
		}
	}
}

func privatePEM(t *testing.T, k key) string {
	der, err := x509.MarshalPKCS8PrivateKey(k.signer)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// signForeign runs the signer that httpsig's own tests use and returns the
// headers that it made.
func signForeign(t *testing.T, job map[string]any) map[string]string {
	t.Helper()
	dir := filepath.Join("..", "httpsig", "testdata", "foreign")
	node, err := exec.LookPath("node")
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, "node_modules", "http-message-signatures"))
	}
	if err != nil {
		if os.Getenv("OUTCROP_REQUIRE_REAL") != "" {
			t.Fatalf("node and its packages are needed: %v; run npm ci in %s", err, dir)
		}
		t.Skipf("node and its packages are needed: %v; run npm ci in %s", err, dir)
	}
	in, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node, "foreign.mjs")
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Headers map[string]string }
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	headers := map[string]string{}
	for name, value := range answer.Headers {
		if strings.HasPrefix(strings.ToLower(name), "signature") || strings.EqualFold(name, "content-digest") {
			headers[name] = value
		}
	}
	return headers
}
