package control_test

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
)

type page struct {
	Items []struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"items"`
	NextCursor string `json:"nextCursor"`
}

func read(c *apptest.Client, path string, limit int, cursor string) (p page) {
	c.Do("GET", fmt.Sprintf("%s?limit=%d&cursor=%s", path, limit, url.QueryEscape(cursor)), nil).Want(200).Decode(&p)
	return p
}

func text(s string) *string {
	b := base64.StdEncoding.EncodeToString([]byte(s))
	return &b
}

// A list is walked by its cursor, whatever the size of a page, and what comes or
// goes meanwhile neither hides an item nor shows one twice.
// contract: U-19
func TestPages(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		image := s.Image("default")
		add := map[string]func(n int){
			api.InstancePath("default", ""): func(n int) { s.Create("default", api.CreateInstance{Name: fmt.Sprintf("vm%02d", n), ImageID: image}) },
			"/v1/projects": func(n int) {
				s.Operator.Do("POST", "/v1/projects", api.CreateProject{ID: fmt.Sprintf("p%02d", n)}).Want(201)
			},
			"/v1/tokens":                 func(n int) { s.Token(api.CreateToken{Name: fmt.Sprintf("t%02d", n), Role: "operator"}) },
			api.NodePath(""):             func(n int) { s.Node(fmt.Sprintf("n%02d", n)) },
			api.ImagePath("default", ""): func(int) { s.Image("default") },
		}
		for path, more := range add {
			for n := range 7 {
				more(n)
			}
			all := read(s.Operator, path, 1000, "")
			if len(all.Items) < 7 || all.NextCursor != "" {
				t.Fatalf("%s: %d items, cursor %q", path, len(all.Items), all.NextCursor)
			}
			for _, limit := range []int{1, 2, 3, len(all.Items), len(all.Items) - 1} {
				var got []string
				cursor, pages := "", 0
				for {
					p := read(s.Operator, path, limit, cursor)
					for _, i := range p.Items {
						got = append(got, i.ID)
					}
					if len(p.Items) > limit {
						t.Fatalf("%s: a page of %d has %d items", path, limit, len(p.Items))
					}
					if pages++; p.NextCursor == "" {
						break
					}
					cursor = p.NextCursor
				}
				want := make([]string, len(all.Items))
				for i := range all.Items {
					want[i] = all.Items[i].ID
				}
				if !slices.Equal(got, want) || pages != (len(want)+limit-1)/limit {
					t.Errorf("%s by %d: %v in %d pages\nwant %v", path, limit, got, pages, want)
				}
			}
			// While it is read, more come.
			first := read(s.Operator, path, 3, "")
			for n := 7; n < 10; n++ {
				more(n)
			}
			seen := map[string]int{}
			for _, i := range first.Items {
				seen[i.ID]++
			}
			for cursor := first.NextCursor; cursor != ""; {
				p := read(s.Operator, path, 3, cursor)
				for _, i := range p.Items {
					seen[i.ID]++
				}
				cursor = p.NextCursor
			}
			for _, i := range all.Items {
				if seen[i.ID] != 1 {
					t.Errorf("%s: %s was shown %d times", path, i.ID, seen[i.ID])
				}
			}
			for _, bad := range []string{"0", "-1", "1001", "x", "1.5", "99999999999999999999"} {
				r := s.Operator.Do("GET", path+"?limit="+bad, nil).Refused(400, "INVALID_INPUT")
				if !slices.Equal(r.Paths(), []string{"limit"}) {
					t.Errorf("%s?limit=%s: %+v", path, bad, r)
				}
			}
			s.Operator.Do("GET", path+"?limit=1000", nil).Want(200)
		}
		for _, path := range []string{api.InstancePath("default", ""), "/v1/tokens", api.ImagePath("default", "")} {
			for _, bad := range []string{"x", "!!", "e30x", base64.RawURLEncoding.EncodeToString([]byte(`{"a":"x"}`)), base64.RawURLEncoding.EncodeToString([]byte(`[1]`))} {
				r := s.Operator.Do("GET", path+"?cursor="+url.QueryEscape(bad), nil).Refused(400, "INVALID_INPUT")
				if !slices.Equal(r.Paths(), []string{"cursor"}) {
					t.Errorf("%s with cursor %s: %+v", path, bad, r)
				}
			}
		}
	})
}

// The timeline of an instance is a list like any other.
func TestEventsPage(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	i := n.Stopped("default", api.CreateInstance{})
	path := api.InstancePath("default", i.ID, "events")
	var all api.List[api.Event]
	s.Operator.Do("GET", path, nil).Want(200).Decode(&all)
	if len(all.Items) < 5 || all.Items[0].Event != "create" {
		t.Fatalf("%+v", all.Items)
	}
	var got []api.Event
	for cursor := ""; ; {
		var p api.List[api.Event]
		s.Operator.Do("GET", path+"?limit=1&cursor="+cursor, nil).Want(200).Decode(&p)
		got = append(got, p.Items...)
		if cursor = p.NextCursor; cursor == "" {
			break
		}
	}
	if !slices.Equal(got, all.Items) {
		t.Errorf("one by one:\n%+v\nat once:\n%+v", got, all.Items)
	}
	s.Operator.Do("GET", path+"?cursor=x", nil).Refused(400, "INVALID_INPUT")
}
