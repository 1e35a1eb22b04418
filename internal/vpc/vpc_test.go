package vpc

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestReserved(t *testing.T) {
	for _, c := range []struct{ cidr, gateway, dns, broadcast string }{
		{"172.31.0.0/16", "172.31.0.1", "172.31.0.2", "172.31.255.255"},
		{"10.0.1.16/28", "10.0.1.17", "10.0.1.18", "10.0.1.31"},
	} {
		p := prefix(c.cidr)
		if Gateway(p) != addr(c.gateway) || DNS(p) != addr(c.dns) || Broadcast(p) != addr(c.broadcast) {
			t.Errorf("%s: gateway %s, dns %s, broadcast %s", p, Gateway(p), DNS(p), Broadcast(p))
		}
		for _, a := range []netip.Addr{p.Addr(), Gateway(p), DNS(p), Broadcast(p), Broadcast(p).Next(), p.Addr().Prev()} {
			if Usable(p, a) {
				t.Errorf("%s: %s is usable", p, a)
			}
		}
	}
}

func TestCheckCIDR(t *testing.T) {
	for cidr, want := range map[string]string{
		"172.31.0.0/16":  "",
		"10.1.2.0/24":    "",
		"100.64.0.0/16":  "",
		"192.168.0.0/28": "",
		"192.168.0.0/29": "use /16 to /28",
		"10.0.0.0/8":     "use /16 to /28",
		"172.31.0.1/16":  "did you mean 172.31.0.0/16?",
		"8.8.0.0/16":     "not private",
		"fd00::/64":      "IPv4",
	} {
		err := CheckCIDR(prefix(cidr))
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !errors.Is(err, ErrInvalidCIDR)) {
			t.Errorf("%s: %v, want %q", cidr, err, want)
		}
	}
	if CheckCIDR(netip.Prefix{}) == nil {
		t.Error("the zero range is accepted")
	}
}

func TestNext(t *testing.T) {
	p := prefix("10.0.0.0/28")
	set := func(list ...string) func(netip.Addr) bool {
		return func(a netip.Addr) bool {
			for _, s := range list {
				if a == addr(s) {
					return true
				}
			}
			return false
		}
	}
	for _, c := range []struct {
		name, last, want string
		used             func(netip.Addr) bool
	}{
		{"first", "", "10.0.0.3", set()},
		{"after the last", "10.0.0.7", "10.0.0.8", set("10.0.0.7")},
		{"a freed one is not reused at once", "10.0.0.7", "10.0.0.8", set()},
		{"skips used", "10.0.0.3", "10.0.0.6", set("10.0.0.3", "10.0.0.4", "10.0.0.5")},
		{"wraps", "10.0.0.14", "10.0.0.3", set("10.0.0.14")},
		{"a foreign last starts anew", "192.168.0.9", "10.0.0.3", set()},
		{"full", "10.0.0.9", "", func(netip.Addr) bool { return true }},
	} {
		var last netip.Addr
		if c.last != "" {
			last = addr(c.last)
		}
		got, err := Next(p, last, c.used)
		if c.want == "" {
			if !errors.Is(err, ErrExhausted) {
				t.Errorf("%s: %v, %v", c.name, got, err)
			}
		} else if err != nil || got != addr(c.want) {
			t.Errorf("%s: %v, %v, want %s", c.name, got, err, c.want)
		}
	}
}

// Random allocations and releases against a map: never a double, never a reserved one, exhausted exactly when full.
// lesson 30
func TestNextProperty(t *testing.T) {
	p := prefix("10.9.8.0/27")
	rapid.Check(t, func(t *rapid.T) {
		used := map[netip.Addr]bool{}
		var last netip.Addr
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "release") {
				for a := range used {
					delete(used, a)
					break
				}
				continue
			}
			a, err := Next(p, last, func(a netip.Addr) bool { return used[a] })
			if full := len(used) == Capacity(p); full != errors.Is(err, ErrExhausted) {
				t.Fatalf("full is %v, error %v", full, err)
			}
			if err != nil {
				continue
			}
			if used[a] || !Usable(p, a) {
				t.Fatalf("%s is used or reserved", a)
			}
			used[a], last = true, a
		}
	})
}

// lesson 29
func TestQuarantine(t *testing.T) {
	released := time.Unix(1000, 0)
	if !Quarantined(released, released.Add(LeaseTime-1)) || Quarantined(released, released.Add(LeaseTime)) {
		t.Error("an address is kept for one lease time exactly")
	}
}

// lesson 25
func TestMAC(t *testing.T) {
	a, b, c := MACOf("eni-aaaaaaaaaa", 0), MACOf("eni-aaaaaaaaaa", 1), MACOf("eni-aaaaaaaaab", 0)
	if a == b || a == c || a != MACOf("eni-aaaaaaaaaa", 0) {
		t.Errorf("derived: %s %s %s", a, b, c)
	}
	if a[0] != 2 || a.String() != strings.ToLower(a.String()) {
		t.Errorf("%s is not a locally administered unicast address in lower case", a)
	}
	for _, bad := range []string{"", "02:00:00:00:00", "01:00:5e:00:00:01", "02:00:00:00:00:00:00:01", "x"} {
		if _, err := ParseMAC(bad); err == nil {
			t.Errorf("%q parses", bad)
		}
	}
	var m MAC
	if err := m.UnmarshalText([]byte("02-AB-00-00-00-01")); err != nil || m.String() != "02:ab:00:00:00:01" {
		t.Errorf("%s, %v", m, err)
	}
	text, _ := m.MarshalText()
	if string(text) != m.String() {
		t.Errorf("text is %s", text)
	}
}
