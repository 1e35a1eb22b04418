package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// seed is the content of a cidata disk: the regular files of its root directory.
type seed map[string][]byte

func (s seed) names() []string { return slices.Sorted(maps.Keys(s)) }

// readSeed reads the regular files of fsys's root; a seed has no sub-directories that count.
func readSeed(fsys fs.FS) (seed, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, err
	}
	s := seed{}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if s[e.Name()], err = fs.ReadFile(fsys, e.Name()); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// readSeedDisk mounts the disk for as long as it takes to read it.
func readSeedDisk(device string) (seed, error) {
	const dir = "/run/cidata"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount(device, dir, "iso9660", unix.MS_RDONLY, ""); err != nil {
		return nil, fmt.Errorf("mount %s as iso9660: %w", device, err)
	}
	s, err := readSeed(os.DirFS(dir))
	return s, errors.Join(err, unix.Unmount(dir, 0))
}

// findSeed looks for the disk whose ISO 9660 volume is labelled cidata, until one is there or wait is over.
func findSeed(sys fs.FS, wait time.Duration) (device string, ok bool) {
	for end := time.Now().Add(wait); ; time.Sleep(100 * time.Millisecond) {
		for _, d := range disks(sys) {
			if strings.EqualFold(isoLabel(d.read(isoDescriptor, isoSector)), "cidata") {
				return d.device(), true
			}
		}
		if time.Now().After(end) {
			return "", false
		}
	}
}

// The primary volume descriptor lies in the 16th sector (ECMA-119, 8.4).
const (
	isoSector     = 2048
	isoDescriptor = 16 * isoSector
)

// isoLabel is the volume identifier (ECMA-119, 8.4.7: bytes 41 to 72) of a primary volume descriptor, "" when b is none.
func isoLabel(b []byte) string {
	if len(b) < 72 || b[0] != 1 || string(b[1:6]) != "CD001" {
		return ""
	}
	return strings.TrimRight(string(b[40:72]), " \x00")
}

// metaData reads the top-level text values of a NoCloud meta-data file: JSON, or the plain "key: value" lines of YAML.
func metaData(b []byte) map[string]string {
	m := map[string]string{}
	if doc := map[string]any{}; json.Unmarshal(b, &doc) == nil {
		for k, v := range doc {
			if s, ok := v.(string); ok {
				m[k] = s
			}
		}
		return m
	}
	for line := range strings.Lines(string(b)) {
		key, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		if ok && key != "" && !strings.HasPrefix(key, "#") && !strings.HasPrefix(key, " ") {
			m[strings.Trim(key, `"'`)] = strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return m
}

// isScript tells user-data that is to be run from user-data that is only to be held.
func isScript(userData []byte) bool { return bytes.HasPrefix(userData, []byte("#!")) }
