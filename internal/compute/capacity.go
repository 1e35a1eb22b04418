package compute

import (
	"math"
	"math/big"
	"strconv"
)

// Committable is what a node can have committed of one resource:
// floor((total − reserved) × ratio), never below 0 and never beyond the largest
// int64 (contract N-11). The ratio counts as the decimal number that was
// written, so 100 × 2.3 is 230 although no float64 is 2.3.
func Committable(total, reserved int64, ratio float64) int64 {
	if total <= reserved {
		return 0
	}
	free := new(big.Int).Sub(big.NewInt(total), big.NewInt(reserved))
	if ratio == 1 {
		return clamp(free)
	}
	r, ok := new(big.Rat).SetString(strconv.FormatFloat(ratio, 'g', -1, 64))
	if !ok || r.Sign() <= 0 {
		return 0
	}
	free.Mul(free, r.Num())
	return clamp(free.Quo(free, r.Denom()))
}

func clamp(n *big.Int) int64 {
	if n.IsInt64() {
		return n.Int64()
	}
	return math.MaxInt64
}

// Reservation is what a node keeps for itself, off the total before the ratio.
type Reservation struct {
	VCPUs       int64
	MemoryBytes int64
}

const gib = int64(1) << 30

// ComputedReservation is the default of a single-node install: vCPUs
// max(2, 6 % of the threads), memory max(6 GiB, 10 % of RAM), rounded up
// (contract N-09).
func ComputedReservation(vcpus, memoryBytes int64) Reservation {
	return Reservation{
		VCPUs:       max(2, ceilPercent(vcpus, 6)),
		MemoryBytes: max(6*gib, ceilPercent(memoryBytes, 10)),
	}
}

// HalfReservation is the most that `outcrop node` reports by itself: half of the
// computed bounds, and never more than half of the machine, so that an instance
// still fits on a small one (contract N-09).
func HalfReservation(vcpus, memoryBytes int64) Reservation {
	c := ComputedReservation(vcpus, memoryBytes)
	return Reservation{
		VCPUs:       min(c.VCPUs/2, vcpus/2),
		MemoryBytes: min(c.MemoryBytes/2, memoryBytes/2),
	}
}

// LeavesTooLittle reports whether r takes more than half of the machine.
func (r Reservation) LeavesTooLittle(vcpus, memoryBytes int64) bool {
	return r.VCPUs > vcpus/2 || r.MemoryBytes > memoryBytes/2
}

func ceilPercent(n, percent int64) int64 {
	v := new(big.Int).Mul(big.NewInt(n), big.NewInt(percent))
	v.Add(v, big.NewInt(99))
	return v.Quo(v, big.NewInt(100)).Int64()
}
