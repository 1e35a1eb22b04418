//go:build race

package apptest

// Race says that the race detector watches, under which time in a bubble goes ten
// times slower: long runs take fewer steps then.
const Race = true
