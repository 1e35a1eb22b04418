// Command outcrop-guest is the agent of an instance as a small program of its own, for
// images and for the install command. "outcrop guest" is the same.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/outcrop-cloud/outcrop/internal/guest"
)

// version is set by the linker.
var version = "devel"

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "guest" {
		args = args[1:]
	}
	f := flag.NewFlagSet("outcrop-guest", flag.ExitOnError)
	url := f.String("metadata-url", guest.DefaultURL, "the metadata service")
	activation := f.String("activation", guest.Automatic, "automatic or install-command: how the agent came here")
	show := f.Bool("version", false, "print the version")
	_ = f.Parse(args) // exits by itself
	if *show {
		fmt.Println(version)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := guest.Run(ctx, guest.Config{URL: *url, Activation: *activation, Version: version, Log: log}); err != nil {
		log.Error("the agent ends", "error", err)
		os.Exit(1)
	}
}
