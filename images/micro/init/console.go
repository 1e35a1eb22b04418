package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// console writes whole lines, so that facts, script output and agent output never cut one another.
type console struct {
	mu     sync.Mutex
	out    io.Writer
	shared bool
}

// share says that a shell uses the terminal now: from here on each line begins with a line end, because
// the cursor may stand behind a prompt, and readers look for the prefix at the start of a line.
func (c *console) share() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shared = true
}

// fact prints one fact; see formatFact for the arguments.
func (c *console) fact(subject string, pairs ...any) { c.line(formatFact(subject, pairs...)) }

// line prints text as a line of its own.
func (c *console) line(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := ""
	if c.shared {
		start = "\n"
	}
	_, _ = io.WriteString(c.out, start+text+"\n") // nowhere to report a dead console to
}

// formatFact renders "outcrop-micro: subject key=value ..." from key, value, key, value. A value that could not
// be told from its surroundings (empty, with spaces, quotes or control characters) is quoted as in Go.
func formatFact(subject string, pairs ...any) string {
	words := []string{"outcrop-micro:"}
	if subject != "" {
		words = append(words, subject)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		words = append(words, fmt.Sprint(pairs[i])+"="+quote(fmt.Sprint(pairs[i+1])))
	}
	return strings.Join(words, " ")
}

func quote(value string) string {
	odd := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '"' }
	if value == "" || strings.ContainsFunc(value, odd) {
		return strconv.Quote(value)
	}
	return value
}

// digest is the size and the SHA-256 of bytes as the pairs of a fact. The bytes themselves are secret.
func digest(b []byte) []any {
	sum := sha256.Sum256(b)
	return []any{"bytes", len(b), "sha256", hex.EncodeToString(sum[:])}
}

// copyLines calls emit with each line of r, without its line end, until r ends. A line beyond 64 KiB comes in pieces.
func copyLines(r io.Reader, emit func(string)) {
	br := bufio.NewReaderSize(r, 64<<10)
	for {
		b, err := br.ReadSlice('\n')
		if len(b) > 0 {
			emit(strings.TrimRight(string(b), "\r\n"))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
