package cli

import (
	"bytes"
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// Every command teaches: what it is, what happens, and how it is typed.
func TestEveryCommandIsExplained(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || c.Long == "" || c.Long == c.Short || c.Example == "" {
			t.Errorf("%s lacks Short, Long or Example", c.CommandPath())
		}
		if strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: Short is no sentence", c.CommandPath())
		}
		for _, line := range strings.Split(c.Example, "\n") {
			if !strings.HasPrefix(line, "  ") || !strings.Contains(c.Example, "outcrop") {
				t.Errorf("%s: example line %q is not indented, or calls something else", c.CommandPath(), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&app{}))
}

// No two commands of a group answer to one word.
func TestNamesAreUnique(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		seen := map[string]bool{}
		for _, sub := range c.Commands() {
			for _, word := range append([]string{sub.Name()}, sub.Aliases...) {
				if seen[word] {
					t.Errorf("%s %s is two commands", c.CommandPath(), word)
				}
				seen[word] = true
			}
			walk(sub)
		}
	}
	walk(newRoot(&app{}))
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "512": 512, "7B": 7, "1KiB": 1024, "1k": 1024, "512MiB": 512 << 20, "512 mib": 512 << 20, " 8G ": 8 << 30,
		"1.5GiB": 3 << 29, "0.5K": 512, "2TiB": 2 << 40, "9223372036854775807": math.MaxInt64, "8388607TiB": 8388607 << 40,
	} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"": "not a size", "-1": "not a size", "1e9": "not a size", "GiB": "not a size", "1,5GiB": "not a size", "0x10": `not a size`,
		"1GB": "write GiB", "1kb": "write KiB", "5XiB": "no unit", "5 PiB": "no unit", "0.1GiB": "whole number", "0.5": "whole number",
		"9223372036854775808": "too large", "8388608TiB": "too large", "99999999999999999999": "not a size",
	} {
		if got, err := parseSize(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseSize(%q) = %d, %v; want an error with %q", in, got, err, want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	f.Add("1.5GiB")
	f.Add("8388607TiB")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := parseSize(s)
		if err == nil && n < 0 {
			t.Fatalf("parseSize(%q) = %d", s, n)
		}
		if err != nil {
			return
		}
		// What is written without a fraction reads back as the same.
		if text := formatSize(n); !strings.Contains(text, ".") {
			if back, err := parseSize(text); err != nil || back != n {
				t.Fatalf("%q is %d, written %s, read back as %d (%v)", s, n, text, back, err)
			}
		}
	})
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0B", 1023: "1023B", 1024: "1KiB", 1536: "1.5KiB", 1<<30 - 1: "1.0GiB", 1 << 30: "1GiB", 5<<30 + 1: "5.0GiB",
		1 << 50: "1024TiB", math.MaxInt64: "8388608.0TiB", -1: "-1B",
	} {
		if got := formatSize(n); got != want {
			t.Errorf("formatSize(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for ago, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 119 * time.Second: "119s", 3 * time.Minute: "3m", 5 * time.Hour: "5h", 49 * time.Hour: "2d", 800 * 24 * time.Hour: "2y",
	} {
		if got := age(now.Add(-ago), now); got != want {
			t.Errorf("age of %s = %s, want %s", ago, got, want)
		}
	}
	if got := age(time.Time{}, now); got != "" {
		t.Errorf("age of never = %q", got)
	}
	if got, want := moment(now.Add(3*time.Hour), now), "2026-03-01 15:00:00Z (in 3h)"; got != want {
		t.Errorf("moment = %s, want %s", got, want)
	}
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{"30s": 30 * time.Second, "24h": 24 * time.Hour, "30d": 720 * time.Hour} {
		if got, err := parseDuration(in); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "d", "-1d", "0d", "0s", "-3s", "5", "99999999d", "1.5d"} {
		if got, err := parseDuration(in); err == nil {
			t.Errorf("parseDuration(%q) = %s", in, got)
		}
	}
}

func TestContextFile(t *testing.T) {
	dir := t.TempDir()
	getenv := func(k string) string { return map[string]string{"XDG_CONFIG_HOME": dir}[k] }
	path := ContextPath(getenv)
	if want := filepath.Join(dir, "outcrop", "context.yaml"); path != want {
		t.Fatalf("path %s, want %s", path, want)
	}
	if c, err := readContext(path); err != nil || c != (Context{}) {
		t.Fatalf("a missing file is %v, %v", c, err)
	}
	for _, want := range []Context{{URL: "http://a", Token: "secret: #1", Project: "p"}, {URL: "https://b"}} {
		if err := WriteContext(path, want); err != nil {
			t.Fatal(err)
		}
		if got, err := readContext(path); err != nil || got != want {
			t.Errorf("read %v, %v; want %v", got, err, want)
		}
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; it holds a token", st.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "outcrop", ".context-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if got := ContextPath(func(string) string { return "" }); got != "" {
		t.Errorf("path without a home: %q", got)
	}
}

// On a terminal one line is redrawn and taken away; elsewhere there are lines only.
func TestProgress(t *testing.T) {
	var out bytes.Buffer
	c := make(chan time.Time)
	close(c)
	a := &app{stderr: &out, after: func(time.Duration) <-chan time.Time { return c }}
	p := &progress{a: a, live: true}
	if err := p.spin(context.Background(), 2*frame, func() string { return "working\x1b[2J" }); err != nil {
		t.Fatal(err)
	}
	p.line("done")
	p.clear()
	want := "\r| working�[2J\x1b[K\r/ working�[2J\x1b[K\r\x1b[Kdone\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	for done, want := range map[int64]string{0: "  0%", 45: " 45%", 100: "100%", 300: "100%"} {
		if got := bar(done, 100); !strings.HasSuffix(got, want) || len(got) != barWidth+7 {
			t.Errorf("bar(%d) = %s", done, got)
		}
	}
}

// Without a terminal a long upload still says now and then how far it is.
func TestUploadTells(t *testing.T) {
	var out bytes.Buffer
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	a := &app{stderr: &out, getenv: func(string) string { return "" }, now: func() time.Time {
		now = now.Add(4 * time.Second)
		return now
	}}
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 5<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	up, err := a.newUpload(file)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	for range 5 {
		if _, err := io.ReadFull(up, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	want := "[==================            ]  60%  3MiB of 5MiB  256KiB/s\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestConsoleIsHarmless(t *testing.T) {
	in := "boot\r\n\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b]8;;x\x1b\\tab\there\x00\x08\x1b\x7f"
	if got, want := string(controlText.ReplaceAll([]byte(in), nil)), "boot\r\nred tab\there"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
