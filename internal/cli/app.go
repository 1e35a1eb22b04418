// Package cli is the command line: a client of the public API, and the place
// where the long-running roles are started.
//
// stdout carries data and nothing else; progress, notes and errors go to stderr.
// Exit codes: 0 done, 1 it could not be done, 2 it was asked for wrongly.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// app is one run of the command line and all that it touches of the world.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	now            func() time.Time
	after          func(time.Duration) <-chan time.Time

	flags   globalFlags
	started bool // a command's own code has begun: later errors are not about usage

	resolved *settings   // see settings
	api      *api.Client // see client
}

// globalFlags are the flags that every command has.
type globalFlags struct {
	url, tokenFile, project, output string
	quiet                           bool
	timeout                         time.Duration
}

// Main runs the command line of this process and returns its exit code.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	a := &app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		getenv: os.Getenv, now: time.Now, after: time.After,
	}
	return a.run(ctx, os.Args[1:])
}

// run executes one command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	a.markStart(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	return a.printError(cmd, err)
}

// markStart notes when a command's own code begins, because whatever cobra
// refuses before that (flags, arguments, required flags) is a usage error.
func (a *app) markStart(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.started = true
			return run(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		a.markStart(c)
	}
}

// terminal reports whether w is one that can redraw a line.
func (a *app) terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && a.getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}
