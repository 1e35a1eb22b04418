// Command bench measures Outcrop on this machine and prints one JSON line per
// benchmark:
//
//	go run ./test/bench [-run REGEXP] [-quick] [-list]
//
// Every figure stands beside a reference that is measured in the same run, in
// turns with it (A B A B …), and is the median of several rounds: the machine
// may be slow or busy, the ratio says what is ours. What a benchmark needs and
// the machine lacks makes a line with "skipped".
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"
)

// benchmark is one entry of the list; it may print several results.
type benchmark struct {
	name string // the part of all its results' names that -run is matched against
	run  func(ctx context.Context, e *env) error
}

// env is what benchmarks share.
type env struct {
	rounds   int           // pairs of measurements
	window   time.Duration // length of one measurement under load
	maxNodes int           // largest inventory
	dir      string        // for everything; on a disk that is really written to
	binary   string        // bin/outcrop, built on first use
	print    func(result)
}

func main() {
	if addr := os.Getenv(bareEnv); addr != "" {
		exit(serveBare(addr))
	}
	if addr := os.Getenv(metadataEnv); addr != "" {
		exit(serveMetadata(addr))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if lab := os.Getenv(launchEnv); lab != "" {
		exit(measureLaunches(ctx, lab))
	}
	run := flag.String("run", "", "only benchmarks whose name matches this regular expression")
	quick := flag.Bool("quick", false, "fewer, shorter rounds and no inventory above 1,000 nodes: a smoke test, not a figure to quote")
	list := flag.Bool("list", false, "print the names and end")
	flag.Parse()
	match, err := regexp.Compile(*run)
	if err != nil || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: bench [-run REGEXP] [-quick] [-list]")
		os.Exit(2)
	}
	exit(runAll(ctx, match, *quick, *list))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runAll(ctx context.Context, match *regexp.Regexp, quick, list bool) error {
	dir, err := os.MkdirTemp("", "outcrop-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil { // QEMU's user goes through it
		return err
	}
	lines := json.NewEncoder(os.Stdout)
	lines.SetEscapeHTML(false)
	e := &env{rounds: 7, window: 2 * time.Second, maxNodes: 100_000, dir: dir, print: func(r result) {
		r.Load1 = load1()
		_ = lines.Encode(r.shortened())
		r.table(os.Stderr)
	}}
	if quick {
		e.rounds, e.window, e.maxNodes = 3, time.Second, 1_000
	}
	var failed int
	for _, b := range benchmarks() {
		if !match.MatchString(b.name) {
			continue
		}
		if list {
			fmt.Println(b.name)
			continue
		}
		err := b.run(ctx, e)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if missing, ok := err.(errMissing); ok {
			e.print(result{Name: b.name, Skipped: missing.Error()})
		} else if err != nil {
			failed++
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", b.name, err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d benchmarks failed", failed)
	}
	return nil
}

// errMissing: this machine lacks what the benchmark needs.
type errMissing string

func (e errMissing) Error() string { return string(e) }

func benchmarks() []benchmark {
	return slices.Concat(heartbeats(), launches(), metadataBenchmarks(), gatewayBenchmarks(), goBenchmarks())
}
