// Outcrop turns your own machines into a private compute cloud and a fleet of
// coding-agent runners.
package main

import (
	"os"

	"github.com/outcrop-cloud/outcrop/internal/cli"
)

func main() { os.Exit(cli.Main()) }
