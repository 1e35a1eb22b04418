package cloudinit

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// metaData and networkConfig are what a guest decodes.
type metaData struct {
	InstanceID string   `yaml:"instance-id"`
	Hostname   string   `yaml:"local-hostname"`
	PublicKeys []string `yaml:"public-keys"`
}

type networkConfig struct {
	Version   int
	Ethernets map[string]struct {
		Match   struct{ MACAddress string }
		SetName string `yaml:"set-name"`
		DHCP4   bool
	}
}

// files returns the seed's files by name.
func files(t testing.TB, s Seed) map[string][]byte {
	t.Helper()
	list, err := s.Files()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, f := range list {
		out[f.Name] = f.Data
	}
	return out
}

func decode(t testing.TB, b []byte, into any) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatalf("%v in:\n%s", err, b)
	}
}

// lesson 24
func TestFilesAreAlwaysFour(t *testing.T) {
	got := files(t, Seed{InstanceID: "i-1"})
	want := map[string]string{
		"meta-data":      "instance-id: \"i-1\"\nlocal-hostname: \"i-1\"\npublic-keys: []\n",
		"network-config": "version: 2\nethernets: {}\n",
		"user-data":      "",
		"vendor-data":    "#cloud-config\n{}\n",
	}
	if len(got) != len(want) {
		t.Errorf("got %d files, want %d", len(got), len(want))
	}
	for name, data := range want {
		if b, ok := got[name]; !ok || string(b) != data {
			t.Errorf("%s = %q (there: %v), want %q", name, b, ok, data)
		}
	}
}

func TestMetaDataCannotBeInjected(t *testing.T) {
	for _, hostile := range []string{
		"web-1",
		"a\ninstance-id: other",
		`a" b`,
		`a\" b`,
		"'{[&*!|>%@`",
		"# not a comment",
		"yes", "null", "~", "1e3", "0o17", "2026-11-30", "---", "...", "<<",
		"tab\there", "nul\x00here", "del\x7f", "c1\u0085\u009f", "ls\u2028ps\u2029", "bom\ufeff", "\U0001F600", "\ufffd",
		" spaces kept ",
	} {
		var got metaData
		decode(t, files(t, Seed{InstanceID: hostile, Hostname: hostile})["meta-data"], &got)
		if got.InstanceID != hostile || got.Hostname != hostile {
			t.Errorf("%q arrives as %q and %q", hostile, got.InstanceID, got.Hostname)
		}
	}
}

func TestPublicKeys(t *testing.T) {
	var got metaData
	keys := []string{"ssh-ed25519 AAAA a@b\n", "  ", "", `command="x \"y\"" ssh-rsa BBBB # c`}
	decode(t, files(t, Seed{InstanceID: "i-1", PublicKeys: keys})["meta-data"], &got)
	if len(got.PublicKeys) != 2 || got.PublicKeys[0] != "ssh-ed25519 AAAA a@b" || got.PublicKeys[1] != keys[3] {
		t.Errorf("got keys %q", got.PublicKeys)
	}
}

// lesson 25
func TestNetworkConfig(t *testing.T) {
	s := Seed{InstanceID: "i-1", Interfaces: []Interface{
		{MAC: "52:54:00:AA:BB:CC", Name: "ens3"},
		{MAC: "5254.00aa.bbcd"},
	}}
	var got networkConfig
	decode(t, files(t, s)["network-config"], &got)
	first, second := got.Ethernets["nic0"], got.Ethernets["nic1"]
	if got.Version != 2 || len(got.Ethernets) != 2 {
		t.Fatalf("got %+v", got)
	}
	if first.Match.MACAddress != "52:54:00:aa:bb:cc" || first.SetName != "ens3" || !first.DHCP4 {
		t.Errorf("first NIC: %+v", first)
	}
	if second.Match.MACAddress != "52:54:00:aa:bb:cd" || second.SetName != "" || !second.DHCP4 {
		t.Errorf("second NIC: %+v", second)
	}
}

