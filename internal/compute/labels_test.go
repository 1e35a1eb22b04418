package compute

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestLabelKindOf(t *testing.T) { // contract: N-12 N-13 N-16
	for key, want := range map[string]LabelKind{
		"topology.az":                       KindDescriptive,
		"topology.floor":                    KindDescriptive,
		"capability.cpu.model":              KindDescriptive,
		"capability.cpu.cores":              KindDescriptive,
		"capability.gpu.present":            KindBoolean,
		"capability.mem.ecc":                KindBoolean,
		"capability.sec.tpm":                KindBoolean,
		"capability.virt.nested":            KindBoolean,
		"capability.host.dev_mode":          KindBoolean,
		"capability.host.binaries_commit":   KindDescriptive,
		"capability.migration.transport":    KindDescriptive,
		"capability.net.sriov_vfs":          KindCountable,
		"capability.mem.hugepages_1g":       KindCountable,
		"capability.gpu.nvidia-l40s":        KindCountable,
		"capability.accel.intel-gaudi3":     KindCountable,
		"capability.gpu.":                   KindDescriptive,
		"capability.gpu":                    KindDescriptive,
		"capability.something.new":          KindDescriptive,
		"pool":                              KindOwn,
		"topologyx.az":                      KindOwn,
		"Capability.gpu.nvidia-l40s":        KindOwn,
		"example.com/capability.gpu.nvidia": KindOwn,
	} {
		if got := LabelKindOf(key); got != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
	}
}

func TestMergeLabels(t *testing.T) { // contract: N-12 N-14 N-15
	labels, overrides := MergeLabels(
		map[string]string{
			"pool": "web", "topology.rack": "r7", "capability.gpu.nvidia-l40s": "2", "capability.sec.tpm": "true",
			"capability.mem.ecc": "false", "topology.az": "elsewhere", "topology.floor": "3", "cpuModel": "x",
		},
		map[string]string{
			"pool": "batch", "topology.rack": "r1", "topology.power": "p1", "topology.az": "other", "hasGpu": "true",
			"migrationTransport": "down", "capability.gpu.nvidia-l40s": "4", "capability.sec.tpm": "true",
			"capability.virt.nested": "yes", "capability.net.sriov_vfs": "-1", "capability.mem.hugepages_1g": "0",
		}, "zone-a")
	want := map[string]string{
		"pool": "web", "topology.rack": "r7", "topology.az": "zone-a", "capability.gpu.nvidia-l40s": "2",
		"capability.sec.tpm": "true", "capability.mem.ecc": "false", "capability.mem.hugepages_1g": "0",
	}
	if !maps.Equal(labels, want) {
		t.Errorf("labels in effect:\n got %v\nwant %v", labels, want)
	}
	wantOver := []Override{{"capability.gpu.nvidia-l40s", "2", "4"}, {"pool", "web", "batch"}}
	if !slices.Equal(overrides, wantOver) {
		t.Errorf("overrides: got %v, want %v", overrides, wantOver)
	}
	if units := Countables(labels); !maps.Equal(units, map[string]int64{"capability.gpu.nvidia-l40s": 2, "capability.mem.hugepages_1g": 0}) {
		t.Errorf("countables: %v", units)
	}
	n := Node{Facts: NodeFacts{AvailabilityZone: "z", Capabilities: map[string]string{"a": "1"}}, Spec: NodeSpec{DeclaredCapabilities: map[string]string{"a": "2"}}}
	if l, o := n.Labels(); l["a"] != "2" || l[LabelZone] != "z" || len(o) != 1 {
		t.Errorf("a node's labels: %v, %v", l, o)
	}
}

func TestWithoutFormer(t *testing.T) { // contract: N-12
	old := map[string]string{"hasGpu": "true", "cpuModel": "x", "migrationTransport": "down", "pool": "web", "hasgpu": "own"}
	if got := WithoutFormer(old); !maps.Equal(got, map[string]string{"pool": "web", "hasgpu": "own"}) || len(old) != 5 {
		t.Errorf("%v of %v", got, old)
	}
	if got := WithoutFormer(nil); got != nil {
		t.Errorf("%v of none", got)
	}
}

