package node

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

const (
	syncHold  = 30 * time.Second // how long the server may keep an answer back
	syncGrace = 30 * time.Second // beyond that, an answer counts as lost
	// syncApart keeps syncs from following one another without a pause.
	syncApart = 50 * time.Millisecond
	// consolePatience is how long a sync waits for consoles to be sent.
	consolePatience = 5 * time.Second
)

// errNews ends a held sync: something observed has changed, so it is sent anew.
var errNews = errors.New("news")

// syncs tells the server what is and hears what is to be, from the moment on at
// which the server knows the node.
func (a *agent) syncs(ctx context.Context) {
	select {
	case <-a.registered:
	case <-ctx.Done():
		return
	}
	pace := newPace(a.log, "sync")
	revision := ""
	cut := 0 // calls in a row that news cut off
	for ctx.Err() == nil {
		resp, err := a.sync(ctx, revision, newsDelay(cut))
		received := time.Now()
		next := syncApart
		switch {
		case errors.Is(err, errNews):
			cut++
		case err != nil:
			if ctx.Err() == nil {
				next = pace.failed(err)
			}
		default:
			pace.worked()
			cut = 0
			a.facts.learnServer(resp.ServerCommit)
			if resp.Changed {
				revision = resp.Revision
				a.apply(resp, received)
			}
			a.openStreams(ctx, resp.Streams)
			a.sendConsoles(ctx, resp.Consoles)
		}
		if !a.pause(ctx, next, nil) {
			return
		}
	}
}

// newsDelay is how long a call is left alone before news may cut it off, so that
// many changes make one call and an answer that is on its way is not thrown
// away. A server that does not get to answering is given more and more time.
func newsDelay(cut int) time.Duration {
	return 100 * time.Millisecond << min(cut/4, 5)
}

// sync makes one call; errNews says that it was cut off to be made again.
func (a *agent) sync(ctx context.Context, revision string, delay time.Duration) (api.SyncResponse, error) {
	select { // what has changed by now is in this request
	case <-a.news:
	default:
	}
	req := a.syncRequest(revision)
	call, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		if !sleep(call, delay) {
			return
		}
		select {
		case <-a.news:
			cancel(errNews)
		case <-call.Done():
		}
	})
	defer watch.Wait() // else it could take news that are the next call's
	defer cancel(nil)
	timed, stop := context.WithTimeout(call, syncHold+syncGrace)
	defer stop()
	var resp api.SyncResponse
	err := a.up.Do(timed, http.MethodPost, a.path("sync"), req, &resp)
	if err != nil && errors.Is(context.Cause(call), errNews) {
		return resp, errNews
	}
	return resp, err
}

// syncRequest is the complete report of the node.
func (a *agent) syncRequest(revision string) api.SyncRequest {
	return api.SyncRequest{
		BootID:        a.facts.bootID(),
		Revision:      revision,
		Unknown:       a.view.unknown(),
		Instances:     a.observed(),
		Findings:      a.findings(time.Now()),
		GoneVolumes:   a.storage.gone(),
		FailedUploads: a.uploads.failures(),
		Power:         a.power.report(),
		Wakes:         a.wakes.reports(),
		WaitSeconds:   int64(syncHold / time.Second),
	}
}

// observed is the report of every VM, in the order of their ids.
func (a *agent) observed() []api.ObservedInstance {
	now := time.Now()
	list := []api.ObservedInstance{}
	a.mu.Lock()
	for _, w := range a.workers {
		list = append(list, w.observed(now))
	}
	a.mu.Unlock()
	slices.SortFunc(list, func(x, y api.ObservedInstance) int { return cmp.Compare(x.ID, y.ID) })
	return list
}

// sendConsoles answers the server's wishes. The next sync waits a little for it,
// else it would hear the same wish again.
func (a *agent) sendConsoles(ctx context.Context, ids []string) {
	ctx, cancel := context.WithTimeout(ctx, consolePatience)
	defer cancel()
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() { a.sendConsole(ctx, id) })
	}
	all.Wait()
}
