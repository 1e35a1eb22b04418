package cli

import "testing"

// A tree with changes is of no commit.
func TestCleanBuild(t *testing.T) {
	for b, want := range map[build]string{
		{Commit: "abc"}: "abc", {Commit: "abc", Modified: true}: "", {}: "",
	} {
		if got := b.clean(); got != want {
			t.Errorf("%+v: %q, want %q", b, got, want)
		}
	}
}
