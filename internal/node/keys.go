package node

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// identityBits is the size of the key that signs instance identity documents.
const identityBits = 2048

// keep reads a file of secrets, and makes it where it is not there.
func keep(path string, make func() ([]byte, error)) ([]byte, error) {
	b, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	if b, err = make(); err != nil {
		return nil, err
	}
	return b, writeFile(path, b)
}

// tokenKey is the key of the guests' session tokens, which outlive the agent.
func (l layout) tokenKey() ([]byte, error) {
	b, err := keep(l.file(fileTokenKey), func() ([]byte, error) {
		b := make([]byte, 32)
		rand.Read(b)
		return b, nil
	})
	if err != nil {
		return nil, fmt.Errorf("key of the metadata service's tokens: %w", err)
	}
	return b, nil
}

// identityKey signs this node's instance identity documents.
func (l layout) identityKey() (crypto.Signer, error) {
	b, err := keep(l.file(fileIdentityKey), func() ([]byte, error) {
		key, err := rsa.GenerateKey(rand.Reader, identityBits)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
	})
	if err == nil {
		block, _ := pem.Decode(b)
		if block == nil {
			return nil, fmt.Errorf("%s holds no key in PEM; remove it, and a new one is made", l.file(fileIdentityKey))
		}
		var key any
		if key, err = x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if s, ok := key.(crypto.Signer); ok {
				return s, nil
			}
			err = errors.New("it cannot sign")
		}
	}
	return nil, fmt.Errorf("key of instance identity documents: %w", err)
}
