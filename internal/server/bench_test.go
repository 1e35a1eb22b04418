package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// BenchmarkHeartbeat is one heartbeat through the handler, store and commit
// included, without a connection: 256 agents beat at the same time, each with
// a token of its own. x-bare-allocs compares its allocations with those of a
// handler that reads the body and answers.
func BenchmarkHeartbeat(b *testing.B) {
	const agents = 256
	h, tokens := heartbeatServer(b, agents)
	bodies := make([][]byte, agents)
	for i := range bodies {
		bodies[i] = benchBody(b, i)
	}
	for i := range agents { // the first one of each is another matter
		h.ServeHTTP(&benchWriter{header: http.Header{}}, benchRequest(i, tokens[i], bodies[i]))
	}
	var agent atomic.Int64
	bareAllocs := testing.AllocsPerRun(100, func() {
		r := benchRequest(0, tokens[0], bodies[0])
		bareHandler(&benchWriter{header: http.Header{}}, r)
	})
	b.SetParallelism(agents / runtime.GOMAXPROCS(0))
	b.ReportAllocs()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		i := int(agent.Add(1)-1) % agents
		w := &benchWriter{header: http.Header{}}
		for pb.Next() {
			clear(w.header)
			w.status = 0
			h.ServeHTTP(w, benchRequest(i, tokens[i], bodies[i]))
			if w.status != http.StatusOK {
				b.Errorf("status %d", w.status)
				return
			}
		}
	})
	b.StopTimer()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(b.N)/bareAllocs, "x-bare-allocs")
	b.ReportMetric(bareAllocs, "bare-allocs/op")
}

func heartbeatServer(b testing.TB, agents int) (http.Handler, []string) {
	dir := b.TempDir()
	db, err := store.Open(b.Context(), store.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	c, err := control.New(control.Options{DB: db, Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	tokens := make([]string, agents)
	for i := range tokens {
		t, err := c.CreateToken(b.Context(), iam.System, api.CreateToken{Role: string(iam.Node), NodeID: benchNode(i)})
		if err != nil {
			b.Fatal(err)
		}
		tokens[i] = t.Secret
	}
	return New(c, slog.New(slog.DiscardHandler), "bench").Handler(), tokens
}

func benchNode(i int) string { return fmt.Sprintf("node-%03d", i) }

func benchBody(b *testing.B, i int) []byte {
	yes, one, now := true, 1.0, time.Now()
	body, err := json.Marshal(api.Heartbeat{
		Hostname: benchNode(i), Role: "hypervisor", Architecture: "amd64",
		Capacity: api.HeartbeatCapacity{
			TotalVCPUs: 64, ReservedVCPUs: 2, VCPUOvercommitRatio: &one, TotalMemoryBytes: 256 << 30, ReservedMemoryBytes: 8 << 30,
			MemoryOvercommitRatio: &one, TotalDiskBytes: 2 << 40, HasNestedVirt: &yes, HasTPM: &yes, Architecture: "x86_64", KVMVersion: "6.1.0", SampledAt: &now,
		},
		Capabilities: map[string]string{
			"capability.cpu.model": "AMD EPYC 7543P 32-Core Processor", "capability.cpu.sockets": "1", "capability.cpu.cores": "32",
			"capability.cpu.threads": "64", "capability.gpu.present": "false", "capability.mem.ecc": "true", "capability.sec.tpm": "true",
			"capability.virt.nested": "true", "capability.net.sriov_vfs": "16", "capability.mem.hugepages_1g": "0",
		},
		BootID: "0b7ae43c-9ae5-4d5b-9fd8-0e2d2f5a9c11", MachineID: "5d41402abc4b2a76b9719d911017c592",
	})
	if err != nil {
		b.Fatal(err)
	}
	return body
}

func benchRequest(i int, token string, body []byte) *http.Request {
	r, _ := http.NewRequest("PUT", "http://localhost/v1/compute/nodes/"+benchNode(i)+"/heartbeat", bytes.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	return r
}

func bareHandler(w http.ResponseWriter, r *http.Request) {
	_, _ = io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"ok":true}`))
}

// benchWriter takes an answer and keeps nothing of it.
type benchWriter struct {
	header http.Header
	status int
}

func (w *benchWriter) Header() http.Header         { return w.header }
func (w *benchWriter) WriteHeader(status int)      { w.status = status }
func (w *benchWriter) Write(b []byte) (int, error) { return len(b), nil }
