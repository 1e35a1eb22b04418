package bearer

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// contract: R-25
func TestOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "token.key")
	var wg sync.WaitGroup
	macs := make([]MAC, 8)
	for i := range macs { // processes that start at the same moment agree
		wg.Go(func() {
			k, err := Open[int](file, "tokens")
			if err != nil {
				t.Error(err)
				return
			}
			macs[i] = k.MAC("secret")
		})
	}
	wg.Wait()
	key, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte("secret"))
	for _, m := range macs {
		if !hmac.Equal(m[:], h.Sum(nil)) {
			t.Errorf("MAC %x", m)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || info.Size() != 32 {
		t.Errorf("%v, %v", info, err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".new-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, bad := range []string{"", strings.Repeat("x", 31), strings.Repeat("x", 33)} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open[int](file, "tokens"); err == nil || !strings.Contains(err.Error(), "backup") || !strings.Contains(err.Error(), "all tokens are void") {
			t.Errorf("a key of %d bytes: %v", len(bad), err)
		}
	}
}

func open(t *testing.T) *Keyring[string] {
	t.Helper()
	k, err := Open[string](filepath.Join(t.TempDir(), "key"), "tokens")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestCache(t *testing.T) {
	k := open(t)
	a, b := k.MAC("a"), k.MAC("b")
	k.Remember(a, 1, "first")
	for _, c := range []struct {
		mac            MAC
		generation     int64
		want           string
		known, current bool
	}{{a, 1, "first", true, true}, {a, 2, "first", true, false}, {b, 1, "", false, false}} {
		v, known, current := k.Cached(c.mac, c.generation)
		if v != c.want || known != c.known || current != c.current {
			t.Errorf("generation %d: %q, known %v, current %v; want %+v", c.generation, v, known, current, c)
		}
	}
	k.Remember(a, 2, "second")
	if v, _, current := k.Cached(a, 2); v != "second" || !current {
		t.Errorf("read again: %q, %v", v, current)
	}
	for i := range maxCached + 1 {
		k.Remember(k.MAC(fmt.Sprint(i)), 2, "")
	}
	if n := len(k.cache); n > maxCached {
		t.Errorf("%d are remembered, %d at most are wanted", n, maxCached)
	}
}

func TestUsed(t *testing.T) {
	k := open(t)
	now := time.Unix(1_800_000_000, 0)
	k.Used("a", now)
	k.Used("a", now.Add(time.Second))
	k.Used("b", now)
	if got := k.TakeUsed(); len(got) != 2 || !got["a"].Equal(now.Add(time.Second)) || !got["b"].Equal(now) {
		t.Errorf("used: %v", got)
	}
	if got := k.TakeUsed(); len(got) != 0 {
		t.Errorf("taken twice: %v", got)
	}
}
