package main

import (
	"maps"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestReadSeed(t *testing.T) {
	binary := []byte("\x1f\x8b\x00 not text \x00\r\n")
	s, err := readSeed(fstest.MapFS{
		"user-data":      {Data: binary},
		"meta-data":      {Data: []byte("instance-id: i-1\n")},
		"vendor-data":    {},
		"network-config": {Data: []byte("version: 2\n")},
		"extra/file":     {Data: []byte("not looked at")},
		"link":           {Mode: os.ModeSymlink, Data: []byte("user-data")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(s.names(), ","), "meta-data,network-config,user-data,vendor-data"; got != want {
		t.Errorf("files = %s, want %s", got, want)
	}
	if string(s["user-data"]) != string(binary) {
		t.Errorf("user-data = %q, want %q", s["user-data"], binary)
	}
}

func TestISOLabel(t *testing.T) {
	descriptor := func(kind byte, magic, label string) []byte {
		b := make([]byte, isoSector)
		b[0] = kind
		copy(b[1:], magic)
		copy(b[40:72], label+strings.Repeat(" ", 32))
		return b
	}
	for _, c := range []struct {
		name string
		in   []byte
		want string
	}{
		{"padded with spaces", descriptor(1, "CD001", "cidata"), "cidata"},
		{"padded with NULs", descriptor(1, "CD001", "cidata\x00"), "cidata"},
		{"all 32 characters", descriptor(1, "CD001", strings.Repeat("L", 32)), strings.Repeat("L", 32)},
		{"supplementary descriptor", descriptor(2, "CD001", "cidata"), ""},
		{"no ISO 9660", descriptor(1, "XX001", "cidata"), ""},
		{"disk too short to read", nil, ""},
	} {
		if got := isoLabel(c.in); got != c.want {
			t.Errorf("%s: isoLabel = %q, want %q", c.name, got, c.want)
		}
	}
}

func TestMetaData(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     map[string]string
	}{
		{"empty", "", map[string]string{}},
		{"plain", "instance-id: i-1\nlocal-hostname: web-1\n", map[string]string{"instance-id": "i-1", "local-hostname": "web-1"}},
		{"quoted, CRLF", "'instance-id': \"i-1\"\r\nlocal-hostname: 'web'\r\n", map[string]string{"instance-id": "i-1", "local-hostname": "web"}},
		{"comment and nested", "# instance-id: no\nnetwork:\n  instance-id: no\ninstance-id: i-1", map[string]string{"network": "", "instance-id": "i-1"}},
		{"value with colon", "a: b:c\n", map[string]string{"a": "b:c"}},
		{"JSON", `{"instance-id":"i-1","n":3,"keys":{"a":"b"}}`, map[string]string{"instance-id": "i-1"}},
	} {
		if got := metaData([]byte(c.in)); !maps.Equal(got, c.want) {
			t.Errorf("%s: metaData = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestIsScript(t *testing.T) {
	for in, want := range map[string]bool{"#!/bin/sh\n": true, "#cloud-config\n": false, "": false, "\x00#!": false} {
		if got := isScript([]byte(in)); got != want {
			t.Errorf("isScript(%q) = %v", in, got)
		}
	}
}

func FuzzISOLabel(f *testing.F) {
	f.Add([]byte("\x01CD001"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if label := isoLabel(b); len(label) > 32 {
			t.Errorf("a label of %d bytes", len(label))
		}
	})
}

func FuzzMetaData(f *testing.F) {
	f.Add([]byte("instance-id: i-1\n"))
	f.Add([]byte(`{"instance-id":"i-1"}`))
	f.Fuzz(func(t *testing.T, b []byte) { metaData(b) })
}
