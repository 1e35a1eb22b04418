package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// goBench is a Go benchmark that lives beside its package's code and measures a
// reference of its own in the same run. Each of its lines with the unit becomes a
// result.
type goBench struct {
	pkg       string // below internal/
	run       string // its name without "Benchmark"
	unit      string // of the value
	reference func(l benchLine, all map[string]benchLine) (float64, bool)
	against   string
	better    string
	// sized: the last part of its lines' names is nodes=N, and it takes rounds of
	// its own, in turns with its reference, once the inventory stands.
	sized bool
}

// benchLine is the figures of one line by their units.
type benchLine map[string]float64

type referenceFunc = func(benchLine, map[string]benchLine) (float64, bool)

// inLine is a reference that stands in the same line.
func inLine(unit string) referenceFunc {
	return func(l benchLine, _ map[string]benchLine) (float64, bool) { v, ok := l[unit]; return v, ok }
}

// times is a reference of which the value is so many times, as the line says.
func times(value, unit string) referenceFunc {
	return func(l benchLine, _ map[string]benchLine) (float64, bool) {
		x, ok := l[unit]
		return l[value] / x, ok && x != 0
	}
}

// another is a reference that is another benchmark's line.
func another(name, unit string) referenceFunc {
	return func(_ benchLine, all map[string]benchLine) (float64, bool) { v, ok := all[name][unit]; return v, ok }
}

var goBenches = []goBench{
	{"server", "Heartbeat", "allocs/op", inLine("bare-allocs/op"), "handler that only reads the body; no connection in either", lower, false},
	{"httpsig", "Sign", "ns/ours", inLine("ns/bare"), "bare ed25519 signature of the same bytes", lower, false},
	{"httpsig", "Verify", "ns/ours", inLine("ns/bare"), "bare ed25519 verification of the same bytes", lower, false},
	{"cloudinit", "ImageBesideGenisoimage", "µs/ours", inLine("µs/genisoimage"), "genisoimage with the same files", lower, false},
	{"metadata", "Flood", "p99-µs", another("Flood/quiet", "p99-µs"), "the same guest without the flood of another", lower, false},
	{"schedule", "Decide", "decisions/s", times("decisions/s", "x-bare"), "one look at the room of every node, without an index", higher, false},
	{"control", "ListNodes", "p99-ms", inLine("bare-p99-ms"), "the page's rows read from the database and left as they are", lower, true},
	{"control", "ExplainPlacement", "p99-ms", inLine("bare-p99-ms"), "one look at the room of every node, in memory", lower, true},
	{"control", "PlaceDurable", "decisions/s", times("decisions/s", "x-bare"), "one small row for each decision, in transactions of as many", higher, true},
}

func goBenchmarks() (all []benchmark) {
	for _, g := range goBenches {
		all = append(all, benchmark{"go/" + g.pkg + "/" + g.run, g.measure})
	}
	return all
}

// measure runs the package's test binary several times, so that sub-benchmarks,
// which run one after the other, take turns.
func (g goBench) measure(ctx context.Context, e *env) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	dir, binary := filepath.Join(root, "internal", g.pkg), filepath.Join(e.dir, g.pkg+".test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	rounds, names, pattern := (e.rounds+1)/2, []string(nil), "^Benchmark"+g.run+"$"
	if g.sized {
		rounds, pattern = 1, pattern+"/.*/"+upTo(e.maxNodes)
	}
	last := map[string]benchLine{}
	values, references, ratios := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for range rounds {
		cmd := exec.CommandContext(ctx, binary, "-test.run=^$", "-test.bench="+pattern, "-test.benchtime=300ms")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		order, lines := parseBench(out)
		for _, name := range order {
			l := lines[name]
			v, has := l[g.unit]
			r, ok := g.reference(l, lines)
			if !has || !ok || r == 0 || isReference(name) {
				continue
			}
			last[name] = l
			if values[name] == nil {
				names = append(names, name)
			}
			values[name], references[name], ratios[name] = append(values[name], v), append(references[name], r), append(ratios[name], v/r)
		}
	}
	if len(names) == 0 {
		return errMissing("nothing was measured; run it by hand: go test ./internal/" + g.pkg + " -run ^$ -bench " + g.run)
	}
	for _, name := range names {
		e.print(result{
			Name: "go/" + g.pkg + "/" + name, Value: median(values[name]), Unit: g.unit, Reference: median(references[name]),
			Ratio: median(ratios[name]), Better: g.better, Against: g.against, Rounds: rounds, More: g.more(last[name]),
		})
	}
	return nil
}

func isReference(name string) bool { return strings.HasSuffix(name, "/quiet") }

// upTo matches the sizes of inventories that are measured.
func upTo(most int) string {
	sizes := []string{}
	for n := 1_000; n <= most; n *= 10 {
		sizes = append(sizes, strconv.Itoa(n))
	}
	return "^nodes=(" + strings.Join(sizes, "|") + ")$"
}

// more is all figures of a sized benchmark's line.
func (g goBench) more(l benchLine) map[string]float64 {
	if !g.sized {
		return nil
	}
	delete(l, "ns/op")
	return l
}

// parseBench reads what Go's benchmarks print: a name, a count, and pairs of value
// and unit. The order is that of the output; names lack "Benchmark" and the
// number of processors.
func parseBench(out []byte) (order []string, lines map[string]benchLine) {
	lines = map[string]benchLine{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i]
		}
		l := benchLine{}
		for i := 2; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				l[f[i+1]] = v
			}
		}
		order, lines[name] = append(order, name), l
	}
	return order, lines
}
