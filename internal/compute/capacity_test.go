package compute_test

import (
	"math"
	"math/big"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// contract: N-11
func TestCommittable(t *testing.T) {
	const pib = int64(1) << 50
	for _, c := range []struct {
		total, reserved int64
		ratio           float64
		want            int64
	}{
		{100, 0, 2.3, 230}, // in float64 it is 229
		{10, 0, 1.1, 11},
		{3, 0, 0.1, 0},
		{30, 0, 0.1, 3},
		{29, 0, 0.1, 2},
		{7, 2, 1.5, 7}, // floor of 7.5, taken after the reservation
		{64, 4, 4, 240},
		{1<<53 + 1, 0, 1, 1<<53 + 1}, // float64 knows no such number
		{1<<53 + 1, 0, 3, 3*(1<<53) + 3},
		{math.MaxInt64, 0, 1, math.MaxInt64},
		{math.MaxInt64, 1, 1, math.MaxInt64 - 1},
		{math.MaxInt64, 0, 0.5, math.MaxInt64 / 2},
		{math.MaxInt64, 0, 2, math.MaxInt64}, // as far as a number goes
		{4 * pib, pib, 1.25, 15 * pib / 4},
		{8, 8, 4, 0},
		{8, 9, 4, 0}, // a reservation above the total is a finding, not a debt (N-04)
		{0, 0, 1, 0},
		{1, 0, 5e-324, 0},
		{1, 0, math.MaxFloat64, math.MaxInt64},
		{8, 0, 0, 0},
		{8, 0, -1, 0},
		{8, 0, math.NaN(), 0},
		{8, 0, math.Inf(1), 0},
	} {
		if got := compute.Committable(c.total, c.reserved, c.ratio); got != c.want {
			t.Errorf("Committable(%d, %d, %v) = %d, want %d", c.total, c.reserved, c.ratio, got, c.want)
		}
	}
}

// The formula once more, in the words of the contract, over whatever numbers.
// contract: N-11
func TestCommittableIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total, reserved := rapid.Int64Min(0).Draw(t, "total"), rapid.Int64Min(0).Draw(t, "reserved")
		// A ratio as a person writes it: a few digits with a point in between.
		digits, point := rapid.Int64Range(1, 99999).Draw(t, "digits"), rapid.IntRange(0, 6).Draw(t, "point")
		text := strconv.FormatInt(digits, 10) + "e-" + strconv.Itoa(point)
		ratio, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		exact, _ := new(big.Rat).SetString(text)
		exact.Mul(exact, new(big.Rat).SetInt(new(big.Int).Sub(big.NewInt(total), big.NewInt(reserved))))
		want := new(big.Int).Quo(exact.Num(), exact.Denom())
		if want.Sign() < 0 {
			want.SetInt64(0)
		}
		if !want.IsInt64() {
			want.SetInt64(math.MaxInt64)
		}
		if got := compute.Committable(total, reserved, ratio); got != want.Int64() {
			t.Fatalf("Committable(%d, %d, %s) = %d, want %d", total, reserved, text, got, want)
		}
	})
}

