package node

import (
	"slices"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// A node loses its power and boots again, the real server and real agents on both ends,
// also while the server is away: what asks to be started on that boot runs again, each
// once, and nothing else does. An agent that only starts again is no boot.
// contract: U-16 U-19 lesson 3
func TestStartOnNodeBootByAgent(t *testing.T) {
	for name, serverAway := range map[string]bool{"the server is there": false, "the server comes back later": true} {
		t.Run(name, func(t *testing.T) {
			inPowerWorld(t, func(t *testing.T, w *powerWorld) {
				w.node(compute.NodeReady, time.Minute)
				w.call("PATCH", api.NodePath(w.box.id), map[string]any{"declaredCapabilities": map[string]string{"here": "yes"}}, nil)
				ran, off := w.launch(api.CreateInstance{StartOnNodeBoot: true}), w.launch(api.CreateInstance{StartOnNodeBoot: true})
				plain := w.launch(api.CreateInstance{})
				w.call("POST", api.InstancePath("default", off, "stop"), api.StopInstance{Force: true}, nil)
				w.instance(off, compute.StateStopped, time.Minute)
				running := func() (ids []string) {
					for _, vm := range w.box.list() {
						if vm.State == hypervisor.Running {
							ids = append(ids, vm.ID)
						}
					}
					return ids
				}
				boots := func() (ids map[string]string) {
					ids = map[string]string{}
					for _, vm := range w.box.list() {
						ids[vm.ID] = vm.BootID
					}
					return ids
				}

				before := boots()
				w.box.stop() // the agent alone
				<-time.After(time.Minute)
				errorsIn(t, w.box.start())
				<-time.After(5 * time.Minute)
				w.instance(off, compute.StateStopped, 0)
				if got := boots(); got[ran] != before[ran] || got[plain] != before[plain] {
					t.Errorf("a start of the agent made of %v %v", before, got)
				}

				if serverAway {
					errorsIn(t, w.server.stop(false))
				}
				w.box.reboot()
				<-time.After(time.Minute)
				errorsIn(t, w.box.start())
				if serverAway {
					<-time.After(10 * time.Minute)
					if got := running(); len(got) != 0 {
						t.Errorf("%v run though nobody said so", got)
					}
					errorsIn(t, w.server.start())
				}
				for _, id := range []string{ran, off} {
					w.instance(id, compute.StateRunning, 2*time.Minute)
				}
				after := boots()
				<-time.After(10 * time.Minute)
				w.instance(plain, compute.StateStopped, 0)
				if got := running(); len(got) != 2 || slices.Contains(got, plain) {
					t.Errorf("%v run, want %s and %s", got, ran, off)
				}
				if got := boots(); got[ran] != after[ran] || got[off] != after[off] || got[ran] == before[ran] {
					t.Errorf("boots %v, then %v, then %v", before, after, got)
				}
			})
		})
	}
}
