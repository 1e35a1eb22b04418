package e2e

import (
	"bytes"
	"compress/gzip"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// hostileBytes are n bytes of all that a text path would spoil: gzip, NUL, bytes
// that are no UTF-8, a byte order mark, line ends of both kinds, noise.
func hostileBytes(t *testing.T, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte("#!/bin/sh\necho never run\n")); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	b.WriteString("\xef\xbb\xbf\r\n\n\r\x00\x00\xff\xfe\xc3\x28\xed\xa0\x80\x1a\x1b[2J")
	noise := rand.NewChaCha8([32]byte{1})
	rest := make([]byte, n-b.Len())
	_, _ = noise.Read(rest)
	return append(b.Bytes(), rest...)
}

// User-data reaches the guest byte for byte, up to the limit and not beyond it.
// contract: U-01 U-02 U-03 U-04 lesson 23
func userDataBytes(t *testing.T, l *lab) {
	c := newCloud(t, l)
	c.startNode()
	full := hostileBytes(t, compute.MaxUserDataBytes)
	release := l.boot(t)
	id := c.create("bytes", full)
	c.says(id, 1, digest("user-data", full))
	c.checkSecret(id)

	_, err := c.putUserData(id, []byte("x"))
	refused(t, err, fault.InvalidState)
	c.stop(id, force)
	hash := c.reaches(id, compute.StateStopped).UserDataHash
	_, err = c.putUserData(id, nil)
	refused(t, err, fault.InvalidInput)
	_, err = c.putUserData(id, append(full, 0))
	refused(t, err, fault.UserDataTooLarge)
	if now := c.get(id).UserDataHash; now != hash || hash == "" {
		t.Errorf("after refusals the hash is %q, was %q", now, hash)
	}

	for n, b := range [][]byte{
		[]byte("#cloud-config\r\nruncmd:\r\n- [true]\r\n\x00no end of line"),
		{0},
		nil,
	} {
		if b == nil {
			c.call(http.MethodDelete, api.InstancePath(project, id, "user-data"), nil, nil)
		} else if _, err := c.putUserData(id, b); err != nil {
			t.Fatal(err)
		}
		c.start(id)
		c.says(id, n+2, digest("user-data", b))
		c.stop(id, force)
		c.reaches(id, compute.StateStopped)
	}
	release()
	c.end()
}

// checkSecret holds that no other user of the node can read an instance's files.
func (c *cloud) checkSecret(id string) {
	c.t.Helper()
	files, err := filepath.Glob(c.path("node/instances/" + id + "/*"))
	if err != nil || len(files) < 4 {
		c.t.Fatalf("files %v, %v", files, err)
	}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			c.t.Error(err)
		} else if info.Mode().Type()&fs.ModeSocket == 0 && info.Mode().Perm()&0o007 != 0 {
			c.t.Errorf("%s has mode %v", f, info.Mode())
		}
	}
}
