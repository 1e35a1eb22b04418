package httpsig

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// foreignJob is what testdata/foreign/foreign.mjs reads.
type foreignJob struct {
	Do         string         `json:"do"`
	PrivateKey string         `json:"privateKey,omitempty"`
	PublicKey  string         `json:"publicKey,omitempty"`
	KeyID      string         `json:"keyid"`
	Label      string         `json:"label"`
	Nonce      string         `json:"nonce"`
	Created    int64          `json:"created"`
	Fields     []string       `json:"fields"`
	Params     []string       `json:"params"`
	Request    foreignRequest `json:"request"`
}

type foreignRequest struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

func newForeignJob(t *testing.T, do, target string) foreignJob {
	private, err := x509.MarshalPKCS8PrivateKey(testKey)
	if err != nil {
		t.Fatal(err)
	}
	return foreignJob{
		Do:         do,
		PrivateKey: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		PublicKey:  string(publicPEM(t)),
		KeyID:      "key-1",
		Label:      "runner",
		Nonce:      "a nonce",
		Created:    time.Now().Unix(),
		Fields:     []string{"@method", "@path", "@query", "content-digest"},
		Params:     []string{"created", "nonce", "keyid", "alg"},
		Request: foreignRequest{
			Method:  "POST",
			URL:     "https://gateway.example" + target,
			Headers: map[string]string{headerDigest: ContentDigest(SHA256, []byte(heartbeatBody))},
		},
	}
}

func publicPEM(t *testing.T) []byte {
	der, err := x509.MarshalPKIXPublicKey(testPub)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// runForeign runs one job in node and decodes the answer into out.
func runForeign(t *testing.T, job foreignJob, out any) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err == nil {
		_, err = os.Stat("testdata/foreign/node_modules/http-message-signatures")
	}
	if err != nil {
		if os.Getenv("OUTCROP_REQUIRE_REAL") != "" {
			t.Fatalf("node and its packages are needed: %v; run npm ci in testdata/foreign", err)
		}
		t.Skipf("node and its packages are needed: %v; run npm ci in testdata/foreign", err)
	}
	in, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node, "foreign.mjs")
	cmd.Dir = "testdata/foreign"
	cmd.Stdin = bytes.NewReader(in)
	cmd.Stderr = os.Stderr
	answer, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		t.Fatalf("%v in %s", err, answer)
	}
}

var foreignTargets = []string{"/v1/hosts/heartbeat", "/a%2Fb/%7Ec?x=%2F+y&z"}

// The npm package http-message-signatures signs, we verify.
//
// contract: R-21
func TestForeignSigns(t *testing.T) {
	for _, target := range foreignTargets {
		job := newForeignJob(t, "sign", target)
		var answer foreignRequest
		runForeign(t, job, &answer)
		m := &Message{Method: "POST", RawTarget: target, Header: map[string][]string{}}
		for name, value := range answer.Headers {
			m.Header[name] = []string{value}
		}
		got, err := testPolicy(time.Unix(job.Created, 0)).Verify(m, []byte(heartbeatBody), oneKey)
		if err != nil || got.Nonce != job.Nonce {
			t.Errorf("%s: got %+v, %v for %q", target, got, err, m.Header)
		}
	}
}

// We sign, the npm package http-message-signatures verifies, and refuses when
// the path is another.
func TestForeignVerifies(t *testing.T) {
	for _, target := range foreignTargets {
		job := newForeignJob(t, "verify", target)
		m := &Message{Method: "POST", RawTarget: target}
		s := &Signer{Profile: Runner, Key: testKey, KeyID: job.KeyID, Now: clock(time.Unix(job.Created, 0))}
		if err := s.Sign(m, []byte(heartbeatBody)); err != nil {
			t.Fatal(err)
		}
		for name, lines := range m.Header {
			job.Request.Headers[name] = lines[0]
		}
		var answer struct{ Verified bool }
		if runForeign(t, job, &answer); !answer.Verified {
			t.Errorf("%s: it does not verify there: %q", target, m.Header)
		}
		job.Request.URL += "x"
		if runForeign(t, job, &answer); answer.Verified {
			t.Errorf("%s: another request verifies there", target)
		}
	}
}

// openssl verifies our signature over the base, by hand as an operator would.
func TestOpenSSLVerifies(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	m := heartbeat()
	m.Header[headerDigest] = []string{ContentDigest(SHA256, []byte(heartbeatBody))}
	in := Input{Components: Runner.Components, Created: testNow.Unix(), Nonce: "n-1", KeyID: "key-1", Alg: "ed25519"}
	base, err := in.AppendBase(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := in.Sign(m, testKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pub, sigFile := write("pub.pem", publicPEM(t)), write("sig", sig)
	verify := func(base []byte) error {
		return exec.Command(openssl, "pkeyutl", "-verify", "-pubin", "-inkey", pub, "-rawin",
			"-in", write("base", base), "-sigfile", sigFile).Run()
	}
	if err := verify(base); err != nil {
		t.Errorf("openssl refuses our signature: %v", err)
	}
	if err := verify(append(base, '\n')); err == nil {
		t.Error("openssl takes the signature for another base")
	}
	if !ed25519.Verify(testPub, base, sig) {
		t.Error("we refuse our own signature")
	}
}
