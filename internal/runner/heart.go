package runner

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
)

const (
	beatTimeout = 10 * time.Second
	beatRetry   = time.Second // the first wait after a failed beat
	// niceness puts the runner before builds that fill the machine. Jobs get the
	// usual one back; see JobInit.
	niceness = -10
)

// heart sends the heartbeats. It never waits for checks, jobs or the disk.
type heart struct {
	client *client
	log    *slog.Logger
	report func() api.HostHeartbeat // what holds at this moment
	poll   time.Duration
	early  nudge
	known  func() // called after the first accepted beat
	fit    func() // called when the gateway heard that the host can work again

	mu      sync.Mutex
	asked   *api.WorkRequest // outcome of a request for work that no accepted beat has told yet
	update  *api.HostUpdate  // likewise of an update
	beats   int64            // accepted so far
	acked   time.Duration    // boot when the last accepted beat was sent
	clear   bool             // it named nothing in the way
	version string           // that the gateway last picked
}

// run beats at once and then every poll until ctx ends, on a thread of its own
// that goes before others (lesson 38).
func (h *heart) run(ctx context.Context) {
	runtime.LockOSThread() // never unlocked: the thread ends with its priority
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, niceness)
	delay := backoff{first: beatRetry, most: max(beatRetry, min(h.poll, 30*time.Second))}
	said := ""
	for {
		err := h.beat(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := jitter(h.poll)
		switch {
		case err == nil && said != "":
			h.log.Info("heartbeats are accepted again")
			fallthrough
		case err == nil:
			said = ""
			delay.reset()
		default:
			wait = delay.next(err)
			if final(err) {
				wait = max(wait, jitter(h.poll))
			}
			if text := err.Error(); text != said {
				h.log.Warn("a heartbeat failed; the runner keeps trying, and its jobs go on as long as their leases", "error", text)
				said = text
			}
		}
		if !pause(ctx, wait, h.early) {
			return
		}
	}
}

// beat sends one heartbeat.
func (h *heart) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	b := h.report()
	h.mu.Lock()
	b.WorkRequest, b.LastUpdate = h.asked, h.update
	h.mu.Unlock()
	var out api.Data[api.HeartbeatHost]
	sent := h.client.clock.boot()
	if err := h.client.post(ctx, "/v1/hosts/heartbeat", &b, &out); err != nil {
		return err
	}
	h.accepted(&b, &out.Data, sent)
	return nil
}

func (h *heart) accepted(b *api.HostHeartbeat, answer *api.HeartbeatHost, sent time.Duration) {
	h.mu.Lock()
	if h.asked == b.WorkRequest { // a later outcome is told by the next beat
		h.asked = nil
	}
	h.update = nil
	first, before := h.beats == 0, h.freshAt(sent)
	h.beats++
	h.clear = b.Blocked == nil && b.LowDisk == nil
	h.acked = sent
	picked := answer.RunnerVersion
	news := picked != h.version && picked != "" && picked != b.CLIVersion
	h.version = picked
	h.mu.Unlock()
	if first {
		h.log.Info("the gateway knows this host", "host", b.Host, "status", answer.Status)
		h.known()
	}
	if !before && h.fresh() {
		h.fit()
	}
	if news {
		h.log.Info("the gateway picks another version for this host; install it when convenient", "version", picked, "running", b.CLIVersion)
	}
}

// tell has the next beat report how a request for work went.
func (h *heart) tell(w *api.WorkRequest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = w
}

// fresh reports whether the gateway may give this host work: it heard of the host
// lately, and of nothing in the way.
func (h *heart) fresh() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.freshAt(h.client.clock.boot())
}

func (h *heart) freshAt(now time.Duration) bool {
	return h.beats > 0 && h.clear && now-h.acked <= max(fleet.StalePolls*h.poll, fleet.StaleFloor)
}

// raise puts all threads of the runner before others, where the host allows it:
// the heart's own would wait for those that move its bytes. New threads inherit it.
func raise() {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		if tid, err := strconv.Atoi(filepath.Base(t.Name())); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, niceness)
		}
	}
}
