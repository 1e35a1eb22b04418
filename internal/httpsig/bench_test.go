package httpsig

import (
	"crypto/ed25519"
	"testing"
	"time"
)

// The two benchmarks report their cost as a multiple of the bare ed25519
// operation over the same base, measured in the same run: heartbeats are a hot
// path, and all that is ours there should be small beside the curve.

func BenchmarkSign(b *testing.B) {
	signer, m, body := benchSigner(), heartbeat(), []byte(heartbeatBody)
	base := benchBase(b, m)
	b.ReportAllocs()
	reportRatio(b, func() { ed25519.Sign(testKey, base) }, func() {
		if err := signer.Sign(m, body); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	m, body := heartbeat(), []byte(heartbeatBody)
	if err := benchSigner().Sign(m, body); err != nil {
		b.Fatal(err)
	}
	base := benchBase(b, m)
	sig := ed25519.Sign(testKey, base)
	policy := testPolicy(testNow)
	b.ReportAllocs()
	reportRatio(b, func() { ed25519.Verify(testPub, base, sig) }, func() {
		if _, err := policy.Verify(m, body, oneKey); err != nil {
			b.Fatal(err)
		}
	})
}

func benchSigner() *Signer {
	return &Signer{Profile: Runner, Key: testKey, KeyID: "key-1", Now: clock(testNow)}
}

func benchBase(b *testing.B, m *Message) []byte {
	in := Input{Components: Runner.Components, Created: testNow.Unix(), Nonce: "0123456789abcdefghijkl", KeyID: "key-1", Alg: "ed25519"}
	if m.Header[headerDigest] == nil {
		m.Header[headerDigest] = []string{ContentDigest(SHA256, []byte(heartbeatBody))}
	}
	base, err := in.AppendBase(nil, m)
	if err != nil {
		b.Fatal(err)
	}
	return base
}

// reportRatio runs both in turns, so that a busy machine slows both alike. The
// framework's own ns/op is the sum of the two; the bare operation allocates
// nothing but a signature, so allocs/op are ours.
func reportRatio(b *testing.B, bare, ours func()) {
	var tBare, tOurs time.Duration
	for b.Loop() {
		start := time.Now()
		bare()
		mid := time.Now()
		ours()
		tBare += mid.Sub(start)
		tOurs += time.Since(mid)
	}
	b.ReportMetric(float64(tOurs)/float64(tBare), "x-bare")
	b.ReportMetric(float64(tOurs.Nanoseconds())/float64(b.N), "ns/ours")
	b.ReportMetric(float64(tBare.Nanoseconds())/float64(b.N), "ns/bare")
}
