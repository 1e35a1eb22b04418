package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Lives of the certificates of a server that is its own CA. The server's own one
// is made anew at every start.
const (
	caLife   = 20 * 365 * 24 * time.Hour
	leafLife = 397 * 24 * time.Hour
)

// OwnCA is a CA that a server made for itself. New tokens carry its fingerprint,
// so that whoever holds a token knows the server.
type OwnCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// CAFile is where the certificate of the server's own CA stands in its data folder.
func CAFile(dir string) string { return filepath.Join(dir, "tls", "ca.pem") }

// LoadOrMakeCA reads the CA in dir, or makes one.
func LoadOrMakeCA(dir string, now time.Time) (*OwnCA, error) {
	ca, err := loadCA(dir)
	if errors.Is(err, os.ErrNotExist) {
		return makeCA(dir, now)
	}
	return ca, err
}

// CAFingerprint is the hex sha256 of the DER of the CA's certificate in dir, or
// empty where there is none.
func CAFingerprint(dir string) (string, error) {
	ca, err := loadCA(dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return ca.Fingerprint(), nil
}

func loadCA(dir string) (*OwnCA, error) {
	certPEM, err := os.ReadFile(CAFile(dir))
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(filepath.Join(dir, "tls", "ca.key"))
	if err != nil { // not to be taken for no CA: a new one would void every token
		return nil, fmt.Errorf("the CA's certificate is there, its key is not (%v); restore %s from the backup", err, filepath.Join(dir, "tls"))
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("the CA in %s: %w; restore both files from the backup", filepath.Join(dir, "tls"), err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the key in %s is not the one that this program made", filepath.Join(dir, "tls"))
	}
	return &OwnCA{cert: pair.Leaf, key: key}, nil
}

func makeCA(dir string, now time.Time) (*OwnCA, error) {
	if err := os.MkdirAll(filepath.Join(dir, "tls"), 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Outcrop CA"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	// The key first: a certificate without its key would look like a CA.
	if err := os.WriteFile(filepath.Join(dir, "tls", "ca.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(CAFile(dir), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return nil, err
	}
	return loadCA(dir)
}

func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	b[0] &= 0x7f // positive
	return new(big.Int).SetBytes(b)
}

// Fingerprint is the hex sha256 of the DER of the CA's certificate.
func (ca *OwnCA) Fingerprint() string {
	sum := sha256.Sum256(ca.cert.Raw)
	return hex.EncodeToString(sum[:])
}

// Certificate makes the server's certificate for the names and addresses, with
// the CA's own behind it.
func (ca *OwnCA) Certificate(names []string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Outcrop server"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, ca.cert.Raw}, PrivateKey: key}, nil
}

// LocalNames are the names and addresses by which this machine may be called.
func LocalNames(more ...string) []string {
	names := append([]string{"localhost", "127.0.0.1", "::1"}, more...)
	if h, err := os.Hostname(); err == nil {
		names = append(names, h)
	}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() {
			names = append(names, ip.IP.String())
		}
	}
	return names
}