func TestCheckDeclaredLabel(t *testing.T) {
	for _, tt := range []struct{ key, value, want string }{
		{"pool", "anything, at all", ""},
		{"pool", "", ""},
		{"topology.rack", "r1", ""},
		{"topology.rack", "", "needs a name"},
		{"topology.az", "z", "availability zone"},
		{"topology.floor", "3", "reserved"},
		{"hasGpu", "true", "of the past"},
		{"capability.gpu.nvidia-l40s", "4", ""},
		{"capability.gpu.nvidia-l40s", "4.5", "whole number"},
		{"capability.gpu.nvidia-l40s", "99999999999999999999", "whole number"},
		{"capability.mem.ecc", "yes", "true or false"},
		{"capability.new.thing", "yes", ""},
		{"", "x", "1 to 253"},
		{strings.Repeat("k", 254), "x", "1 to 253"},
		{"k", strings.Repeat("x", 1025), "1,024"},
	} {
		err := CheckDeclaredLabel(tt.key, tt.value)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.20s=%.20s: got %v, want %q", tt.key, tt.value, err, tt.want)
		}
	}
}

func TestFreeCountables(t *testing.T) { // contract: N-14 N-17
	total := map[string]int64{"a": 4, "b": 1, "c": 0}
	free := FreeCountables(total, map[string]int64{"a": 1, "b": 3, "gone": 2})
	if !maps.Equal(free, map[string]int64{"a": 3, "b": 0, "c": 0}) {
		t.Errorf("got %v", free)
	}
	if total["a"] != 4 {
		t.Error("the totals were changed")
	}
	if free := FreeCountables(nil, map[string]int64{"a": 1}); len(free) != 0 {
		t.Errorf("what is not reported became %v", free)
	}
}

// A dumb second way to merge: key by key.
func TestMergeLabelsProperty(t *testing.T) { // contract: N-15
	key := rapid.SampledFrom([]string{"pool", "x", "topology.rack", "topology.az", "topology.q", "hasGpu", "capability.sec.tpm",
		"capability.gpu.m", "capability.cpu.model"})
	value := rapid.SampledFrom([]string{"", "true", "false", "0", "3", "-1", "web"})
	rapid.Check(t, func(t *rapid.T) {
		declared := rapid.MapOf(key, value).Draw(t, "declared")
		detected := rapid.MapOf(key, value).Draw(t, "detected")
		labels, overrides := MergeLabels(declared, detected, "z")
		var want []Override
		for _, k := range slices.Sorted(maps.Keys(declared)) {
			if d, ok := detected[k]; ok && dumbDetected(k, d) && CheckDeclaredLabel(k, declared[k]) == nil && d != declared[k] {
				want = append(want, Override{k, declared[k], d})
			}
		}
		if !reflect.DeepEqual(overrides, want) {
			t.Fatalf("overrides %v, want %v", overrides, want)
		}
		for _, k := range []string{"pool", "x", "topology.rack", "topology.q", "hasGpu", "capability.sec.tpm", "capability.gpu.m", "capability.cpu.model"} {
			v, ok := declared[k]
			if ok = ok && CheckDeclaredLabel(k, v) == nil; !ok {
				v, ok = detected[k]
				ok = ok && dumbDetected(k, v)
			}
			if got, has := labels[k]; has != ok || ok && got != v {
				t.Fatalf("%s: got %q %v, want %q %v", k, got, has, v, ok)
			}
		}
		if labels[LabelZone] != "z" {
			t.Fatal("the zone's label is missing")
		}
	})
}

func dumbDetected(k, v string) bool {
	switch k {
	case "capability.sec.tpm":
		return v == "true" || v == "false"
	case "capability.gpu.m":
		return v == "0" || v == "3"
	}
	return !strings.HasPrefix(k, "topology.") && k != "hasGpu"
}
