package main

import (
	"strings"
	"testing"
)

func TestFormatFact(t *testing.T) {
	for _, c := range []struct {
		subject string
		pairs   []any
		want    string
	}{
		{"ready", []any{"uptime", "2.31"}, "outcrop-micro: ready uptime=2.31"},
		{"no cidata", nil, "outcrop-micro: no cidata"},
		{"", []any{"instance-id", "i-1"}, "outcrop-micro: instance-id=i-1"},
		{"disk", []any{"bytes", int64(1) << 40, "readonly", true}, "outcrop-micro: disk bytes=1099511627776 readonly=true"},
		{"root", []any{"serial", ""}, `outcrop-micro: root serial=""`},
		{"x", []any{"v", "two words"}, `outcrop-micro: x v="two words"`},
		{"x", []any{"v", "a\nb"}, `outcrop-micro: x v="a\nb"`},
		{"x", []any{"v", `a"b`}, `outcrop-micro: x v="a\"b"`},
	} {
		if got := formatFact(c.subject, c.pairs...); got != c.want {
			t.Errorf("formatFact(%q, %v) = %q, want %q", c.subject, c.pairs, got, c.want)
		}
	}
}

func TestConsoleBeginsEachLineAnewBesideAShell(t *testing.T) {
	var out strings.Builder
	con := &console{out: &out}
	con.fact("one")
	con.share()
	con.fact("two")
	if want := "outcrop-micro: one\n\noutcrop-micro: two\n"; out.String() != want {
		t.Errorf("console wrote %q, want %q", out.String(), want)
	}
}

// The digest is over the exact bytes: NULs and line ends count.
func TestDigest(t *testing.T) {
	for in, want := range map[string]string{
		"":         "f bytes=0 sha256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"\x00\r\n": "f bytes=3 sha256=5016d27e02b85de4602313289699acbf145b3b1e47d8f94320cce8ded4a6ceef",
	} {
		if got := formatFact("f", digest([]byte(in))...); got != "outcrop-micro: "+want {
			t.Errorf("digest(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestCopyLines(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"a\nb\r\n\nend", []string{"a", "b", "", "end"}},
		{long + "y\n", []string{long, "y"}},
	} {
		var got []string
		copyLines(strings.NewReader(c.in), func(line string) { got = append(got, line) })
		if strings.Join(got, "|") != strings.Join(c.want, "|") || len(got) != len(c.want) {
			t.Errorf("copyLines(%.20q) gave %d lines, want %d", c.in, len(got), len(c.want))
		}
	}
}
