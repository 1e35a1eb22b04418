package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
	"github.com/outcrop-cloud/outcrop/internal/httpsig"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// gatewayBenchmarks measure runner hosts' heartbeats through the real server
// process, each host with a key of its own, and pages of a long list of hosts.
func gatewayBenchmarks() (all []benchmark) {
	for _, database := range []string{"sqlite", "postgres"} {
		for _, hosts := range []int{2_000, 20_000} {
			for _, signed := range []bool{false, true} {
				b := hostBench{database, hosts, signed}
				all = append(all, benchmark{b.name(), b.run})
			}
		}
		b := hostListBench{database, 1_000_000}
		all = append(all, benchmark{b.name(), b.run})
	}
	return all
}

type hostBench struct {
	database string
	hosts    int
	signed   bool
}

func (h hostBench) name() string {
	kind := "unsigned"
	if h.signed {
		kind = "signed"
	}
	return fmt.Sprintf("gateway/heartbeat/%s/%s/hosts=%d", kind, h.database, h.hosts)
}

// benchData is a data folder, and a PostgreSQL where that is asked for.
func benchData(ctx context.Context, e *env, database string) (data, url string, end func(), err error) {
	if data, err = os.MkdirTemp(e.dir, "server-"); err != nil {
		return "", "", nil, err
	}
	end = func() { os.RemoveAll(data) }
	if database == "postgres" {
		pg, err := startPostgres(ctx, e.dir)
		if err != nil {
			end()
			return "", "", nil, err
		}
		url = pg.url
		end = func() { pg.stop(); os.RemoveAll(data) }
	}
	return data, url, end, nil
}

func (h hostBench) run(ctx context.Context, e *env) error {
	if h.hosts > 2_000 && e.maxNodes <= 1_000 {
		return nil
	}
	data, address, end, err := benchData(ctx, e, h.database)
	if err != nil {
		return err
	}
	defer end()
	keys, err := registerHosts(ctx, data, address, h.hosts, h.signed)
	if err != nil {
		return fmt.Errorf("making keys: %w", err)
	}
	server, err := e.startServer(ctx, data, address)
	if err != nil {
		return err
	}
	defer server.stop()
	if h.signed {
		return h.runSigned(ctx, e, server, keys)
	}
	bare, err := startBare(ctx)
	if err != nil {
		return err
	}
	defer bare.stop()
	p := pair{processes: [2]*process{server, bare}}
	for i, process := range p.processes {
		requests := make([]request, len(keys))
		for j := range keys {
			if requests[j], err = keys[j].request(process.addr, false); err != nil {
				return err
			}
		}
		if p.load[i], err = newGenerator(process.addr, connections, requests); err != nil {
			return err
		}
		defer p.load[i].close()
	}
	first, err := p.load[0].sendAll(ctx)
	if err != nil {
		return err
	}
	if err := p.measure(ctx, e.rounds, e.window); err != nil {
		return err
	}
	r := p.result()
	r.Name, r.Unit, r.Better, r.Goal, r.Against = h.name(), "heartbeats/s", higher, ">= 0.3", "bare net/http handler that reads the body"
	r.More["firstBeatsPerSecond"], r.More["connections"] = first.perSecond, connections
	e.print(r)
	return nil
}

// signedPerSecond is more than any round needs.
const signedPerSecond = 20_000

// runSigned measures signed heartbeats beside the bare verification of ed25519 on
// one core, in turns. Every request is signed before its round and sent once.
func (h hostBench) runSigned(ctx context.Context, e *env, server *process, keys []hostBenchKey) error {
	var rate, reference, ratio, p50, p99, cpu []float64
	for round := range e.rounds + 1 {
		requests, err := signAll(server.addr, keys, int(signedPerSecond*e.window.Seconds()))
		if err != nil {
			return err
		}
		load, err := newGenerator(server.addr, connections, requests)
		if err != nil {
			return err
		}
		before := server.cpu()
		m, err := load.sendFor(ctx, e.window)
		used := server.cpu() - before
		load.close()
		if err != nil {
			return err
		}
		bare := verifyRate(e.window / 2)
		if round == 0 { // warms up
			continue
		}
		rate, reference, ratio = append(rate, m.perSecond), append(reference, bare), append(ratio, m.perSecond/bare)
		p50, p99 = append(p50, float64(m.p50.Microseconds())/1000), append(p99, float64(m.p99.Microseconds())/1000)
		cpu = append(cpu, float64(used.Nanoseconds())/1000/float64(m.count))
	}
	e.print(result{Name: h.name(), Unit: "heartbeats/s", Goal: ">= 0.4", Against: "bare ed25519 verification, one core",
		Value: median(rate), Reference: median(reference), Ratio: median(ratio), Rounds: len(ratio),
		More: map[string]float64{"p50Ms": median(p50), "p99Ms": median(p99), "cpuMicros": median(cpu), "connections": connections}})
	return ctx.Err()
}