func TestSeedRefuses(t *testing.T) {
	nic := func(mac, name string) []Interface { return []Interface{{MAC: mac, Name: name}} }
	const mac = "52:54:00:00:00:01"
	for name, s := range map[string]Seed{
		"no instance id":       {Hostname: "a"},
		"instance id no UTF-8": {InstanceID: "\xff"},
		"host name no UTF-8":   {InstanceID: "i-1", Hostname: "\xff"},
		"two keys in one":      {InstanceID: "i-1", PublicKeys: []string{"ssh-rsa A\nssh-rsa B"}},
		"key with a NUL":       {InstanceID: "i-1", PublicKeys: []string{"ssh-rsa A\x00"}},
		"key no UTF-8":         {InstanceID: "i-1", PublicKeys: []string{"ssh-rsa \xff"}},
		"user-data too long":   {InstanceID: "i-1", UserData: make([]byte, MaxUserData+1)},
		"no MAC":               {InstanceID: "i-1", Interfaces: nic("", "ens3")},
		"no Ethernet address":  {InstanceID: "i-1", Interfaces: nic("02:00:5e:10:00:00:00:01", "ens3")},
		"name too long":        {InstanceID: "i-1", Interfaces: nic(mac, "sixteen-letters-")},
		"name is a path":       {InstanceID: "i-1", Interfaces: nic(mac, "../x")},
		"name is a directory":  {InstanceID: "i-1", Interfaces: nic(mac, "..")},
		"name with a line end": {InstanceID: "i-1", Interfaces: nic(mac, "e\n")},
		"address twice":        {InstanceID: "i-1", Interfaces: append(nic(mac, "a"), nic(mac, "b")...)},
		"name twice":           {InstanceID: "i-1", Interfaces: append(nic(mac, "a"), nic("52:54:00:00:00:02", "a")...)},
	} {
		if _, err := s.Files(); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if image, err := Image(s); err == nil || image != nil {
			t.Errorf("%s: an image was made", name)
		}
	}
}

func TestErrorsKeepSecrets(t *testing.T) {
	s := Seed{InstanceID: "i-1", PublicKeys: []string{"ssh-rsa SECRET\nssh-rsa B"}}
	if _, err := s.Files(); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("error %v", err)
	}
	s = Seed{InstanceID: "i-1", UserData: bytes.Repeat([]byte("SECRET"), MaxUserData)}
	if _, err := s.Files(); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("error %v", err)
	}
}

func FuzzSeed(f *testing.F) {
	f.Add("i-1", "web", "ssh-ed25519 AAAA a@b", []byte("#!/bin/sh\n"))
	f.Add("i\x7f", "a\"\\\n: b", "\u2028", []byte{0, 0xff, 0x1f, 0x8b})
	f.Fuzz(func(t *testing.T, id, host, key string, data []byte) {
		s := Seed{InstanceID: id, Hostname: host, PublicKeys: []string{key}, UserData: data}
		image, err := Image(s)
		if err != nil {
			if id != "" && utf8.ValidString(id) && utf8.ValidString(host) && utf8.ValidString(key) && !strings.ContainsFunc(key, unicode.IsControl) && len(data) <= MaxUserData {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		read := readImage(t, image)
		if !bytes.Equal(read["user-data"], data) {
			t.Fatalf("user-data of %d bytes arrives changed", len(data))
		}
		var got metaData
		decode(t, read["meta-data"], &got)
		if host == "" {
			host = id
		}
		if got.InstanceID != id || got.Hostname != host {
			t.Fatalf("%q and %q arrive as %q and %q", id, host, got.InstanceID, got.Hostname)
		}
		key = strings.TrimSpace(key)
		if key == "" && len(got.PublicKeys) != 0 || key != "" && (len(got.PublicKeys) != 1 || got.PublicKeys[0] != key) {
			t.Fatalf("key %q arrives as %q", key, got.PublicKeys)
		}
	})
}
