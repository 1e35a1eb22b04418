package runner

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Files of the data folder. All are their owner's only.
const (
	fileHostKey  = "host.key"    // ed25519, PKCS #8 in PEM; never leaves the host
	fileSecret   = "runner.key"  // the gateway's API key
	fileIdentity = "runner.json" // Identity
	fileVersion  = "version"     // that the server last heard of
	fileReserve  = "reserve"
	fileLog      = "runner.log"
	fileLock     = "lock"
	dirWork      = "work"
)

// Identity is who a host is to its gateway.
type Identity struct {
	Server        string `json:"server"`
	CAFingerprint string `json:"caFingerprint,omitempty"` // hex sha256 of the server's own CA; empty: the system's CAs
	AppID         string `json:"appId"`
	Host          string `json:"host"`
	KeyID         string `json:"keyId"`     // of the runner key, and the keyid of signatures
	MachineID     string `json:"machineId"` // of the machine that enrolled
}

// HostKey reads the host's key from the data folder, or makes it. The second
// result is the public key as the gateway takes it: base64 of the raw 32 bytes.
func HostKey(dir string) (ed25519.PrivateKey, string, error) {
	key, err := readHostKey(dir)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = makeHostKey(dir)
	}
	if err != nil {
		return nil, "", err
	}
	return key, base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey)), nil
}

func readHostKey(dir string) (ed25519.PrivateKey, error) {
	path := filepath.Join(dir, fileHostKey)
	b, err := readOwn(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s is no key in PEM; remove it and enrol the host again", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s is no ed25519 key; remove it and enrol the host again", path)
	}
	return key, nil
}

func makeHostKey(dir string) (ed25519.PrivateKey, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writeOwn(filepath.Join(dir, fileHostKey), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// readOwn reads a file that nobody but its owner may read.
func readOwn(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode(); !mode.IsRegular() || mode.Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others may read %s (%v): take the right away with chmod 600, and enrol the host again if somebody may have seen it", path, mode)
	}
	b := make([]byte, 64<<10)
	n, err := f.Read(b)
	return b[:max(n, 0)], err
}

// writeOwn writes a file for its owner only, whole and on the disk, or not at all.
func writeOwn(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// errNotEnrolled says what to do in a folder without an identity.
var errNotEnrolled = errors.New("this host is not enrolled: run outcrop runner enroll with the same --data")

// load reads what enrolment left in the data folder.
func load(dir string) (id Identity, key ed25519.PrivateKey, secret string, err error) {
	b, err := readOwn(filepath.Join(dir, fileIdentity))
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil, "", errNotEnrolled
	}
	if err == nil {
		err = json.Unmarshal(b, &id)
	}
	if err != nil {
		return id, nil, "", fmt.Errorf("%s cannot be read (%w); enrol the host again", filepath.Join(dir, fileIdentity), err)
	}
	if here := machineID(); id.MachineID != "" && here != "" && here != id.MachineID {
		// Two machines with one key would take each other's work (lesson 7).
		return id, nil, "", fmt.Errorf("%s was enrolled on another machine, so this one is a copy of it: give it a folder of its own and enrol it under another name", dir)
	}
	if key, err = readHostKey(dir); err != nil {
		return id, nil, "", err
	}
	b, err = readOwn(filepath.Join(dir, fileSecret))
	if err != nil {
		return id, nil, "", err
	}
	return id, key, strings.TrimSpace(string(b)), nil
}

// machineID is what systemd or D-Bus call this machine; empty where neither does.
func machineID() string {
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if b, err := os.ReadFile(path); err == nil && len(strings.TrimSpace(string(b))) == 32 {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

// LoadIdentity reads who this host is from the data folder.
func LoadIdentity(dir string) (Identity, error) {
	id, _, _, err := load(dir)
	return id, err
}
