package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write the golden parts of testdata/*.txtar anew")

// TestScripts runs testdata/*.txtar: adding a case is adding a file.
//
//	serve FILE            start a server that plays the answers of FILE
//	outcrop ARGS [<FILE]  run the command line, FILE as standard input
//	exit CODE             the exit code of the last outcrop was CODE
//	requests              print what the server was asked
//	fill FILE SIZE        make a file of zeros
//
// FILE holds answers: a line METHOD PATH STATUS, then the body. Answers for the
// same request play in order, the last one again and again. A path without a
// query answers any query. STATUS drop hangs up without an answer, and interrupt
// presses Ctrl-C. The clock stands at 2026-03-01 12:00 and moves only when the
// command line waits.
//
// contract: U-19 E-08 E-10
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir+"/config")
			env.Values["world"] = &world{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve": serveCmd, "outcrop": outcropCmd, "exit": exitCmd, "requests": requestsCmd, "fill": fillCmd,
		},
	})
}

// world is what a script has besides its files.
type world struct {
	mu        sync.Mutex
	now       time.Time
	interrupt context.CancelFunc
	exit      int
	answers   map[string][]answer
	keys      map[string]string // idempotency keys by the name that the log shows
	log       strings.Builder
}

type answer struct{ status, body string }

func worldOf(ts *testscript.TestScript) *world { return ts.Value("world").(*world) }

func outcropCmd(ts *testscript.TestScript, neg bool, args []string) {
	w := worldOf(ts)
	var stdin io.Reader = strings.NewReader("")
	if n := len(args) - 1; n >= 0 && strings.HasPrefix(args[n], "<") {
		stdin = strings.NewReader(ts.ReadFile(args[n][1:]))
		args = args[:n]
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.mu.Lock()
	w.interrupt = cancel
	w.mu.Unlock()
	for i, arg := range args { // relative files are the script's
		if _, err := os.Stat(ts.MkAbs(arg)); err == nil && arg != "" && arg != "-" {
			args[i] = ts.MkAbs(arg)
		}
	}
	var stdout, stderr bytes.Buffer
	a := &app{stdin: stdin, stdout: &stdout, stderr: &stderr, getenv: ts.Getenv, now: w.clock, after: w.after}
	w.exit = a.run(ctx, args)
	fmt.Fprint(ts.Stdout(), stdout.String())
	fmt.Fprint(ts.Stderr(), stderr.String())
	if strings.ContainsAny(stderr.String(), "\x1b\r") {
		ts.Fatalf("stderr steers a terminal that is not there: %q", stderr.String())
	}
	if neg != (w.exit != 0) {
		ts.Fatalf("outcrop exited with %d", w.exit)
	}
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) after(d time.Duration) <-chan time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
	c := make(chan time.Time, 1)
	c <- w.now
	return c
}

func exitCmd(ts *testscript.TestScript, _ bool, args []string) {
	if got := strconv.Itoa(worldOf(ts).exit); got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

func requestsCmd(ts *testscript.TestScript, _ bool, _ []string) {
	w := worldOf(ts)
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprint(ts.Stdout(), w.log.String())
	w.log.Reset()
}

func fillCmd(ts *testscript.TestScript, _ bool, args []string) {
	n, err := parseSize(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), make([]byte, n), 0o600))
}

var answerLine = regexp.MustCompile(`^(GET|POST|PUT|PATCH|DELETE) (\S+) (\d{3}|drop|interrupt)$`)

func serveCmd(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	w.answers, w.keys = map[string][]answer{}, map[string]string{}
	var request string
	for s := bufio.NewScanner(strings.NewReader(ts.ReadFile(args[0]))); s.Scan(); {
		if m := answerLine.FindStringSubmatch(s.Text()); m != nil {
			request = m[1] + " " + m[2]
			w.answers[request] = append(w.answers[request], answer{status: m[3]})
		} else if request != "" {
			list := w.answers[request]
			list[len(list)-1].body += s.Text() + "\n"
		}
	}
	srv := httptest.NewServer(w)
	ts.Defer(srv.Close)
	ts.Setenv("OUTCROP_URL", srv.URL)
	ts.Setenv("OUTCROP_TOKEN", "secret")
}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a, interrupt := w.play(r, body)
	switch a.status {
	case "":
		http.Error(rw, fmt.Sprintf(`{"code":"NO_ANSWER","message":"the script has no answer for %s %s"}`, r.Method, r.URL), http.StatusNotImplemented)
	case "interrupt":
		interrupt()
		<-r.Context().Done()
	case "drop":
		panic(http.ErrAbortHandler)
	default:
		status, _ := strconv.Atoi(a.status)
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, strings.TrimSpace(a.body))
	}
}

// play logs the request and picks its answer.
func (w *world) play(r *http.Request, body []byte) (answer, context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(&w.log, "%s %s", r.Method, r.URL.RequestURI())
	if auth := r.Header.Get("Authorization"); auth != "Bearer secret" {
		fmt.Fprintf(&w.log, " [%s]", auth)
	}
	if key := r.Header.Get("Idempotency-Key"); key != "" {
		if w.keys[key] == "" {
			w.keys[key] = fmt.Sprintf("key-%d", len(w.keys)+1)
		}
		fmt.Fprintf(&w.log, " [%s]", w.keys[key])
	}
	fmt.Fprintf(&w.log, "%s\n", logBody(body))
	request := r.Method + " " + r.URL.RequestURI()
	if w.answers[request] == nil {
		request = r.Method + " " + r.URL.Path
	}
	list := w.answers[request]
	if len(list) == 0 {
		return answer{}, w.interrupt
	}
	if len(list) > 1 {
		w.answers[request] = list[1:]
	}
	return list[0], w.interrupt
}

func logBody(b []byte) string {
	switch {
	case len(b) == 0:
		return ""
	case json.Valid(b) && b[0] == '{':
		return " " + string(b)
	case len(b) > 200 || !utf8.Valid(b):
		return fmt.Sprintf(" %d bytes", len(b))
	}
	return fmt.Sprintf(" %q", b)
}
