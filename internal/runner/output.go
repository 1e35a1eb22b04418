package runner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

// outputBuffer is how many bytes wait for the gateway. A command that writes
// faster waits; it is not cut short and fills no disk.
const outputBuffer = 1 << 20

// Output takes what a command writes, in order, and holds it until it is sent. It
// is safe for concurrent use.
type Output struct {
	ready, room nudge
	closed      chan struct{}
	once        sync.Once

	mu      sync.Mutex
	buf     []byte
	written int64
	full    bool // the gateway keeps no more
}

func newOutput() *Output {
	return &Output{ready: newNudge(), room: newNudge(), closed: make(chan struct{})}
}

var errOutputClosed = errors.New("the job's output is closed")

// Write adds output. It waits while the buffer is full.
func (o *Output) Write(b []byte) (n int, err error) {
	for {
		o.mu.Lock()
		space := outputBuffer - len(o.buf)
		if o.full {
			o.written += int64(len(b))
			o.mu.Unlock()
			return n + len(b), nil
		}
		part := b[:min(space, len(b))]
		o.buf = append(o.buf, part...)
		o.written += int64(len(part))
		o.mu.Unlock()
		o.ready.send()
		n, b = n+len(part), b[len(part):]
		if len(b) == 0 {
			return n, nil
		}
		select {
		case <-o.room:
		case <-o.closed:
			return n, errOutputClosed
		}
	}
}

// Close says that no more comes.
func (o *Output) Close() { o.once.Do(func() { close(o.closed) }) }

// Written is how many bytes there were.
func (o *Output) Written() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written
}

// next waits for output and returns a copy of its first bytes, which stay until
// drop. It returns nil when there is none and no more comes.
func (o *Output) next(ctx context.Context) []byte {
	for {
		o.mu.Lock()
		chunk := append([]byte{}, o.buf[:min(len(o.buf), fleet.MaxLogChunk)]...)
		o.mu.Unlock()
		if len(chunk) > 0 {
			return chunk
		}
		select {
		case <-ctx.Done():
			return nil
		case <-o.closed:
			if o.empty() {
				return nil
			}
		case <-o.ready:
		}
	}
}

func (o *Output) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.buf) == 0
}

func (o *Output) drop(n int) {
	o.mu.Lock()
	o.buf = append(o.buf[:0], o.buf[n:]...)
	o.mu.Unlock()
	o.room.send()
}

// discard takes no more; the command goes on.
func (o *Output) discard() {
	o.mu.Lock()
	o.full, o.buf = true, nil
	o.mu.Unlock()
	o.room.send()
}

// logEvery is how often a job's output is sent when there is some.
const logEvery = time.Second

// streamOutput sends the output in order until it is closed and sent, or the lease
// is over. A chunk whose answer was lost is sent again from the same offset.
func (j *running) streamOutput(ctx context.Context) {
	defer j.Output.discard() // so that no command waits for a reader who is gone
	delay := backoff{first: time.Second, most: 10 * time.Second}
	var offset int64
	for ctx.Err() == nil {
		chunk := j.Output.next(ctx)
		if chunk == nil {
			return
		}
		in := api.AppendWorkLog{Host: j.r.id.Host, LeaseEpoch: j.Epoch, Offset: offset, Data: chunk}
		var out api.Data[api.WorkLogPosition]
		err := j.send(ctx, "logs", in, &out)
		wait, early := logEvery, j.Output.closed
		switch {
		case err == nil && out.Data.Truncated, final(err):
			if err != nil && !lost(err) {
				j.r.log.Warn("the gateway takes no more output of a job", "job", j.ID, "error", err)
			}
			return
		case err == nil:
			delay.reset()
			offset += int64(len(chunk))
			j.Output.drop(len(chunk))
			if !j.Output.empty() {
				continue
			}
		default:
			wait, early = delay.next(err), nil
		}
		pause(ctx, wait, early)
	}
}
