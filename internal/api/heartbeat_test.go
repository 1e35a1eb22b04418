package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	jsonv2 "github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// printed is the body of the document's own curl example, as printed.
const printed = `{ "hostname": "example", "role": "hybrid", "region": "example", "availabilityZone": "example", "architecture": "amd64", "capacity": { "totalVCPUs": 1, "reservedVCPUs": 1, "vcpuOvercommitRatio": 1, "committedVCPUs": 1, "totalMemoryBytes": 1, "reservedMemoryBytes": 1, "memoryOvercommitRatio": 1, "committedMemoryBytes": 1, "totalDiskBytes": 1, "hasGPU": true, "hasNestedVirt": true, "hasSecureBoot": true, "hasTPM": true, "architecture": "example", "kvmVersion": "example", "sampledAt": "2026-04-15T12:00:00Z" }, "capabilities": { "additionalProperty": "example" } }`

// with is the printed example with one JSON value in place of a field's; a path
// has a dot where it is inside of an object, "" as value takes the field away.
func with(t testing.TB, path, value string) string {
	t.Helper()
	var h map[string]any
	if err := json.Unmarshal([]byte(printed), &h); err != nil {
		t.Fatal(err)
	}
	at, name := h, path
	if outer, inner, nested := strings.Cut(path, "."); nested {
		at, name = h[outer].(map[string]any), inner
	}
	if value == "" {
		delete(at, name)
	} else {
		at[name] = json.RawMessage(value)
	}
	b, err := json.Marshal(h)
	if err != nil {
		// Not JSON at all, as NaN: put it in as text.
		at[name] = "@@"
		if b, err = json.Marshal(h); err != nil {
			t.Fatal(err)
		}
		return strings.Replace(string(b), `"@@"`, value, 1)
	}
	return string(b)
}

func quoted(n int, char string) string { return `"` + strings.Repeat(char, n) + `"` }

func labels(n int) string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("k%d", i)] = "v"
	}
	b, _ := json.Marshal(m)
	return string(b)
}

