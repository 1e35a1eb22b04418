//go:build !race

package apptest

// Race says that the race detector watches; see race.go.
const Race = false
