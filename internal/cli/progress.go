package cli

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// progress tells on stderr how work goes on: lines, and on a terminal one more
// line below them that is redrawn.
type progress struct {
	a     *app
	live  bool // stderr is a terminal, and a person wants to see it
	drawn bool
	turn  int
}

func newProgress(a *app) *progress {
	return &progress{a: a, live: a.terminal(a.stderr) && !a.flags.quiet}
}

// line prints a line that stays.
func (p *progress) line(format string, args ...any) {
	p.clear()
	p.a.notef(format, args...)
}

// lineWidth keeps a redrawn line from wrapping, which could not be taken back.
const lineWidth = 79

// draw replaces the line that is redrawn.
func (p *progress) draw(text string) {
	if p.live {
		fmt.Fprintf(p.a.stderr, "\r%.*s\x1b[K", lineWidth, clean(text))
		p.drawn = true
	}
}

// clear takes the redrawn line away.
func (p *progress) clear() {
	if p.drawn {
		fmt.Fprint(p.a.stderr, "\r\x1b[K")
		p.drawn = false
	}
}

const frame = 125 * time.Millisecond

// spin waits for d, with something that moves where that can be seen.
func (p *progress) spin(ctx context.Context, d time.Duration, text func() string) error {
	step := d
	if p.live {
		step = frame
	}
	for ; d > 0; d -= step {
		if p.live {
			p.draw(string(`|/-\`[p.turn%4]) + " " + text())
			p.turn++
		}
		select {
		case <-p.a.after(min(step, d)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

const barWidth = 30

// bar is a progress bar: [=====>    ] 45%.
func bar(done, total int64) string {
	if total <= 0 {
		return ""
	}
	share := min(float64(done)/float64(total), 1)
	full := int(share * barWidth)
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), int(share*100))
}