// Every field's edges, both sides of each. Empty as the problem means accepted.
// contract: N-02 N-03 N-04 N-14 E-02
func TestHeartbeatEdges(t *testing.T) {
	counts := []string{"capacity.totalVCPUs", "capacity.reservedVCPUs", "capacity.committedVCPUs", "capacity.totalMemoryBytes",
		"capacity.reservedMemoryBytes", "capacity.committedMemoryBytes", "capacity.totalDiskBytes"}
	type edge struct{ path, value, at string } // at: the field that is at fault
	edges := []edge{
		{"hostname", quoted(253, "a"), ""}, {"hostname", quoted(253, "é"), ""}, {"hostname", quoted(254, "a"), "hostname"}, {"hostname", quoted(254, "é"), "hostname"},
		{"hostname", `"a"`, ""}, {"hostname", `""`, "hostname"}, {"hostname", "", "hostname"}, {"hostname", "null", "hostname"}, {"hostname", "1", "hostname"},
		{"role", `"hybrid"`, ""}, {"role", `"hypervisor"`, ""}, {"role", `"control-plane"`, ""}, {"role", `"storage"`, ""},
		{"role", `"Hybrid"`, "role"}, {"role", `""`, "role"}, {"role", "", "role"}, {"role", "[]", "role"},
		{"architecture", `"amd64"`, ""}, {"architecture", `"arm64"`, ""}, {"architecture", `"riscv64"`, "architecture"}, {"architecture", "", "architecture"},
		{"bootId", `"a\u0000"`, "bootId"}, {"machineId", `"a\u0000"`, ""}, // the boot stands in a column of its own
		{"capabilities", "", ""}, {"capabilities", "null", ""}, {"capabilities", "{}", ""}, {"capabilities", labels(512), ""}, {"capabilities", labels(513), "capabilities"},
		{"capabilities", `{` + quoted(253, "k") + `:"v"}`, ""}, {"capabilities", `{` + quoted(254, "k") + `:"v"}`, "capabilities"}, {"capabilities", `{"":"v"}`, "capabilities"},
		{"capabilities", `{"k":` + quoted(1024, "v") + `}`, ""}, {"capabilities", `{"k":` + quoted(1024, "é") + `}`, ""}, {"capabilities", `{"k":` + quoted(1025, "v") + `}`, "capabilities.k"},
		{"capabilities", `{"k":""}`, ""}, {"capabilities", `{"k":null}`, "capabilities.k"}, {"capabilities", `{"k":1}`, "capabilities.k"}, {"capabilities", `[]`, "capabilities"},
		{"capacity", "", "capacity"}, {"capacity", "null", "capacity"}, {"capacity", "[]", "capacity"},
		{"capacity.architecture", `"anything at all"`, ""},
		{"capacity.sampledAt", "", ""}, {"capacity.sampledAt", "null", ""}, {"capacity.sampledAt", `"2026-04-15T12:00:00.123456789+02:00"`, ""},
		{"capacity.sampledAt", `"1970-01-01T00:00:00Z"`, ""}, {"capacity.sampledAt", `"9999-12-31T23:59:59Z"`, ""}, // a dead or wild clock
		{"capacity.sampledAt", `"yesterday"`, "capacity.sampledAt"}, {"capacity.sampledAt", `""`, "capacity.sampledAt"}, {"capacity.sampledAt", "1744718400", "capacity.sampledAt"},
		{"capacity.sampledAt", `"2026-02-30T12:00:00Z"`, "capacity.sampledAt"}, {"capacity.sampledAt", `"2026-04-15"`, "capacity.sampledAt"},
		{"future", `{"a":[1,2,{"b":null}]}`, ""}, {"capacity.future", "1", ""}, {"Hostname", "1", ""}, // unknown is ignored, and names are exact
	}
	for _, c := range []string{"bootId", "machineId", "wakeOnLanMac", "region", "availabilityZone", "capacity.architecture", "capacity.kvmVersion"} {
		edges = append(edges, edge{c, "", ""}, edge{c, "null", ""}, edge{c, `""`, ""}, edge{c, `"a"`, ""}, edge{c, quoted(1024, "r"), ""}, edge{c, quoted(1024, "é"), ""},
			edge{c, quoted(1025, "r"), c}, edge{c, quoted(1025, "é"), c}, edge{c, "7", c}, edge{c, "true", c}, edge{c, "{}", c}, edge{c, "[]", c})
	}
	for _, c := range counts {
		missing := c
		if strings.Contains(c, "reserved") || strings.Contains(c, "committed") {
			missing = "" // defaults to 0
		}
		edges = append(edges,
			edge{c, "0", ""}, edge{c, "-0", ""}, edge{c, "9223372036854775807", ""}, edge{c, "9223372036854775808", c}, edge{c, "1.0", ""}, edge{c, "1e3", ""}, edge{c, "10e-1", ""},
			edge{c, "-1", c}, edge{c, "1.5", c}, edge{c, "1e-1", c}, edge{c, "1e19", c}, edge{c, "1e400", c}, edge{c, "1e-400", c}, edge{c, "1e-999999999", c},
			edge{c, `"1"`, c}, edge{c, "true", c}, edge{c, "[1]", c}, edge{c, "{}", c}, edge{c, "", missing}, edge{c, "null", missing},
			edge{c, "NaN", "body"}, edge{c, "Infinity", "body"}, edge{c, "01", "body"}, edge{c, "+1", "body"}, edge{c, "0x10", "body"})
	}
	for _, r := range []string{"capacity.vcpuOvercommitRatio", "capacity.memoryOvercommitRatio"} {
		edges = append(edges, edge{r, "0.1", ""}, edge{r, "2.3", ""}, edge{r, "1e3", ""}, edge{r, "5e-324", ""}, edge{r, "1.7976931348623157e308", ""}, edge{r, "", ""}, edge{r, "null", ""},
			edge{r, "0", r}, edge{r, "-0.0", r}, edge{r, "-1", r}, edge{r, "1e400", r}, edge{r, "1e-400", r}, edge{r, `"1"`, r}, edge{r, "true", r}, edge{r, "NaN", "body"}, edge{r, "-Infinity", "body"})
	}
	for _, b := range []string{"capacity.hasGPU", "capacity.hasNestedVirt", "capacity.hasSecureBoot", "capacity.hasTPM"} {
		edges = append(edges, edge{b, "true", ""}, edge{b, "false", ""}, edge{b, "", ""}, edge{b, "null", ""}, edge{b, "1", b}, edge{b, `"true"`, b})
	}
	for _, e := range edges {
		_, err := DecodeHeartbeat([]byte(with(t, e.path, e.value)))
		show := e.value
		if len(show) > 40 {
			show = show[:40] + "…"
		}
		switch {
		case e.at == "" && err != nil:
			t.Errorf("%s = %s: %v; want accepted", e.path, show, err)
		case e.at == "":
		case err == nil:
			t.Errorf("%s = %s: accepted; want a problem at %s", e.path, show, e.at)
		default:
			f := fault.From(err)
			at := strings.TrimPrefix(e.at, "body")
			if f.Kind != fault.Invalid || f.Code != fault.InvalidInput || len(f.Fields) != 1 || f.Fields[0].Path != at || f.Fields[0].Message == "" {
				t.Errorf("%s = %s: %+v; want one problem at %q", e.path, show, f.Fields, at)
			}
		}
	}
}

