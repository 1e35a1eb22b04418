package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/server"
)

// ask asks the server at the address who the token stands for.
func ask(t *testing.T, url, token string) error {
	t.Helper()
	c, err := api.NewClient(url, token, "test")
	if err != nil {
		t.Fatal(err)
	}
	return c.Do(t.Context(), http.MethodGet, "/v1/whoami", nil, nil)
}

// A server with a CA of its own puts the CA's fingerprint into its tokens, and
// whoever has one talks to that server only.
func TestTokenPinsTheServer(t *testing.T) {
	s := apptest.Start(t, apptest.Options{TLS: true})
	other := apptest.Start(t, apptest.Options{TLS: true})
	token := s.Token(api.CreateToken{Role: "operator"})
	secret, fingerprint := api.SplitToken(token)
	if len(fingerprint) != 64 {
		t.Fatalf("the token carries the fingerprint %q", fingerprint)
	}
	if err := ask(t, s.URL, token); err != nil {
		t.Error(err)
	}
	_, wrong := api.SplitToken(other.Token(api.CreateToken{Role: "operator"}))
	for name, token := range map[string]string{"another server's fingerprint": secret + "." + wrong, "none": secret, "half of one": secret + "." + fingerprint[:32], "upper case": secret + "." + "A" + fingerprint[1:]} {
		if err := ask(t, s.URL, token); err == nil {
			t.Errorf("%s: the server was trusted", name)
		}
	}
	if err := ask(t, "http"+s.URL[len("https"):], token); err == nil {
		t.Error("plain HTTP was answered")
	}
	s.Restart() // a new certificate of the same CA
	if err := ask(t, s.URL, token); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// forger has the CA's certificate, as everybody may, but not its key.
type forger struct {
	key *ecdsa.PrivateKey
	ca  *x509.Certificate
}

func (f forger) sign(t *testing.T, change func(*x509.Certificate), parent *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	change(c)
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &f.key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// Showing the right CA's certificate is not enough.
func TestForgedChains(t *testing.T) {
	dir := t.TempDir()
	own, err := server.LoadOrMakeCA(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pemBytes, err := os.ReadFile(server.CAFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pemBytes)
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := forger{key, ca}
	plain := func(*x509.Certificate) {}
	asCA := func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }
	named := func(c *x509.Certificate) { c.Subject, c.IsCA, c.BasicConstraintsValid = ca.Subject, true, true }
	namedCA := f.sign(t, named, nil, key)
	parsed, err := x509.ParseCertificate(namedCA)
	if err != nil {
		t.Fatal(err)
	}
	good, err := own.Certificate([]string{"127.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := own.Certificate([]string{"192.0.2.1", "elsewhere.example"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	old, err := own.Certificate([]string{"127.0.0.1"}, time.Now().Add(-3*365*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	early, err := own.Certificate([]string{"127.0.0.1"}, time.Now().Add(48*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	mine := func(chain ...[]byte) *tls.Certificate { return &tls.Certificate{Certificate: chain, PrivateKey: key} }
	for name, c := range map[string]struct {
		cert *tls.Certificate
		ok   bool
	}{
		"the server's own": {good, true}, "for another address": {elsewhere, false}, "run out": {old, false}, "not valid yet": {early, false},
		"self-signed": {mine(f.sign(t, plain, nil, key)), false}, "self-signed, with the CA behind it": {mine(f.sign(t, plain, nil, key), ca.Raw), false},
		"a CA of the same name": {mine(f.sign(t, plain, parsed, key), namedCA), false}, "and the right one behind it": {mine(f.sign(t, plain, parsed, key), namedCA, ca.Raw), false},
		"the right one between": {mine(f.sign(t, plain, parsed, key), ca.Raw, namedCA), false}, "a self-signed CA": {mine(f.sign(t, asCA, nil, key)), false},
	} {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{*c.cert}}
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.StartTLS()
		err := ask(t, srv.URL, "oct_secret."+own.Fingerprint())
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		srv.Close()
	}
}

// The CA is made once and read again; half of one is not taken for none.
func TestOwnCAStays(t *testing.T) {
	dir := t.TempDir()
	if fp, err := server.CAFingerprint(dir); err != nil || fp != "" {
		t.Errorf("without a CA: %q, %v", fp, err)
	}
	first, err := server.LoadOrMakeCA(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	again, err := server.LoadOrMakeCA(dir, time.Now())
	if err != nil || again.Fingerprint() != first.Fingerprint() {
		t.Errorf("another CA: %v", err)
	}
	if fp, err := server.CAFingerprint(dir); err != nil || fp != first.Fingerprint() {
		t.Errorf("%q, %v", fp, err)
	}
	key := filepath.Join(dir, "tls", "ca.key")
	if st, err := os.Stat(key); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode is %v, %v", st.Mode(), err)
	}
	if err := os.WriteFile(key, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.LoadOrMakeCA(dir, time.Now()); err == nil {
		t.Error("a broken key was taken")
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := server.LoadOrMakeCA(dir, time.Now()); err == nil {
		t.Error("a new CA was made over the old one: every token would point to a CA that is gone")
	}
}
