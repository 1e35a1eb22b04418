package compute_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// contract: U-20
func TestIDs(t *testing.T) {
	for prefix, pattern := range map[string]string{
		compute.VolumePrefix: `^vol-[a-z2-7]{10}$`, compute.ImagePrefix: `^img-[a-z2-7]{10}$`, compute.NICPrefix: `^eni-[a-z2-7]{10}$`,
		compute.SubnetPrefix: `^subnet-[a-z2-7]{10}$`, compute.VPCPrefix: `^vpc-[a-z2-7]{10}$`,
	} {
		spread(t, regexp.MustCompile(pattern), len(prefix), 32, func() string { return compute.NewID(prefix) })
	}
	spread(t, regexp.MustCompile(`^i-[0-9A-Za-z]{9}$`), 2, 62, compute.NewInstanceID)
}

// spread draws many ids: each of the form, none twice, every letter about as
// often as any other.
func spread(t *testing.T, form *regexp.Regexp, prefix, letters int, draw func() string) {
	t.Helper()
	const n = 20000
	seen, count, drawn := map[string]bool{}, map[rune]int{}, 0
	for range n {
		id := draw()
		if !form.MatchString(id) {
			t.Fatalf("%q does not match %s", id, form)
		}
		if seen[id] {
			t.Fatalf("%q was drawn twice", id)
		}
		seen[id] = true
		for _, r := range id[prefix:] {
			count[r]++
			drawn++
		}
	}
	mean := float64(drawn) / float64(letters)
	for r, k := range count {
		if f := float64(k) / mean; f < 0.85 || f > 1.15 {
			t.Errorf("%s: %q stands %d times, the mean is %.0f", form, r, k, mean)
		}
	}
	if len(count) != letters {
		t.Errorf("%s: %d letters of %d are used", form, len(count), letters)
	}
}

// contract: N-02 U-20
func TestValidIDs(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "0": true, "node-1.example_x": true, strings.Repeat("a", 63): true,
		"": false, strings.Repeat("a", 64): false, "-a": false, ".a": false, "_a": false, "a/b": false, "a b": false, "é": false, "a\x00": false, "a\n": false, "ａ": false,
	} {
		if got := compute.ValidNodeID(id); got != want {
			t.Errorf("node id %q: %v", id, got)
		}
	}
	for id, want := range map[string]bool{"p": true, "0-1": true, strings.Repeat("p", 63): true, strings.Repeat("p", 64): false, "": false, "P": false, "-p": false, "p_": false, "p.": false} {
		if got := compute.ValidProjectID(id); got != want {
			t.Errorf("project id %q: %v", id, got)
		}
	}
	for id, want := range map[string]bool{"i-A8c2D4e6F": true, "i-A8c2D4e6": false, "i-A8c2D4e6F0": false, "I-A8c2D4e6F": false, "i-A8c2D4e6_": false, "": false, "i-": false} {
		if got := compute.ValidInstanceID(id); got != want {
			t.Errorf("instance id %q: %v", id, got)
		}
	}
}