// contract: N-04
func TestHeartbeatAsPrinted(t *testing.T) {
	h, err := DecodeHeartbeat([]byte(printed))
	if err != nil {
		t.Fatal(err)
	}
	if h.Hostname != "example" || h.Capacity.Architecture != "example" || h.Capabilities["additionalProperty"] != "example" ||
		h.Capacity.HasTPM == nil || !*h.Capacity.HasTPM || h.Capacity.SampledAt == nil || *h.Capacity.VCPUOvercommitRatio != 1 {
		t.Errorf("read as %+v", h)
	}
}

// Absent is not reported, which is neither false nor zero.
// contract: N-02 N-14
func TestHeartbeatDefaults(t *testing.T) {
	const least = `{"hostname":"h","role":"storage","architecture":"arm64","capacity":{"totalVCPUs":0,"totalMemoryBytes":0,"totalDiskBytes":0}}`
	h, err := DecodeHeartbeat([]byte(least))
	if err != nil {
		t.Fatal(err)
	}
	c := h.Capacity
	if c.HasGPU != nil || c.HasTPM != nil || c.HasNestedVirt != nil || c.HasSecureBoot != nil || c.SampledAt != nil || c.VCPUOvercommitRatio != nil || h.Capabilities != nil {
		t.Errorf("something was made up: %+v", h)
	}
}

// contract: E-02
func TestHeartbeatNamesEveryProblemAtOnce(t *testing.T) {
	_, err := DecodeHeartbeat([]byte(`{"role":"king","architecture":7,"capacity":{"totalVCPUs":-1,"vcpuOvercommitRatio":0,"hasTPM":"yes","sampledAt":"x"},"capabilities":{"a":1}}`))
	var got []string
	for _, f := range fault.From(err).Fields {
		got = append(got, f.Path)
	}
	want := []string{"architecture", "capabilities.a", "capacity.hasTPM", "capacity.sampledAt", "capacity.totalDiskBytes", "capacity.totalMemoryBytes",
		"capacity.totalVCPUs", "capacity.vcpuOvercommitRatio", "hostname", "role"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("problems at %v\nwant %v", got, want)
	}
}

// What is no JSON object, in all its ways.
func TestHeartbeatThatIsNoObject(t *testing.T) {
	for name, body := range map[string]string{
		"empty": "", "spaces": "  \n", "null": "null", "array": "[]", "text": `"x"`, "number": "1", "cut": printed[:100], "two": printed + printed, "trailing": printed + "x",
		"twice": strings.Replace(printed, `"role"`, `"hostname": "b", "role"`, 1), "twice inside": strings.Replace(printed, `"hasGPU"`, `"totalVCPUs": 2, "hasGPU"`, 1),
		"not UTF-8": strings.Replace(printed, "kvmVersion\": \"", "kvmVersion\": \"\xff", 1), "lone surrogate": strings.Replace(printed, `"kvmVersion": "`, `"kvmVersion": "\ud800`, 1),
		"deep": strings.Repeat(`{"a":`, 100000) + "1" + strings.Repeat("}", 100000), "deep array": strings.Repeat("[", 1<<20), "comment": "/* */" + printed, "BOM": "\ufeff" + printed,
	} {
		_, err := DecodeHeartbeat([]byte(body))
		f := fault.From(err)
		if err == nil || f.Code != fault.InvalidInput || len(f.Fields) != 1 || f.Fields[0].Path != "" {
			t.Errorf("%s: %v; want one problem of the whole", name, err)
		}
		if len(f.Error()) > 500 {
			t.Errorf("%s: the message has %d bytes", name, len(f.Error()))
		}
	}
}