// contract: N-09
func TestReservations(t *testing.T) {
	const gib = int64(1) << 30
	for _, c := range []struct {
		vcpus, memory int64
		want, half    compute.Reservation
		tooLittle     bool
	}{
		{1, gib, compute.Reservation{2, 6 * gib}, compute.Reservation{0, gib / 2}, true},
		{2, 4 * gib, compute.Reservation{2, 6 * gib}, compute.Reservation{1, 2 * gib}, true},
		{4, 12 * gib, compute.Reservation{2, 6 * gib}, compute.Reservation{1, 3 * gib}, false}, // half of it is left
		{4, 12*gib - 1, compute.Reservation{2, 6 * gib}, compute.Reservation{1, 3 * gib}, true},
		{3, 64 * gib, compute.Reservation{2, 6*gib + 4*gib/10 + 1}, compute.Reservation{1, (6*gib + 4*gib/10 + 1) / 2}, true},
		{33, 60 * gib, compute.Reservation{2, 6 * gib}, compute.Reservation{1, 3 * gib}, false},
		{34, 60*gib + 1, compute.Reservation{3, 6*gib + 1}, compute.Reservation{1, 3 * gib}, false}, // 2.04, rounded up
		{128, 512 * gib, compute.Reservation{8, 51*gib + 2*gib/10 + 1}, compute.Reservation{4, (51*gib + 2*gib/10 + 1) / 2}, false},
		{math.MaxInt64, math.MaxInt64, compute.Reservation{553402322211286549, 922337203685477581}, compute.Reservation{276701161105643274, 461168601842738790}, false},
	} {
		if got := compute.ComputedReservation(c.vcpus, c.memory); got != c.want {
			t.Errorf("computed of %d vCPUs, %d bytes: %+v, want %+v", c.vcpus, c.memory, got, c.want)
		}
		if got := compute.HalfReservation(c.vcpus, c.memory); got != c.half {
			t.Errorf("half of %d vCPUs, %d bytes: %+v, want %+v", c.vcpus, c.memory, got, c.half)
		}
		if got := c.want.LeavesTooLittle(c.vcpus, c.memory); got != c.tooLittle {
			t.Errorf("%d vCPUs, %d bytes: leaves too little = %v, want %v", c.vcpus, c.memory, got, c.tooLittle)
		}
	}
}

// Who wrote the reservation, and what holds where several did.
// contract: N-09
func TestReservationSources(t *testing.T) {
	const gib = int64(1) << 30
	two, sixteen := int64(2), 16*gib
	for _, c := range []struct {
		name   string
		spec   compute.NodeSpec
		want   compute.Reservation
		source compute.ReservationSource
	}{
		{"reported", compute.NodeSpec{}, compute.Reservation{VCPUs: 1, MemoryBytes: gib}, compute.ReservationReported},
		{"computed", compute.NodeSpec{Computed: true}, compute.Reservation{VCPUs: 4, MemoryBytes: 12*gib + 8*gib/10 + 1}, compute.ReservationComputed},
		{"operator", compute.NodeSpec{ReservedVCPUs: &two, ReservedMemoryBytes: &sixteen}, compute.Reservation{VCPUs: 2, MemoryBytes: sixteen}, compute.ReservationOperator},
		{"operator over computed", compute.NodeSpec{Computed: true, ReservedVCPUs: &two, ReservedMemoryBytes: &sixteen}, compute.Reservation{VCPUs: 2, MemoryBytes: sixteen}, compute.ReservationOperator},
		{"operator for one only", compute.NodeSpec{ReservedVCPUs: &two}, compute.Reservation{VCPUs: 2, MemoryBytes: gib}, compute.ReservationOperator},
	} {
		n := compute.Node{Spec: c.spec}
		n.Facts.Capacity = compute.Capacity{TotalVCPUs: 64, ReservedVCPUs: 1, TotalMemoryBytes: 128 * gib, ReservedMemoryBytes: gib, VCPUOvercommitRatio: 1, MemoryOvercommitRatio: 1}
		if got, source := n.Reservation(); got != c.want || source != c.source {
			t.Errorf("%s: %+v by %s, want %+v by %s", c.name, got, source, c.want, c.source)
		}
	}
}

// contract: N-06 N-23 // lesson 1 // lesson 2
func TestLivenessEdges(t *testing.T) {
	const interval = time.Minute
	t0 := time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)
	long := t0.Add(-24 * time.Hour)
	for _, c := range []struct {
		name            string
		seen, listening time.Time
		after           time.Duration // since t0
		want            compute.LivenessStatus
		since           time.Time
	}{
		{"just seen", t0, long, 0, compute.LivenessOK, t0},
		{"one beat late", t0, long, 90 * time.Second, compute.LivenessOK, t0},
		{"later", t0, long, 90*time.Second + 1, compute.LivenessSuspect, t0.Add(90 * time.Second)},
		{"three missed", t0, long, 3 * time.Minute, compute.LivenessSuspect, t0.Add(90 * time.Second)},
		{"more than three", t0, long, 3*time.Minute + 1, compute.LivenessUnreachable, t0.Add(3 * time.Minute)},
		{"the server was away for a day", t0.Add(-23 * time.Hour), t0, 0, compute.LivenessOK, t0.Add(-23 * time.Hour)},
		{"and hears nothing for its whole window", t0.Add(-23 * time.Hour), t0, 3 * time.Minute, compute.LivenessSuspect, t0.Add(90 * time.Second)},
		{"and then", t0.Add(-23 * time.Hour), t0, 3*time.Minute + 1, compute.LivenessUnreachable, t0.Add(3 * time.Minute)},
		{"the clock was set back", t0.Add(time.Hour), long, 0, compute.LivenessOK, t0.Add(time.Hour)},
	} {
		status, since := compute.Liveness{SeenAt: c.seen, SampledAt: t0.Add(-time.Hour * 1000)}.Status(t0.Add(c.after), c.listening, interval)
		if status != c.want || !since.Equal(c.since) {
			t.Errorf("%s: %s since %s, want %s since %s", c.name, status, since, c.want, c.since)
		}
	}
}

