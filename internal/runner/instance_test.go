package runner

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// fakeCompute is as much of the compute API as the engine uses. Its instances run
// their user-data as a guest would: they answer what the test says.
type fakeCompute struct {
	mu        sync.Mutex
	images    []api.Image
	instances map[string]*api.Instance
	created   []api.CreateInstance
	refuse    int    // status of the next creates; 0: none
	guest     string // console, with MARK for the job's mark
	state     string // of instances
}

func (f *fakeCompute) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rest := strings.TrimPrefix(r.URL.Path, "/v1/projects/p/compute/")
	id := strings.TrimPrefix(rest, "instances/")
	switch {
	case r.Header.Get("Authorization") != "Bearer project":
		f.fail(w, 401, "UNAUTHENTICATED")
	case rest == "images":
		_ = json.NewEncoder(w).Encode(api.List[api.Image]{Items: f.images})
	case rest == "instances" && r.Method == http.MethodGet:
		var list api.List[api.Instance]
		for _, i := range f.instances {
			list.Items = append(list.Items, *i)
		}
		_ = json.NewEncoder(w).Encode(list)
	case rest == "instances":
		f.create(w, r)
	case strings.HasSuffix(id, "/console"):
		mark := f.mark()
		_ = json.NewEncoder(w).Encode(api.Console{Output: base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(f.guest, "MARK", mark)))})
	case f.instances[id] == nil:
		f.fail(w, 404, "NOT_FOUND")
	case r.Method == http.MethodDelete:
		f.instances[id].State = "terminating"
		_ = json.NewEncoder(w).Encode(f.instances[id])
	default:
		_ = json.NewEncoder(w).Encode(f.instances[id])
	}
}

func (f *fakeCompute) fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"code":%q,"message":"no"}`, code)
}

func (f *fakeCompute) create(w http.ResponseWriter, r *http.Request) {
	if f.refuse != 0 {
		status := f.refuse
		f.refuse = 0
		f.fail(w, status, "X")
		return
	}
	var in api.CreateInstance
	_ = json.NewDecoder(r.Body).Decode(&in)
	f.created = append(f.created, in)
	id := fmt.Sprintf("i-%d", len(f.created))
	f.instances[id] = &api.Instance{ID: id, State: f.state, StateMessage: "why", Tags: in.Tags}
	_ = json.NewEncoder(w).Encode(f.instances[id])
}

// mark is what the newest user-data says.
func (f *fakeCompute) mark() string {
	script, _ := base64.StdEncoding.DecodeString(*f.created[len(f.created)-1].UserData)
	_, rest, _ := strings.Cut(string(script), "\nm=")
	mark, _, _ := strings.Cut(rest, "\n")
	return mark
}

func newFakeCompute(t *testing.T) (*fakeCompute, *Instances) {
	f := &fakeCompute{instances: map[string]*api.Instance{}, state: "running", guest: "boot\r\nMARK out 0 4 YWJj\r\nMARK end 3 1\r\n", images: []api.Image{
		{ID: "img-1", Name: "micro", State: "available", VirtualSizeBytes: 1000}, {ID: "img-2", Name: "later", State: "creating"}}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	client, err := api.NewClient(s.URL, "project", "test")
	if err != nil {
		t.Fatal(err)
	}
	e := NewInstances(InstancesConfig{Client: client, Project: "p", Host: testHost, Image: "micro", VCPUs: 2})
	e.every = time.Millisecond
	return f, e
}

func TestInstanceRuns(t *testing.T) {
	f, e := newFakeCompute(t)
	f.refuse = 500 // is asked again
	j := shellJob("exit 3")
	j.DiskBytes = 500
	exit, out, err := j.run(t.Context(), e)
	if exit != 3 || out != "abc" || err != nil {
		t.Errorf("%d, %q, %v", exit, out, err)
	}
	in := f.created[0]
	if in.ImageID != "img-1" || in.VCPUs != 2 || in.MemoryBytes != j.MemoryBytes+guestMemory || in.RootVolumeBytes != 1500 || len(in.Name) > 63 ||
		in.Tags[tagHost] != testHost || in.Tags[tagJob] != j.Key() || *in.AgentEnabled {
		t.Errorf("asked for %+v", in)
	}
	if s := f.instances["i-1"].State; s != "terminating" {
		t.Errorf("the instance is %s", s)
	}
}

func TestInstanceFails(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(f *fakeCompute, j *Job)
		unfit bool
		want  string
	}{
		{"no such image", func(_ *fakeCompute, j *Job) { j.Image = "none" }, true, `no image "none"`},
		{"image not ready", func(_ *fakeCompute, j *Job) { j.Image = "later" }, false, "creating"},
		{"refused for good", func(f *fakeCompute, _ *Job) { f.refuse = 400 }, true, "refused"},
		{"refused for now", func(f *fakeCompute, _ *Job) { f.refuse = 409 }, false, "refused"},
		{"too large", func(_ *fakeCompute, j *Job) { j.Env = map[string]string{"A": strings.Repeat("x", 70000)} }, true, "pass less"},
		{"the guest stops", func(f *fakeCompute, _ *Job) { f.state, f.guest = "stopped", "boot\n" }, false, "is stopped before the command ended: why"},
	} {
		f, e := newFakeCompute(t)
		j := shellJob("true")
		tc.spoil(f, j.Job)
		_, _, err := j.run(t.Context(), e)
		var unfit *Unfit
		if err == nil || !strings.Contains(err.Error(), tc.want) || errors.As(err, &unfit) != tc.unfit {
			t.Errorf("%s: %v; want %q, unfit %t", tc.name, err, tc.want, tc.unfit)
		}
		for id, i := range f.instances {
			if i.State != "terminating" {
				t.Errorf("%s: instance %s is left %s", tc.name, id, i.State)
			}
		}
	}
}

// The end of the job, whatever ends it, is the end of its instance.
func TestInstanceIsTerminated(t *testing.T) {
	f, e := newFakeCompute(t)
	f.guest = "MARK out 0 12 cmVhZHkK\r\nMARK out 0 8 cmVhZHkK\r\n"
	j := shellJob("sleep")
	ctx, stop := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() { _, _, err := j.run(ctx, e); done <- err }()
	<-j.line
	stop(ErrLeaseLost)
	if err := <-done; !errors.Is(err, ErrLeaseLost) {
		t.Errorf("ended with %v", err)
	}
	if s := f.instances["i-1"].State; s != "terminating" {
		t.Errorf("the instance is %s", s)
	}
}

func TestInstanceSweep(t *testing.T) {
	f, e := newFakeCompute(t)
	for id, tags := range map[string]map[string]string{"old": {tagHost: testHost, tagJob: "a.1"}, "mine": {tagHost: testHost, tagJob: "b.1"},
		"another's": {tagHost: "builder-2", tagJob: "c.1"}, "a tenant's": {}} {
		f.instances[id] = &api.Instance{ID: id, State: "running", Tags: tags}
	}
	gone, err := e.Sweep(t.Context(), func(key string) bool { return key == "b.1" })
	if err != nil || !slices.Equal(gone, []string{"a.1"}) {
		t.Errorf("swept %v, %v", gone, err)
	}
	for id, i := range f.instances {
		if (i.State == "terminating") != (id == "old") {
			t.Errorf("instance %s is %s", id, i.State)
		}
	}
	if reason := e.Check(t.Context()); reason != "" {
		t.Error(reason)
	}
	f.images = nil
	if reason := e.Check(t.Context()); !strings.Contains(reason, "micro") {
		t.Errorf("without the image: %q", reason)
	}
}