// A body at its bound is read within it, however it is made up.
func TestHeartbeatOfEightMiB(t *testing.T) {
	for name, filler := range map[string]string{
		"label": `"capabilities":{"k":"` + strings.Repeat("v", 8<<20) + `"}`, "number": `"x":0.` + strings.Repeat("1", 8<<20), "count": `"capacity":{"totalVCPUs":1` + strings.Repeat("0", 8<<20) + `}`,
		"fraction": `"capacity":{"totalVCPUs":1.` + strings.Repeat("0", 8<<20) + `}`, "escapes": `"hostname":"` + strings.Repeat(`\u00e9`, 1<<20) + `"`,
	} {
		if _, err := DecodeHeartbeat([]byte("{" + filler + "}")); err == nil || len(err.Error()) > 2000 {
			t.Errorf("%s: %.200v", name, err)
		}
	}
}

// schemaTakes is what the OpenAPI document says of a body. The schema language
// has no word for names that stand twice and text that is not UTF-8; they are
// not JSON to us.
func schemaTakes(t testing.TB, b []byte) bool {
	var tree any
	if jsonv2.Unmarshal(b, &tree) != nil {
		return false
	}
	registry := huma.NewMapRegistry("#/", huma.DefaultSchemaNamer)
	schema := registry.Schema(reflect.TypeFor[Heartbeat](), false, "")
	res := &huma.ValidateResult{}
	huma.Validate(registry, schema, huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, tree, res)
	return len(res.Errors) == 0 && namesFit(t, tree)
}

// namesFit holds labels against the schema's propertyNames, which huma does not.
func namesFit(t testing.TB, tree any) bool {
	labels, _ := tree.(map[string]any)["capabilities"].(map[string]any)
	names, ok := Labels{}.Schema(nil).Extensions["propertyNames"].(*huma.Schema)
	if !ok {
		t.Fatal("the schema of labels does not bound their names")
	}
	for k := range labels {
		if n := utf8.RuneCountInString(k); n < *names.MinLength || n > *names.MaxLength {
			return false
		}
	}
	return true
}

// inexact reports whether a body has numbers that the schema's float64 cannot
// judge, or that are longer than a number is read.
func inexact(b []byte) bool {
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	for {
		tok, err := d.Token()
		if err != nil {
			return false
		}
		if n, ok := tok.(json.Number); ok {
			f, err := n.Float64()
			if err != nil || len(n) > maxNumberText || f >= 1<<53 || f <= -(1<<53) || (f != 0 && f < 1e-300 && f > -1e-300) || (f == 0 && strings.ContainsAny(string(n), "123456789")) ||
				(f == float64(int64(f)) && strings.Contains(string(n), ".") && len(n) > 15) {
				return true
			}
		}
	}
}

// agree holds the three readings of a body against each other: the fast one, the
// slow one and the schema. None may panic.
// contract: E-08 N-02 N-04
func agree(t *testing.T, b []byte) {
	got, err := DecodeHeartbeat(b)
	slow, slowErr := decodeSlowly(b)
	if (err == nil) != (slowErr == nil) {
		t.Fatalf("fast: %v, slow: %v\n%s", err, slowErr, b)
	}
	if err == nil && !same(got, slow) {
		t.Fatalf("fast and slow differ:\n%+v\n%+v\n%s", got, slow, b)
	}
	if err != nil {
		f := fault.From(err)
		if f.Kind != fault.Invalid || len(f.Fields) == 0 {
			t.Fatalf("%v is no refusal with fields", err)
		}
	}
	if want := schemaTakes(t, b); (err == nil) != want && !inexact(b) {
		t.Fatalf("the schema takes it: %v; the decoder says %v\n%s", want, err, b)
	}
}

