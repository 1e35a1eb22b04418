package control_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
)

func key(k string) apptest.Option { return apptest.Header("Idempotency-Key", k) }

// The same key with the same body is answered the first answer for a day; with
// another body it is a conflict; after a day it is free again.
// contract: E-10 // lesson 21
func TestIdempotencyKey(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		image := s.Image("default")
		for name, c := range map[string]struct {
			path        string
			same, other any
			listed      string
		}{
			"instance": {api.InstancePath("default", ""), api.CreateInstance{Name: "a", ImageID: image, InstanceType: "m1.tiny", UserData: text("x")},
				api.CreateInstance{Name: "b", ImageID: image, InstanceType: "m1.tiny", UserData: text("x")}, api.InstancePath("default", "")},
			"project": {"/v1/projects", api.CreateProject{ID: "p1"}, api.CreateProject{ID: "p2"}, "/v1/projects"},
			"token":   {"/v1/tokens", api.CreateToken{Role: "operator"}, api.CreateToken{Role: "project", ProjectID: "default"}, "/v1/tokens"},
		} {
			t.Run(name, func(t *testing.T) {
				before := count(s, c.listed)
				first := s.Operator.Do("POST", c.path, c.same, key("k"))
				if first.Status/100 != 2 {
					t.Fatalf("%d %s", first.Status, first.Body)
				}
				again := func() string {
					return string(s.Operator.Do("POST", c.path, c.same, key("k")).Want(first.Status).Body)
				}
				if got := again(); got != string(first.Body) {
					t.Errorf("again:\n%s\nfirst:\n%s", got, first.Body)
				}
				s.Operator.Do("POST", c.path, c.other, key("k")).Refused(409, "IDEMPOTENCY_CONFLICT")
				s.Restart()
				s.Clock.Advance(24*time.Hour - time.Minute)
				if got := again(); got != string(first.Body) {
					t.Errorf("a day later, less a minute:\n%s\nfirst:\n%s", got, first.Body)
				}
				if n := count(s, c.listed) - before; n != 1 {
					t.Errorf("%d were made", n)
				}
				s.Clock.Advance(2 * time.Minute)
				if name != "project" { // whose id would be taken
					if got := again(); got == string(first.Body) {
						t.Error("after a day the old answer comes again")
					}
				}
				if a := s.Operator.Do("POST", c.path, c.other, key("k")); name == "project" && a.Status != first.Status {
					t.Errorf("after a day the key is not free: %d %s", a.Status, a.Body)
				}
			})
		}
	})
}

func count(s *apptest.System, path string) int {
	var page struct{ Items []any }
	s.Operator.Do("GET", path+"?limit=1000", nil).Want(200).Decode(&page)
	return len(page.Items)
}

// Many at once with one key make one, and all learn of the same.
// contract: E-10
func TestIdempotencyKeyInParallel(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		image := s.Image("default")
		const n = 16
		var wg sync.WaitGroup
		answers := make([]string, n)
		for i := range n {
			wg.Go(func() {
				answers[i] = string(s.Operator.Do("POST", api.InstancePath("default", ""), api.CreateInstance{Name: "a", ImageID: image, InstanceType: "m1.tiny"}, key("k")).Want(202).Body)
			})
		}
		wg.Wait()
		for _, a := range answers {
			if a != answers[0] {
				t.Errorf("two answers:\n%s\n%s", a, answers[0])
			}
		}
		if c := count(s, api.InstancePath("default", "")); c != 1 {
			t.Errorf("%d instances were made", c)
		}
	})
}

// A create that was refused is not remembered: put right, the same key works. And
// a key is its project's own.
// contract: E-10
func TestIdempotencyKeyOfARefusal(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	a, b := s.Member("alpha"), s.Member("beta")
	in := api.CreateInstance{Name: "a", ImageID: "img-aaaaaaaaaa", InstanceType: "m1.tiny"}
	a.Do("POST", api.InstancePath("alpha", ""), in, key("k")).Refused(400, "INVALID_INPUT")
	in.ImageID = s.Image("alpha")
	a.Do("POST", api.InstancePath("alpha", ""), in, key("k")).Want(202)
	in.ImageID = s.Image("beta")
	b.Do("POST", api.InstancePath("beta", ""), in, key("k")).Want(202)
	for i := range 3 {
		if got := a.Do("POST", api.InstancePath("alpha", ""), in, key("k")); got.Status != 409 {
			t.Errorf("%d: %d %s", i, got.Status, got.Body)
		}
	}
	if n := count(s, api.InstancePath("alpha", "")); n != 1 {
		t.Errorf("%d instances", n)
	}
	// No key: each is a create of its own.
	for range 2 {
		b.Do("POST", api.InstancePath("beta", ""), in).Want(202)
	}
	if n := count(s, api.InstancePath("beta", "")); n != 3 {
		t.Errorf("%d instances", n)
	}
}

// An image sent twice with one key is one image.
// contract: E-10
func TestIdempotencyKeyOfAnImage(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	path := api.ImagePath("default", "") + "?name=disk"
	first := s.Operator.Do("POST", path, apptest.DiskImage(), key("k")).Want(201)
	if again := s.Operator.Do("POST", path, apptest.DiskImage(), key("k")).Want(201); string(again.Body) != string(first.Body) {
		t.Errorf("%s\n%s", again.Body, first.Body)
	}
	s.Operator.Do("POST", path, strings.Repeat("\x00\xff\x01\xfe", 1<<18), key("k")).Refused(409, "IDEMPOTENCY_CONFLICT")
	if n := count(s, api.ImagePath("default", "")); n != 1 {
		t.Errorf("%d images", n)
	}
}
