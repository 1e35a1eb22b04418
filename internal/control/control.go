// Package control holds the compute API's verbs (one method each, the caller
// first) and the server's loops.
//
// A verb checks the caller, reads and writes in one transaction, and answers
// with the wire shape. No verb calls a node: it writes what is wanted, nudges,
// and the node's held sync picks it up.
package control

import (
	"crypto/rand"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// Options configure a Control. Zero values take the defaults of the flags.
type Options struct {
	DB  *store.DB
	Dir string // data folder: image files and the token key live here
	Log *slog.Logger
	Now func() time.Time

	Region            string        // default region of a heartbeat that names none
	Zone              string        // default zone likewise
	HeartbeatInterval time.Duration // told to the agents; liveness is judged by it
	// SingleNode: the server was started by `outcrop up`, so the reservation of
	// its only node is computed (contract N-09).
	SingleNode bool
	// DrainParallel is how many instances of a node a drain has on their way at a
	// time, where it does not say.
	DrainParallel int
	// FirstNode is what the node of a SingleNode install starts with when it first
	// registers: the reservation that an operator chose at install.
	FirstNode compute.NodeSpec
	// Commit that the server was built from, for agents to compare with; empty where
	// the build does not say.
	Commit string
}

// Control is the compute API without a transport.
type Control struct {
	o       Options
	db      *store.DB
	log     *slog.Logger
	now     func() time.Time
	hub     *hub
	keys    *tokenKeys
	cons    *consoles
	obs     *observations
	beats   *lastBeats
	nodes   atomic.Int64 // how many are known; only a single-node install asks
	since   time.Time    // when this server began to listen; see Liveness.Status
	place   *nudge
	fleet   *fleet
	audits  *auditLog
	placing sync.Mutex // held by a run of the placement loop
	// lastTold is when the placement loop last said why an instance waits.
	lastTold map[string]time.Time
	// converge wakes the loop that drives state towards desiredState.
	converge *nudge
	drain    *nudge // wakes the loop that drives drains
	streams  *streams
	name     string // of this server among several, for leases
	ready    readiness
	joins    *joining
	skews    *skews
}

// New prepares a Control; Run starts its loops.
func New(o Options) (*Control, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = 60 * time.Second
	}
	if o.DrainParallel < 1 {
		o.DrainParallel = 2
	}
	if o.Region == "" {
		o.Region = "local"
	}
	if o.Zone == "" {
		o.Zone = o.Region + "-a"
	}
	if err := openImages(filepath.Join(o.Dir, "images")); err != nil {
		return nil, err
	}
	keys, err := loadTokenKeys(o.Dir)
	if err != nil {
		return nil, err
	}
	return &Control{
		o: o, db: o.DB, log: o.Log, now: o.Now, hub: newHub(), keys: keys,
		cons: newConsoles(), obs: newObservations(), beats: newLastBeats(), since: o.Now(), place: newNudge(), fleet: newFleet(), audits: newAuditLog(), lastTold: map[string]time.Time{},
		converge: newNudge(), drain: newNudge(), streams: newStreams(), name: rand.Text(), joins: newJoining(o.Now), skews: newSkews(),
	}, nil
}

// HeartbeatInterval is what agents are told.
func (c *Control) HeartbeatInterval() time.Duration { return c.o.HeartbeatInterval }