func same(a, b *Heartbeat) bool {
	if (a.Capacity.SampledAt == nil) != (b.Capacity.SampledAt == nil) || a.Capacity.SampledAt != nil && !a.Capacity.SampledAt.Equal(*b.Capacity.SampledAt) {
		return false
	}
	x, y := *a, *b
	x.Capacity.SampledAt, y.Capacity.SampledAt = nil, nil
	if len(x.Capabilities) == 0 && len(y.Capabilities) == 0 {
		x.Capabilities, y.Capabilities = nil, nil
	}
	return reflect.DeepEqual(x, y)
}

func FuzzDecodeHeartbeat(f *testing.F) {
	f.Add([]byte(printed))
	for _, seed := range []string{
		`{}`, `null`, `{"hostname":"h","role":"hybrid","architecture":"arm64","capacity":{"totalVCPUs":1.0,"totalMemoryBytes":1e3,"totalDiskBytes":0}}`,
		`{"hostname":null,"capacity":null,"capabilities":null}`, `{"capacity":{"totalVCPUs":9223372036854775807}}`, `{"capabilities":{"a":null,"":"x"}}`,
	} {
		f.Add([]byte(seed))
	}
	for _, e := range []struct{ path, value string }{
		{"capabilities", `{"a":null}`}, {"capabilities", `{"a":""}`}, {"capacity.totalVCPUs", "1e18"}, {"capacity.sampledAt", `"2026-04-15T1:00:00Z"`}, {"capacity.sampledAt", `"2026-04-15T12:00:00,5Z"`},
		{"capacity.sampledAt", `"2026-04-15T12:00:00+24:00"`}, {"capacity.sampledAt", `"2026-04-15T24:00:00Z"`}, {"capacity.sampledAt", `"2026-04-15t12:00:00z"`}, {"capacity.sampledAt", `"0000-01-01T00:00:00Z"`},
		{"bootId", `"\u0000"`}, {"hostname", `"\u0000"`}, {"capacity.vcpuOvercommitRatio", "1e-320"}, {"capacity.hasGPU", "null"},
	} {
		f.Add([]byte(with(f, e.path, e.value)))
	}
	f.Fuzz(func(t *testing.T, b []byte) { agree(t, b) })
}

// Heartbeats put together from known names and all kinds of values are read the
// same three ways; bytes at random seldom come that far.
// contract: E-08 N-02 N-04
func TestHeartbeatReadingsAgree(t *testing.T) {
	values := []string{`0`, `1`, `-1`, `1.0`, `1.5`, `1e3`, `1e-3`, `9007199254740992`, `9223372036854775807`, `1e308`, `null`, `true`, `false`, `""`, `"x"`, `"hybrid"`, `"amd64"`,
		`"2026-04-15T12:00:00Z"`, `"2026-04-15 12:00:00"`, `[]`, `{}`, `{"a":"b"}`, `{"a":null}`, `{"a":1}`, `"\u0000"`, quoted(253, "é"), quoted(254, "é"), quoted(1025, "x")}
	top := []string{"hostname", "role", "region", "availabilityZone", "architecture", "capacity", "capabilities", "bootId", "machineId", "wakeOnLanMac", "future"}
	inner := []string{"totalVCPUs", "reservedVCPUs", "vcpuOvercommitRatio", "committedVCPUs", "totalMemoryBytes", "reservedMemoryBytes", "memoryOvercommitRatio", "committedMemoryBytes",
		"totalDiskBytes", "hasGPU", "hasNestedVirt", "hasSecureBoot", "hasTPM", "architecture", "kvmVersion", "sampledAt", "future"}
	rapid.Check(t, func(r *rapid.T) {
		var h map[string]json.RawMessage
		var c map[string]json.RawMessage
		if json.Unmarshal([]byte(printed), &h) != nil || json.Unmarshal(h["capacity"], &c) != nil {
			t.Fatal("the example is no JSON")
		}
		change := func(m map[string]json.RawMessage, names []string) {
			for range rapid.IntRange(0, 2).Draw(r, "changes") {
				name := rapid.SampledFrom(names).Draw(r, "name")
				if v := rapid.SampledFrom(append(values, "")).Draw(r, "value"); v == "" {
					delete(m, name)
				} else {
					m[name] = json.RawMessage(v)
				}
			}
		}
		change(c, inner)
		h["capacity"], _ = json.Marshal(c)
		change(h, top)
		b, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		agree(t, b)
	})
}
