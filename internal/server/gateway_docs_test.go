package server_test

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// TestDocumentedScript runs the shell script of docs/runners.md, which signs with
// OpenSSL alone, and the curl example beside it.
//
// contract: R-01 R-07 R-21 R-22
func TestDocumentedScript(t *testing.T) {
	for _, tool := range []string{"openssl", "jq", "curl", "sh"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("OUTCROP_REQUIRE_REAL") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	page, err := os.ReadFile("../../docs/runners.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	e := newGateway(t, store.Options{Dir: dir}, dir, nil, nil) // the script has the real clock
	app := e.newApp("docs")
	text := strings.ReplaceAll(string(page), "http://localhost:9418", e.url)

	k := e.newRunner(app, "builder-02")
	der, err := x509.MarshalPKCS8PrivateKey(k.signer)
	if err != nil {
		t.Fatal(err)
	}
	made, _ := json.Marshal(map[string]string{"id": k.id, "plaintext_key": k.secret, "app_id": app})
	_, script, _ := strings.Cut(text, "```sh\n")
	script, _, _ = strings.Cut(script, "```")
	for name, content := range map[string]string{"host.key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "runner.json": string(made), "beat.sh": script} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) api.HeartbeatHost {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		plain := e.newKey(app, "hosts.ingest")
		cmd.Env = append(os.Environ(), "KEY="+plain.secret, "APP="+app)
		out, err := cmd.CombinedOutput()
		var answer api.Data[api.HeartbeatHost]
		if jerr := json.Unmarshal(out, &answer); err != nil || jerr != nil {
			t.Fatalf("%v %v: %s", err, jerr, out)
		}
		return answer.Data
	}
	for range 2 { // each attempt has a nonce of its own
		if h := run("./beat.sh", `{"host":"builder-02","cliVersion":"0.9.1","runnerProtocol":1,"pollSeconds":30,"slotsUsed":0,"slotsTotal":2}`); h.Status != "ok" || h.Host != "builder-02" {
			t.Errorf("the signed heartbeat: %+v", h)
		}
	}
	_, example, _ := strings.Cut(text, "```console\n$ curl ")
	example, _, _ = strings.Cut(example, "\n{")
	if h := run("sh", "-c", "curl "+example); h.Status != "ok" || h.Host != "builder-01" || h.LastSuccessAt == nil {
		t.Errorf("the example: %+v", h)
	}
}
