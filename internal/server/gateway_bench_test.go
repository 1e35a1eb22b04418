package server_test

import (
	"crypto/ed25519"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/gateway"
	"github.com/outcrop-cloud/outcrop/internal/limit"
)

// BenchmarkHostHeartbeat is one heartbeat of a runner host through the handler,
// store and commit included, without a connection: 256 hosts beat at the same
// time, each with a key of its own. x-verify compares the rate with that of the
// bare verification on one core, measured in the same run.
func BenchmarkHostHeartbeat(b *testing.B) {
	for _, signed := range []bool{false, true} {
		b.Run(fmt.Sprintf("signed=%v", signed), func(b *testing.B) { benchmarkHostHeartbeat(b, signed) })
	}
}

func benchmarkHostHeartbeat(b *testing.B, signed bool) {
	const hosts = 256
	e := sqliteGateway(b, func(o *gateway.Options) { o.Rate = limit.Rate{Burst: 1e9, PerSecond: 1e9} })
	app := e.newApp("bench")
	keys := make([]key, hosts)
	for i := range keys {
		if signed {
			keys[i] = e.newRunner(app, fmt.Sprint("host-", i))
		} else {
			keys[i] = e.newKey(app, "hosts.ingest")
		}
	}
	requests := make([]*http.Request, b.N)
	for i := range requests {
		k := keys[i%hosts]
		requests[i] = e.build(heartbeat(k, beat(fmt.Sprint("host-", i%hosts), "workRequest", map[string]any{"ok": true})), "http://bench")
		requests[i].RequestURI = "/v1/hosts/heartbeat"
		requests[i].RemoteAddr = "192.0.2.1:1234"
	}
	var next, failed atomic.Int64
	b.SetParallelism(hosts / runtime.GOMAXPROCS(0))
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			w := httptest.NewRecorder()
			e.handler.ServeHTTP(w, requests[next.Add(1)-1])
			if w.Code != http.StatusOK {
				failed.Add(1)
			}
		}
	})
	b.StopTimer()
	if n := failed.Load(); n > 0 {
		b.Errorf("%d of %d were refused", n, b.N)
	}
	if signed {
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/bareVerifications(), "x-verify")
	}
}

// bareVerifications is how often one core verifies an ed25519 signature in a
// second.
func bareVerifications() float64 {
	public, private, _ := ed25519.GenerateKey(nil)
	message := make([]byte, 300)
	sig := ed25519.Sign(private, message)
	n, begun := 0, time.Now()
	for ; time.Since(begun) < time.Second; n++ {
		ed25519.Verify(public, message, sig)
	}
	return float64(n) / time.Since(begun).Seconds()
}
