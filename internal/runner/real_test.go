package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/server"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// realGateway is the server itself, with a clock that is off by skew.
type realGateway struct {
	t             *testing.T
	url, operator string
	app           string
}

func newRealGateway(t *testing.T, skew time.Duration) *realGateway {
	t.Helper()
	dir, now := t.TempDir(), func() time.Time { return time.Now().Add(skew) }
	db := storetest.Open(t, store.Options{Dir: dir, Now: now})
	c, err := control.New(control.Options{DB: db, Dir: dir, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Options{DB: db, Dir: dir, Now: now, Tokens: c.Authenticate, Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(c, slog.New(slog.DiscardHandler), "1.2.3")
	s.AddGateway(g)
	h := httptest.NewServer(s.Handler())
	t.Cleanup(h.Close)
	token, err := c.CreateToken(t.Context(), iam.System, api.CreateToken{Role: string(iam.Operator)})
	if err != nil {
		t.Fatal(err)
	}
	r := &realGateway{t: t, url: h.URL, operator: token.Secret}
	var app api.Data[api.App]
	r.call(http.MethodPost, "/v1/apps", api.CreateApp{Name: "builds"}, &app)
	r.app = app.Data.ID
	return r
}

// call is an operator's request.
func (g *realGateway) call(method, path string, in, out any) {
	g.t.Helper()
	req, err := http.NewRequest(method, g.url+path, bytes.NewReader(mustJSON(in)))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+g.operator)
	if g.app != "" {
		req.Header.Set("X-Outerlayer-App-Id", g.app)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 || json.Unmarshal(b, out) != nil {
		g.t.Fatalf("%s %s: %d %s, %v", method, path, resp.StatusCode, b, err)
	}
}

// finished waits for a job's end.
func (g *realGateway) finished(id string) (w api.Data[api.Work], log string) {
	g.t.Helper()
	for ctx, late := g.t.Context(), time.Now().Add(time.Minute); w.Data.FinishedAt == nil; {
		g.call(http.MethodGet, "/v1/work/"+id, nil, &w)
		if time.Now().After(late) || !pause(ctx, 50*time.Millisecond, nil) {
			g.t.Fatalf("the job is still %s", w.Data.State)
		}
	}
	var l api.Data[api.WorkLog]
	g.call(http.MethodGet, "/v1/work/"+id+"/logs", nil, &l)
	return w, string(l.Data.Data)
}

// From a key that is used once to a job's output, against the server itself, which
// verifies each signature, and whose clock is an hour off.
//
// contract: R-01 R-04 R-05 R-06 R-20 R-21 R-22 R-23 R-24 R-25
// lesson 5
func TestAgainstTheServer(t *testing.T) {
	g := newRealGateway(t, time.Hour)
	dir := t.TempDir()
	var once api.Data[api.NewAPIKey]
	g.call(http.MethodPost, "/v1/api-keys", api.CreateAPIKey{Name: "once", Permissions: []string{"api_key.insert", "hosts.ingest", "work.claim"}}, &once)
	if _, err := Enroll(t.Context(), Enrollment{Dir: dir, Server: g.url, AppID: g.app, Host: testHost, Token: once.Data.PlaintextKey}); err != nil {
		t.Fatal(err)
	}
	engine := &fakeEngine{play: func(_ context.Context, j *Job) (int64, error) {
		fmt.Fprintf(j.Output, "%s with %s\n", j.Command, j.Env["X"])
		return 3, nil
	}}
	if err := writeOwn(filepath.Join(dir, fileVersion), []byte("outcrop/0.1\n")); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Run(ctx, Config{Dir: dir, Version: "1.2.3", Engine: engine, Slots: 2, Poll: time.Second, SlotMemory: 1 << 20, StopGrace: time.Minute, Log: slog.DiscardHandler})
	}()
	var queued api.Data[api.Work]
	g.call(http.MethodPost, "/v1/work", api.QueueWork{Command: []string{"build", "it"}, Env: map[string]string{"X": "spirit"}}, &queued)
	w, log := g.finished(queued.Data.ID)
	if log != "[build it] with spirit\n" || w.Data.ExitCode == nil || *w.Data.ExitCode != 3 || w.Data.State != "failed" || w.Data.Attempt != 1 {
		t.Errorf("%+v, log %q", w.Data, log)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var host api.Data[api.HostDetail]
	g.call(http.MethodGet, "/v1/hosts/"+testHost, nil, &host)
	h := host.Data
	if h.Blocked == nil || !strings.Contains(h.Blocked.Reason, "told to stop") || h.LastSuccessAt == nil || h.LastUpdate == nil || h.LastUpdate.From != "outcrop/0.1" ||
		h.CLIVersion != "outcrop/1.2.3" || h.RunnerVersion != "outcrop/1.2.3" || h.SlotsTotal != 2 {
		t.Errorf("the host as the server shows it: %+v", h)
	}
}