// Facts are equal only when every field is: a beat that differs anywhere is news.
func TestFactsEqualSeesEveryField(t *testing.T) {
	yes := true
	whole := func() compute.NodeFacts {
		return compute.NodeFacts{Hostname: "h", Role: "hybrid", Region: "r", AvailabilityZone: "z", Architecture: "amd64", MachineID: "m", WakeOnLanMAC: "w", Capabilities: map[string]string{"a": "b"}}
	}
	for name, change := range map[string]func(*compute.NodeFacts){
		"hostname": func(f *compute.NodeFacts) { f.Hostname = "" }, "role": func(f *compute.NodeFacts) { f.Role = "" }, "region": func(f *compute.NodeFacts) { f.Region = "" },
		"zone": func(f *compute.NodeFacts) { f.AvailabilityZone = "" }, "architecture": func(f *compute.NodeFacts) { f.Architecture = "" },
		"machine": func(f *compute.NodeFacts) { f.MachineID = "" }, "wake": func(f *compute.NodeFacts) { f.WakeOnLanMAC = "" },
		"label value": func(f *compute.NodeFacts) { f.Capabilities["a"] = "c" }, "label more": func(f *compute.NodeFacts) { f.Capabilities["b"] = "" }, "label none": func(f *compute.NodeFacts) { f.Capabilities = nil },
		"vcpus": func(f *compute.NodeFacts) { f.Capacity.TotalVCPUs++ }, "reserved vcpus": func(f *compute.NodeFacts) { f.Capacity.ReservedVCPUs++ }, "vcpu ratio": func(f *compute.NodeFacts) { f.Capacity.VCPUOvercommitRatio++ },
		"committed vcpus": func(f *compute.NodeFacts) { f.Capacity.CommittedVCPUs++ }, "memory": func(f *compute.NodeFacts) { f.Capacity.TotalMemoryBytes++ },
		"reserved memory": func(f *compute.NodeFacts) { f.Capacity.ReservedMemoryBytes++ }, "memory ratio": func(f *compute.NodeFacts) { f.Capacity.MemoryOvercommitRatio++ },
		"committed memory": func(f *compute.NodeFacts) { f.Capacity.CommittedMemoryBytes++ }, "disk": func(f *compute.NodeFacts) { f.Capacity.TotalDiskBytes++ },
		"gpu": func(f *compute.NodeFacts) { f.Capacity.HasGPU = &yes }, "nested": func(f *compute.NodeFacts) { f.Capacity.HasNestedVirt = &yes }, "secure boot": func(f *compute.NodeFacts) { f.Capacity.HasSecureBoot = &yes },
		"tpm": func(f *compute.NodeFacts) { f.Capacity.HasTPM = &yes }, "cpu": func(f *compute.NodeFacts) { f.Capacity.Architecture = "x" }, "kvm": func(f *compute.NodeFacts) { f.Capacity.KVMVersion = "x" },
	} {
		a, b := whole(), whole()
		if !a.Equal(&b) {
			t.Fatal("the same is not equal")
		}
		change(&b)
		if a.Equal(&b) || b.Equal(&a) {
			t.Errorf("%s: a change is not seen", name)
		}
	}
}