// verifyRate is how often one goroutine verifies a signature in a second.
func verifyRate(d time.Duration) float64 {
	public, private, _ := ed25519.GenerateKey(nil)
	message := make([]byte, 300) // about a signature base
	sig := ed25519.Sign(private, message)
	n, begun := 0, time.Now()
	for time.Since(begun) < d {
		for range 100 {
			ed25519.Verify(public, message, sig)
		}
		n += 100
	}
	return float64(n) / time.Since(begun).Seconds()
}

// hostBenchKey is a host with its key.
type hostBenchKey struct {
	app, id, secret, host string
	signer                ed25519.PrivateKey
}

func (k *hostBenchKey) body() []byte {
	b, _ := json.Marshal(api.HostHeartbeat{Host: k.host, CLIVersion: "0.9.1", RunnerProtocol: new(int64), PollSeconds: 30, SlotsUsed: 1, SlotsTotal: 4, WorkRequest: &api.WorkRequest{OK: true}})
	return b
}

// request is a heartbeat of the host; the moment stands in a header that nothing
// reads and no signature covers.
func (k *hostBenchKey) request(addr string, sign bool) (request, error) {
	const path, moment = "/v1/hosts/heartbeat", "X-Sent-At: "
	body := k.body()
	r, err := http.NewRequest("POST", "http://"+addr+path, nil)
	if err != nil {
		return request{}, err
	}
	if sign {
		s := httpsig.Signer{Profile: httpsig.Runner, Key: k.signer, KeyID: k.id, Now: time.Now}
		if err := s.SignRequest(r, body); err != nil {
			return request{}, err
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-Outerlayer-App-Id: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", path, addr, k.secret, k.app, len(body))
	_ = r.Header.Write(&b)
	b.WriteString(moment)
	at := b.Len()
	b.WriteString(momentLayout + "\r\n\r\n")
	b.Write(body)
	return request{b.Bytes(), at}, nil
}

// signAll makes n signed requests, in turns of the hosts.
func signAll(addr string, keys []hostBenchKey, n int) ([]request, error) {
	out := make([]request, n)
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += len(errs) {
				out[i], errs[w] = keys[i%len(keys)].request(addr, true)
			}
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

// operatorOf makes a gateway on the database and its caller in a new app.
func operatorOf(ctx context.Context, db *store.DB, data string) (*gateway.Gateway, gateway.Caller, string, error) {
	g, err := gateway.New(gateway.Options{DB: db, Dir: data, Tokens: func(context.Context, string) (iam.Caller, error) { return iam.System, nil }})
	if err != nil {
		return nil, gateway.Caller{}, "", err
	}
	as := func(app string) (gateway.Caller, error) {
		who, _, err := g.Admit(ctx, &gateway.Request{Authorization: "Bearer operator", AppID: app, NoApp: app == "", Body: func() ([]byte, error) { return nil, nil }})
		return who, err
	}
	who, err := as("")
	if err != nil {
		return nil, who, "", err
	}
	app, err := g.CreateApp(ctx, who, []byte(`{"name":"bench"}`), "")
	if err != nil {
		return nil, who, "", err
	}
	who, err = as(app.ID)
	return g, who, app.ID, err
}

// registerHosts makes an app with n keys, one for each host.
func registerHosts(ctx context.Context, data, url string, n int, signed bool) ([]hostBenchKey, error) {
	db, err := store.Open(ctx, store.Options{Dir: data, URL: url})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	g, who, app, err := operatorOf(ctx, db, data)
	if err != nil {
		return nil, err
	}
	keys := make([]hostBenchKey, n)
	errs := make([]error, registerers)
	var wg sync.WaitGroup
	for w := range registerers {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil && ctx.Err() == nil; i += registerers {
				keys[i] = hostBenchKey{app: app, host: fmt.Sprintf("host-%06d", i)}
				errs[w] = keys[i].register(ctx, g, who, signed)
			}
		})
	}
	wg.Wait()
	return keys, errors.Join(append(errs, ctx.Err())...)
}

func (k *hostBenchKey) register(ctx context.Context, g *gateway.Gateway, who gateway.Caller, signed bool) error {
	in := api.CreateAPIKey{Name: k.host, Permissions: []string{string(fleet.HostsIngest)}}
	if signed {
		public, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			return err
		}
		k.signer = private
		in.Runner = &api.RunnerKey{Host: k.host, PublicKey: base64.StdEncoding.EncodeToString(public)}
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	made, err := g.CreateKey(ctx, who, body, "")
	k.id, k.secret = made.ID, made.PlaintextKey
	return err
}

// hostListBench measures pages of a long list at its start and its end, beside
// the same page of a short list.
type hostListBench struct {
	database string
	hosts    int
}

func (h hostListBench) name() string {
	return fmt.Sprintf("gateway/list/%s/hosts=%d", h.database, h.hosts)
}

func (h hostListBench) run(ctx context.Context, e *env) error {
	if e.maxNodes <= 1_000 {
		h.hosts = 10_000
	}
	data, address, end, err := benchData(ctx, e, h.database)
	if err != nil {
		return err
	}
	defer end()
	db, err := store.Open(ctx, store.Options{Dir: data, URL: address})
	if err != nil {
		return err
	}
	defer db.Close()
	g, long, longID, err := operatorOf(ctx, db, data)
	if err != nil {
		return err
	}
	_, short, shortID, err := operatorOf(ctx, db, data)
	if err != nil {
		return err
	}
	if err := errors.Join(fillHosts(ctx, db, longID, h.hosts), fillHosts(ctx, db, shortID, 1_000)); err != nil {
		return err
	}
	timed := func(who gateway.Caller, query string) (float64, error) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return 0, err
		}
		begun := time.Now()
		_, err = g.ListHosts(ctx, who, q)
		return float64(time.Since(begun).Microseconds()) / 1000, err
	}
	last := h.hosts - 100
	queries := map[string]string{
		"firstMs": "limit=100", "lastByAfterMs": fmt.Sprintf("limit=100&after=host-%07d", last-1), "lastByOffsetMs": fmt.Sprintf("limit=100&offset=%d", last), "failingOnlyMs": "limit=100&status=failing",
	}
	samples := map[string][]float64{}
	for range 3 * e.rounds {
		for name, query := range queries {
			t, err := timed(long, query)
			if err != nil {
				return err
			}
			samples[name] = append(samples[name], t)
		}
		t, err := timed(short, "limit=100&after=host-0000899")
		if err != nil {
			return err
		}
		samples["short"] = append(samples["short"], t)
	}
	more := map[string]float64{}
	for name := range queries {
		more[name] = median(samples[name])
	}
	value, reference := more["lastByAfterMs"], median(samples["short"])
	e.print(result{Name: h.name(), Unit: "ms/page", Value: value, Reference: reference, Ratio: reference / value, Against: "the last page of a list of 1,000", Rounds: 3 * e.rounds, More: more})
	return nil
}

// fillHosts makes n hosts known by a heartbeat each.
func fillHosts(ctx context.Context, db *store.DB, app string, n int) error {
	errs := make([]error, registerers)
	var wg sync.WaitGroup
	for w := range registerers {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil && ctx.Err() == nil; i += registerers {
				b := store.HostBeat{AppID: app, Heartbeat: fleet.Heartbeat{Host: fmt.Sprintf("host-%07d", i), Asked: true,
					HostReport: fleet.HostReport{CLIVersion: "0.9.1", Protocol: 1, PollSeconds: 30, SlotsTotal: 4}}}
				if i%1000 == 0 {
					b.Blocked = "no /dev/kvm"
				}
				errs[w] = db.HostHeartbeat(ctx, &b)
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}
