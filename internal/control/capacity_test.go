package control_test

import (
	"math"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
)

// Nodes may report the largest numbers there are; their sum is the largest number, too,
// and no node's room is less for it.
// contract: N-04 N-11 N-17
func TestCapacityOfTheLargestNumbers(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		const all = int64(math.MaxInt64)
		h := apptest.Machine("")
		ratio := 4.0
		h.Capacity.TotalVCPUs, h.Capacity.TotalMemoryBytes, h.Capacity.TotalDiskBytes, h.Capacity.VCPUOvercommitRatio = all, all, all, &ratio
		h.Capabilities = map[string]string{gpu: "9223372036854775807"}
		for _, id := range []string{"n1", "n2", "n3"} {
			h.Hostname = id
			if got := s.NodeToken(id).Beat(h); got.CommittableVCPUs != all || got.CommittableMemoryBytes != all || got.FreeCapabilities[gpu] != all {
				t.Errorf("%s: %d, %d, %v", id, got.CommittableVCPUs, got.CommittableMemoryBytes, got.FreeCapabilities)
			}
		}
		i := placed(t, s, s.Create(project, api.CreateInstance{Countables: map[string]int64{gpu: 1}}).ID)
		if got := get(s, i.NodeID); got.FreeCapabilities[gpu] != all-1 || got.CommittedCapabilities[gpu] != 1 {
			t.Errorf("with one unit out: %v of %v", got.FreeCapabilities, got.CommittedCapabilities)
		}
		var c api.Capacity
		s.Operator.Do("GET", "/v1/compute/capacity", nil).Want(200).Decode(&c)
		want := func(what string, got api.CapacityAmount) {
			t.Helper()
			if got.Committable != all || got.Free != all || got.Committed <= 0 {
				t.Errorf("%s: %+v", what, got)
			}
		}
		want("vCPUs", c.Total.VCPUs)
		want("memory", c.Total.MemoryBytes)
		want("disk", c.Total.DiskBytes)
		if k := c.Total.Countables[gpu]; k.Total != all || k.Free != all || k.Committed != 1 || k.Nodes != 3 {
			t.Errorf("units: %+v", k)
		}
	})
}
