package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// Codes of the findings that an agent makes.
const (
	findingLowDisk     = "LowDisk"
	findingUnreachable = "HypervisorUnreachable"
	findingNoKVM       = "NoKVM"
	findingNoLimits    = "NoLimits"
	findingSetup       = "HypervisorSetup"
	findingNetwork     = "NetworkTrouble"
	findingVolumes     = "UnknownVolumes"
	findingUpload      = "ImageNotMade"
	findingNoSystemd   = "NoSystemd"
	findingReservation = "ReservationNotEnforced"
)

// findings remembers since when each finding stands.
type findings struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// findings is what an operator should know of the node now. What to do about each
// code is the server's to say (control's nextSteps).
func (a *agent) findings(now time.Time) []api.Finding {
	return a.finds.date(a.find(), now)
}

func (a *agent) find() map[string]string {
	found := map[string]string{}
	free, reserve, err := a.images.space()
	switch {
	case err != nil:
		found[findingLowDisk] = err.Error()
	case free < reserve || a.images.needsRoom():
		found[findingLowDisk] = fmt.Sprintf("%s free in %s and %s should stay free: launches wait and running VMs may stand still", size(free), a.dir.root, size(reserve))
	}
	if trouble := a.view.trouble(); trouble != "" {
		found[findingUnreachable] = "the hypervisor does not answer, so the state of this node's VMs is not known: " + trouble
	}
	if a.wires != nil {
		if trouble := a.wires.trouble(); trouble != "" {
			found[findingNetwork] = "some guests of this node may be without their network: " + trouble
		}
	}
	if ids := a.storage.strangers(); len(ids) > 0 {
		found[findingVolumes] = fmt.Sprintf("the server knows nothing of these volumes in %s, so they are kept: %s", a.dir.volumes(), strings.Join(ids, ", "))
	}
	if why := a.uploads.why(); why != "" {
		found[findingUpload] = why
	}
	a.hostTrouble(found)
	if info, ok := a.facts.info(); ok {
		if info.Acceleration != hypervisor.KVM {
			found[findingNoKVM] = "guests run in software emulation, many times slower than with KVM"
		}
		if !info.Limits {
			found[findingNoLimits] = "no limits of CPU, memory and IO are in force, so a VM can slow down its neighbours"
		}
		if len(info.Findings) > 0 {
			found[findingSetup] = strings.Join(info.Findings, "; ")
		}
	}
	return found
}

// diskIsFull reports whether less than the reserve is free.
func (a *agent) diskIsFull() bool {
	free, reserve, err := a.images.space()
	return err == nil && free < reserve
}

// date adds since when each finding stands and forgets those that are over.
func (f *findings) date(found map[string]string, now time.Time) []api.Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := map[string]time.Time{}
	var list []api.Finding
	for _, code := range slices.Sorted(maps.Keys(found)) {
		at, ok := f.since[code]
		if !ok {
			at = now.UTC()
		}
		since[code] = at
		list = append(list, api.Finding{Code: code, Message: found[code], Since: &at})
	}
	f.since = since
	return list
}
