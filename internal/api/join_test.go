package api

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

var joinKey = base64.StdEncoding.EncodeToString(ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey))

func joinProblems(t *testing.T, body string) (paths []string) {
	t.Helper()
	_, _, err := DecodeJoin([]byte(body))
	if err == nil {
		return nil
	}
	if !fault.HasCode(err, fault.InvalidInput) {
		t.Fatal(err)
	}
	for _, f := range fault.From(err).Fields {
		paths = append(paths, f.Path)
	}
	slices.Sort(paths)
	return paths
}

// Every bound of a join's body, on both sides.
// contract: E-02 N-22
func TestDecodeJoin(t *testing.T) {
	join := func(field, value string) string {
		m := map[string]json.RawMessage{"publicKey": json.RawMessage(`"` + joinKey + `"`), "hostname": json.RawMessage(`"h"`)}
		if m[field] = json.RawMessage(value); value == "" {
			delete(m, field)
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	text := func(n int) string { return `"` + strings.Repeat("ä", n) + `"` }
	for _, c := range []struct{ field, value, bad string }{
		{"hostname", "", "hostname"}, {"hostname", `""`, "hostname"}, {"hostname", text(253), ""}, {"hostname", text(254), "hostname"}, {"hostname", "7", "hostname"}, {"hostname", `"a\u0000"`, "hostname"},
		{"machineId", "", ""}, {"machineId", text(128), ""}, {"machineId", text(129), "machineId"}, {"machineId", "{}", "machineId"}, {"machineId", `"\u0000"`, "machineId"}, {"machineId", "null", ""},
		{"bootId", text(128), ""}, {"bootId", text(129), "bootId"}, {"bootId", "[]", "bootId"},
		{"publicKey", "", "publicKey"}, {"publicKey", `"x"`, "publicKey"}, {"publicKey", `"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="`, "publicKey"},
		{"future", `{"a":1}`, ""},
	} {
		got := joinProblems(t, join(c.field, c.value))
		if c.bad == "" && got != nil || c.bad != "" && !slices.Equal(got, []string{c.bad}) {
			t.Errorf("%s = %.30s: problems at %q, want %q", c.field, c.value, got, c.bad)
		}
	}
	if got := joinProblems(t, `{"hostname":"","machineId":`+text(129)+`}`); !slices.Equal(got, []string{"hostname", "machineId", "publicKey"}) {
		t.Errorf("problems at %q", got)
	}
	for _, body := range []string{"", "null", "[]", `"x"`, "{", `{"hostname":"a","hostname":"b"}`, `{"HOSTNAME":"a"}`, "\xff", "{}{}"} {
		if joinProblems(t, body) == nil {
			t.Errorf("%q is taken", body)
		}
	}
	if _, err := DecodeClaim([]byte(`{"hostname":"h","machineId":"m","bootId":"b"}`)); err != nil {
		t.Error(err)
	}
	if _, err := DecodeClaim([]byte(`{"machineId":"m"}`)); err == nil {
		t.Error("a claim without a hostname")
	}
}

// What is taken is within the bounds and reads the same when it is written.
func FuzzDecodeJoin(f *testing.F) {
	f.Add([]byte(`{"publicKey":"` + joinKey + `","hostname":"h","machineId":"m","bootId":"b"}`))
	f.Add([]byte(`{"hostname":"\u0000"}`))
	f.Add([]byte(`[{}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		j, key, err := DecodeJoin(b)
		if err != nil {
			if !fault.HasCode(err, fault.InvalidInput) {
				t.Fatalf("%v", err)
			}
			return
		}
		if len(key) != ed25519.PublicKeySize || checkClaim(j.Claim()) != nil {
			t.Fatalf("taken: %+v", j)
		}
		again, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		k, key2, err := DecodeJoin(again)
		if err != nil || k != j || !bytes.Equal(key, key2) {
			t.Fatalf("%+v, written and read: %+v, %v", j, k, err)
		}
	})
}

// A refusal that says how long to wait says so to the caller (lesson 2).
func TestRetryAfter(t *testing.T) {
	for header, want := range map[string]time.Duration{"7": 7 * time.Second, "": 0, "soon": 0, "-1": 0, "0": 0} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", header)
			w.WriteHeader(http.StatusTooManyRequests)
		}))
		c, err := NewClient(web.URL, "", "test")
		if err != nil {
			t.Fatal(err)
		}
		err = c.Do(t.Context(), "GET", "/", nil, nil)
		web.Close()
		var got time.Duration
		if r, ok := errors.AsType[interface {
			error
			RetryAfter() time.Duration
		}](err); ok {
			got = r.RetryAfter()
		}
		if got != want || !fault.Is(err, fault.TooMany) {
			t.Errorf("Retry-After %q: %v, %v", header, got, err)
		}
	}
}

// A token that is nothing but the CA's fingerprint is not sent.
func TestPinAloneIsNotSent(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, sent := r.Header["Authorization"]; sent {
			t.Error("it is sent")
		}
	}))
	defer web.Close()
	c, err := NewClient(web.URL, ".cafe", "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Do(t.Context(), "GET", "/", nil, nil); err != nil {
		t.Error(err)
	}
}
