package nearest

import (
	"slices"
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	fields := []string{"subnetIds", "userData", "name", "imageId", "publicKeys", "id"}
	for _, tt := range []struct{ word, want string }{
		{"subnetId", "subnetIds"},
		{"subnetIds", "subnetIds"},
		{"subnet_ids", "subnetIds"},
		{"SUBNETIDS", "subnetIds"},
		{"suBnteIds", "subnetIds"}, // a swap of neighbours is one edit
		{"user-data", "userData"},
		{"nmae", "name"},
		{"pubicKeys", "publicKeys"},
		{"publicKey", "publicKeys"},
		{"image", ""}, // two edits in five characters make another word
		{"imgeId", "imageId"},
		{"ix", "id"},
		{"vcpus", ""},
		{"completelyDifferent", ""},
		{"", ""},
		{"-_-", ""},
		{strings.Repeat("a", 100_000), ""},
	} {
		if got := Nearest(tt.word, fields); got != tt.want {
			t.Errorf("Nearest(%.20q) = %q, want %q", tt.word, got, tt.want)
		}
	}
}

func TestNearestIsStable(t *testing.T) {
	if got := Nearest("bar", []string{"baz", "bat"}); got != "baz" {
		t.Errorf("of two equally near words got %q, want the first", got)
	}
	if got := Nearest("bat", []string{"baz", "bat"}); got != "bat" {
		t.Errorf("got %q, want the exact word before an earlier near one", got)
	}
	if got := Nearest("bat", nil); got != "" {
		t.Errorf("nothing known: got %q", got)
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0},
		{"abc", "acb", 1}, {"ab", "ba", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3},
		{"größe", "grösse", 2},
	} {
		if got := distance([]rune(tt.a), []rune(tt.b)); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func FuzzNearest(f *testing.F) {
	f.Add("subnetId", "subnetIds", "name")
	f.Fuzz(func(t *testing.T, word, a, b string) {
		if len(a)+len(b) > 400 {
			t.Skip("distance is for words; it is quadratic")
		}
		known := []string{a, b}
		got := Nearest(word, known)
		if got != "" && !slices.Contains(known, got) {
			t.Fatalf("Nearest made up %q", got)
		}
		if d, e := distance([]rune(a), []rune(b)), distance([]rune(b), []rune(a)); d != e {
			t.Fatalf("distance is not symmetric: %d and %d", d, e)
		}
	})
}
