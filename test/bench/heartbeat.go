package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// connections is how many agents beat at the same moment, all the time.
const connections = 256

// heartbeats measures the durable heartbeat through the real server process,
// beside a bare net/http handler in a process of its own. The generator's cost
// is in both.
func heartbeats() (all []benchmark) {
	for _, database := range []string{"sqlite", "postgres"} {
		for _, nodes := range []int{1_000, 10_000, 100_000} {
			h := heartbeatBench{database, nodes}
			all = append(all, benchmark{h.name(), h.run})
		}
	}
	return all
}

type heartbeatBench struct {
	database string
	nodes    int
}

func (h heartbeatBench) name() string {
	return fmt.Sprintf("heartbeat/%s/nodes=%d", h.database, h.nodes)
}

func (h heartbeatBench) run(ctx context.Context, e *env) error {
	if h.nodes > e.maxNodes {
		return nil
	}
	data, err := os.MkdirTemp(e.dir, "server-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	url := ""
	if h.database == "postgres" {
		pg, err := startPostgres(ctx, e.dir)
		if err != nil {
			return err
		}
		defer pg.stop()
		url = pg.url
	}
	tokens, err := register(ctx, data, url, h.nodes)
	if err != nil {
		return fmt.Errorf("registering nodes: %w", err)
	}
	server, err := e.startServer(ctx, data, url)
	if err != nil {
		return err
	}
	defer server.stop()
	bare, err := startBare(ctx)
	if err != nil {
		return err
	}
	defer bare.stop()
	p := pair{processes: [2]*process{server, bare}}
	for i, process := range p.processes {
		requests, err := heartbeatRequests(process.addr, tokens)
		if err != nil {
			return err
		}
		if p.load[i], err = newGenerator(process.addr, connections, requests); err != nil {
			return err
		}
		defer p.load[i].close()
	}
	first, err := p.load[0].sendAll(ctx) // every node once: the server now knows them all
	if err != nil {
		return err
	}
	if err := p.measure(ctx, e.rounds, e.window); err != nil {
		return err
	}
	r := p.result()
	r.Name, r.Unit, r.Better, r.Goal, r.Against = h.name(), "heartbeats/s", higher, ">= 0.25", "bare net/http handler that reads the body"
	r.More["firstBeatsPerSecond"] = first.perSecond
	r.More["connections"] = connections
	e.print(r)
	return nil
}

// pair is a server and its reference under the same load, in turns.
type pair struct {
	processes [2]*process
	load      [2]*generator

	perSecond, p50, p99, cpu [2][]float64
	ratios                   []float64
}

func (p *pair) measure(ctx context.Context, rounds int, window time.Duration) error {
	for round := range rounds + 1 {
		for i := range 2 {
			before := p.processes[i].cpu()
			m, err := p.load[i].sendFor(ctx, window)
			if err != nil {
				return err
			}
			used := p.processes[i].cpu() - before
			if round == 0 { // warms up
				continue
			}
			p.perSecond[i] = append(p.perSecond[i], m.perSecond)
			p.p50[i] = append(p.p50[i], float64(m.p50.Microseconds())/1000)
			p.p99[i] = append(p.p99[i], float64(m.p99.Microseconds())/1000)
			p.cpu[i] = append(p.cpu[i], float64(used.Nanoseconds())/1000/float64(m.count))
		}
		if round > 0 {
			p.ratios = append(p.ratios, p.perSecond[0][round-1]/p.perSecond[1][round-1])
		}
	}
	return ctx.Err()
}

func (p *pair) result() result {
	more := map[string]float64{}
	for i, who := range []string{"", "Reference"} {
		more["p50Ms"+who], more["p99Ms"+who] = median(p.p50[i]), median(p.p99[i])
		more["cpuMicros"+who] = median(p.cpu[i]) // of the process, for each answer
	}
	return result{Value: median(p.perSecond[0]), Reference: median(p.perSecond[1]), Ratio: median(p.ratios), Rounds: len(p.ratios), More: more}
}

func nodeName(i int) string { return fmt.Sprintf("node-%06d", i) }

// sample is a heartbeat as `outcrop node` sends it from a common server.
func sample(hostname string) *api.Heartbeat {
	yes, no, one := true, false, 1.0
	return &api.Heartbeat{
		Hostname: hostname, Role: "hypervisor", Architecture: "amd64",
		Capacity: api.HeartbeatCapacity{
			TotalVCPUs: 64, ReservedVCPUs: 2, VCPUOvercommitRatio: &one, CommittedVCPUs: 12,
			TotalMemoryBytes: 270_582_939_648, ReservedMemoryBytes: 13_529_146_982, MemoryOvercommitRatio: &one, CommittedMemoryBytes: 25_769_803_776,
			TotalDiskBytes: 1_920_383_410_176, HasGPU: &no, HasNestedVirt: &yes, HasSecureBoot: &yes, HasTPM: &yes, Architecture: "x86_64", KVMVersion: "6.1.0-57",
		},
		Capabilities: map[string]string{
			"capability.cpu.model": "AMD EPYC 7543P 32-Core Processor", "capability.cpu.sockets": "1", "capability.cpu.cores": "32",
			"capability.cpu.threads": "64", "capability.gpu.present": "false", "capability.mem.ecc": "true", "capability.sec.tpm": "true",
			"capability.virt.nested": "true", "capability.net.sriov_vfs": "16", "capability.mem.hugepages_1g": "0",
		},
		BootID: "0b7ae43c-9ae5-4d5b-9fd8-0e2d2f5a9c11", MachineID: "5d41402abc4b2a76b9719d911017c592",
	}
}

func heartbeatRequests(addr string, tokens []string) ([]request, error) {
	out := make([]request, len(tokens))
	for i, token := range tokens {
		body, err := body(nodeName(i))
		if err != nil {
			return nil, err
		}
		if out[i], err = newRequest("PUT", "/v1/compute/nodes/"+nodeName(i)+"/heartbeat", addr, token, body); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func body(node string) ([]byte, error) {
	h := struct {
		*api.Heartbeat
		Capacity struct {
			api.HeartbeatCapacity
			SampledAt string `json:"sampledAt"`
		} `json:"capacity"`
	}{Heartbeat: sample(node)}
	h.Capacity.HeartbeatCapacity, h.Capacity.SampledAt = h.Heartbeat.Capacity, momentLayout
	return json.Marshal(h)
}

// registerers is how many nodes are registered at the same time; they share
// transactions.
const registerers = 512

// register makes n nodes known, each with a token of its own, through the store.
func register(ctx context.Context, data, url string, n int) (tokens []string, err error) {
	db, err := store.Open(ctx, store.Options{Dir: data, URL: url})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	c, err := control.New(control.Options{DB: db, Dir: data})
	if err != nil {
		return nil, err
	}
	tokens = make([]string, n)
	errs := make([]error, registerers)
	var wg sync.WaitGroup
	for w := range registerers {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil && ctx.Err() == nil; i += registerers {
				tokens[i], errs[w] = registerOne(ctx, c, nodeName(i))
			}
		})
	}
	wg.Wait()
	return tokens, errors.Join(append(errs, ctx.Err())...)
}

func registerOne(ctx context.Context, c *control.Control, node string) (string, error) {
	t, err := c.CreateToken(ctx, iam.System, api.CreateToken{Role: string(iam.Node), NodeID: node})
	if err != nil {
		return "", err
	}
	first, err := json.Marshal(sample(node))
	if err != nil {
		return "", err
	}
	_, err = c.Heartbeat(ctx, iam.Caller{Role: iam.Node, NodeID: node}, node, first)
	return t.Secret, err
}
