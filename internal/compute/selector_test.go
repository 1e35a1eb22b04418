package compute

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseSelectors(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []Selector
	}{
		{"", nil},
		{"  ", nil},
		{"pool", []Selector{{Key: "pool", Op: OpExists}}},
		{"!pool", []Selector{{Key: "pool", Op: OpMissing}}},
		{"pool=web", []Selector{{Key: "pool", Op: OpIn, Values: []string{"web"}}}},
		{"pool == web", []Selector{{Key: "pool", Op: OpIn, Values: []string{"web"}}}},
		{"pool!=web", []Selector{{Key: "pool", Op: OpNotIn, Values: []string{"web"}}}},
		{"pool in (a, b)", []Selector{{Key: "pool", Op: OpIn, Values: []string{"a", "b"}}}},
		{"pool not in (a,b) , x", []Selector{{Key: "pool", Op: OpNotIn, Values: []string{"a", "b"}}, {Key: "x", Op: OpExists}}},
		{"in in (in)", []Selector{{Key: "in", Op: OpIn, Values: []string{"in"}}}},
		{"capability.gpu.nvidia-l40s>=2", []Selector{{Key: "capability.gpu.nvidia-l40s", Op: OpAtLeast, Min: 2}}},
		{`capability.cpu.model="Intel(R) Xeon, \"gold\""`,
			[]Selector{{Key: "capability.cpu.model", Op: OpIn, Values: []string{`Intel(R) Xeon, "gold"`}}}},
		{"capability.sec.tpm=true,topology.rack=r1", []Selector{
			{Key: "capability.sec.tpm", Op: OpIn, Values: []string{"true"}}, {Key: "topology.rack", Op: OpIn, Values: []string{"r1"}}}},
	} {
		got, err := ParseSelectors(tt.text)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, %v, want %+v", tt.text, got, err, tt.want)
		}
	}
}

func TestParseSelectorsRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"a,":                        "a selector after the comma",
		"a b":                       "at character 3",
		"=a":                        "a label's key",
		"a=":                        "a value for a, found the end",
		"a in (":                    "a value",
		"a in (b":                   `"," or ")"`,
		"a in b":                    `"(" after in`,
		"a not (b)":                 "not in",
		`a="b`:                      "closing quote",
		"a>=1":                      "not countable",
		"capability.cpu.cores>=8":   "not countable", // contract: N-13
		"capability.gpu.x>=-1":      "whole number",
		"capability.gpu.x>=many":    "whole number",
		"capability.sec.tpm=yes":    "true or false",
		"capability.mem.ecc in (1)": "true or false",
		strings.Repeat("a,", 40):    "at most 32",
		strings.Repeat("a", 9000):   "at most 8192 bytes",
	} {
		if _, err := ParseSelectors(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// An absent label equals nothing, is not false and not zero. contract: N-14
func TestSelectorMatches(t *testing.T) {
	labels := map[string]string{
		"pool": "web", "capability.sec.tpm": "false", "capability.net.sriov_vfs": "0", "capability.gpu.l40s": "4",
	}
	for text, want := range map[string]bool{
		"pool=web":                     true,
		"pool=Web":                     false,
		"pool!=web":                    false,
		"pool in (db, web)":            true,
		"other=web":                    false,
		"other!=web":                   true,
		"other not in (web)":           true,
		"!other":                       true,
		"other":                        false,
		"capability.sec.tpm=false":     true,
		"capability.mem.ecc=false":     false,
		"!capability.mem.ecc":          true,
		"capability.net.sriov_vfs=0":   true,
		"capability.net.sriov_vfs>=0":  true,
		"capability.net.sriov_vfs>=1":  false,
		"capability.gpu.l40s>=4":       true,
		"capability.gpu.l40s>=5":       false,
		"capability.gpu.a100>=0":       false,
		"capability.mem.hugepages_1g":  false,
		"!capability.mem.hugepages_1g": true,
	} {
		list, err := ParseSelectors(text)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %v", text, err)
		}
		if got := list[0].Matches(labels); got != want {
			t.Errorf("%s: got %v", text, got)
		}
	}
}

func FuzzParseSelectors(f *testing.F) {
	for _, s := range []string{"", "a,!b", "a in (b, c)", `"x y" not in ("")`, "capability.gpu.x>=3", `a!="\xff"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseSelectors(text)
		if err != nil {
			return
		}
		var again []string
		for _, s := range list {
			again = append(again, s.String())
		}
		if len(strings.Join(again, ",")) > MaxSelectorsText {
			return
		}
		got, err := ParseSelectors(strings.Join(again, ","))
		if err != nil || !reflect.DeepEqual(got, list) {
			t.Errorf("%q reads as %+v, written %q, reads back as %+v, %v", text, list, again, got, err)
		}
	})
}
