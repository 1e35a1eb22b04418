package control_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// moves is a fleet on which anything happens in any order, with what it must hold to.
type moves struct {
	*apptest.System
	t        *testing.T
	second   *control.Control // another server on the same database, or nil
	r        *rand.Rand
	machines []*machine
	ids      []string
	wrote    map[string]string // the last that a guest wrote to its root volume
	did      []string
}

// Whatever is lost, late, restarted, cancelled or terminated, and in whatever order:
// one VM never runs twice, what a guest wrote is never lost, and in the end each volume
// is on its one node and the books agree.
// contract: N-20 U-02 U-16 U-21 // lesson 3 // lesson 4 // lesson 12 // lesson 19 // lesson 22
func TestMovesInAnyOrder(t *testing.T) {
	seeds, steps := uint64(6), 250
	if testing.Short() {
		seeds, steps = 2, 120
	}
	for seed := range seeds {
		kind := "sqlite"
		if seed%3 == 2 {
			kind = "postgres"
		}
		t.Run(fmt.Sprintf("%s-%d", kind, seed), func(t *testing.T) {
			w := &moves{System: apptest.Start(t, apptest.Options{Kind: kind}), t: t, r: rand.New(rand.NewPCG(seed, 1)), wrote: map[string]string{}}
			if kind == "postgres" {
				w.second = secondServer(t, w.System)
			}
			defer func() {
				if t.Failed() {
					t.Logf("what happened: %v", w.did)
				}
			}()
			w.begin()
			for n := range steps {
				w.happen(n)
				w.check()
			}
			w.end()
		})
	}
}

func (w *moves) begin() {
	for n := range 3 {
		w.machines = append(w.machines, newMachine(w.t, w.System, fmt.Sprintf("n%d", n)))
	}
	image := w.Image("default")
	for n := range 4 {
		in := api.CreateInstance{Name: fmt.Sprintf("vm%d", n), ImageID: image, MaintenanceStrategy: []string{"migrate", "migrate", "stop", ""}[n]}
		if n == 1 {
			in.DataVolumes = []api.DataVolumeInput{{SizeBytes: 1 << 20}}
		}
		if n%2 == 0 {
			in.DesiredState = "running"
		}
		w.ids = append(w.ids, w.Create("default", in).ID)
	}
	run(w.t, w.Control.Place)
	settle(w.machines...)
}

func (w *moves) happen(n int) {
	id := w.ids[w.r.IntN(len(w.ids))]
	m := w.machines[w.r.IntN(len(w.machines))]
	ask := func(method, path string, in any) { w.Operator.Do(method, path, in) } // refused or not
	verb := func(v string, in any) { ask("POST", api.InstancePath("default", id, v), in) }
	what := ""
	switch p := w.r.IntN(100); {
	case p < 25:
		what = "sync"
		m.sync()
	case p < 45:
		what = "act"
		m.act()
	case p < 60:
		what = "upload"
		m.upload()
	case p < 64:
		what = "write"
		if v := m.vms[id]; v != nil && v.running {
			w.wrote[id] = fmt.Sprintf("%s-%d", id, n)
			m.write(id, w.wrote[id])
		}
	case p < 68:
		what = "answer lost"
		m.Do("POST", api.NodePath(m.ID, "sync"), m.report())
	case p < 71:
		what = "agent restarted"
		m.restart()
	case p < 72:
		what = "server restarted"
		w.Restart()
	case p < 78:
		what = "migrate"
		verb("migrate", nil)
	case p < 80:
		what = "migrate cancelled"
		verb("migrate/cancel", nil)
	case p < 82:
		what = "stop"
		verb("stop", nil)
	case p < 84:
		what = "start"
		verb("start", nil)
	case p < 87:
		what = "drain"
		ask("POST", api.NodePath(m.ID, "drain"), api.DrainNode{DeadlineSeconds: int64(1 + w.r.IntN(300))})
	case p < 88:
		what = "drain cancelled"
		ask("POST", api.NodePath(m.ID, "drain/cancel"), nil)
	case p < 90:
		what = "uncordon"
		ask("POST", api.NodePath(m.ID, "uncordon"), nil)
	case p < 91 && n > 100:
		what = "terminate"
		ask("DELETE", api.InstancePath("default", id), nil)
	case p < 94:
		what = "time"
		w.Clock.Advance(time.Duration(w.r.IntN(80)) * time.Second)
		for _, m := range w.machines {
			if w.r.IntN(5) > 0 {
				m.Beat(apptest.Machine(m.ID))
			}
		}
	case p < 97 && w.second != nil:
		what = "two servers at once"
		var both sync.WaitGroup
		both.Go(func() { run(w.t, w.Control.Drain) })
		both.Go(func() { w.other(n, m.ID, id) })
		both.Wait()
	default:
		what = "loops"
		if w.second != nil && w.r.IntN(2) == 0 {
			run(w.t, w.second.Drain)
			run(w.t, w.second.TendMoves)
		}
		run(w.t, w.Control.Drain)
		run(w.t, w.Control.TendMoves)
		run(w.t, w.Control.Expire)
		run(w.t, w.Control.Converge)
	}
	w.did = append(w.did, fmt.Sprintf("%d %s %s/%s", n, what, m.ID, id))
}

// other is what the second server does.
func (w *moves) other(n int, node, id string) {
	var err error
	switch n % 5 {
	case 0:
		err = w.second.Drain(w.t.Context())
	case 1:
		_, err = w.second.DrainNode(w.t.Context(), iam.System, node, api.DrainNode{})
	case 2:
		_, err = w.second.CancelDrain(w.t.Context(), iam.System, node)
	case 3:
		_, err = w.second.UncordonNode(w.t.Context(), iam.System, node)
	case 4:
		_, err = w.second.MigrateInstance(w.t.Context(), iam.System, "default", id, api.MigrateInstance{})
	}
	if _, refused := errors.AsType[*fault.Error](err); err != nil && !refused {
		w.t.Errorf("the second server: %v", err)
	}
}

// check holds what is true at every moment.
func (w *moves) check() {
	w.t.Helper()
	for _, id := range w.ids {
		if on := runningOn(w.machines, id); len(on) > 1 {
			w.t.Fatalf("%s runs on %v", id, on)
		}
		for _, m := range w.machines {
			if v := m.vms[id]; v != nil && v.running && w.wrote[id] != "" && m.files[v.root] != w.wrote[id] {
				w.t.Fatalf("%s runs on %s with %q, its guest wrote %q", id, m.ID, m.files[v.root], w.wrote[id])
			}
		}
	}
}

// end lets everything come to rest, and looks at what is where.
func (w *moves) end() {
	w.t.Helper()
	for _, m := range w.machines {
		m.Beat(apptest.Machine(m.ID))
		w.Operator.Do("POST", api.NodePath(m.ID, "uncordon"), nil).Want(200)
	}
	for range 4 {
		w.Clock.Advance(40 * time.Second)
		for _, m := range w.machines {
			m.Beat(apptest.Machine(m.ID))
		}
		run(w.t, w.Control.TendMoves)
		run(w.t, w.Control.Converge)
		settle(w.machines...)
		w.check()
	}
	want := map[string]int64{}
	for _, id := range w.ids {
		i := w.Operator.Instance("default", id)
		volumes := []string{i.RootVolumeID}
		for _, v := range i.DataVolumes {
			volumes = append(volumes, v.VolumeID)
		}
		switch i.State {
		case "terminated":
			for _, v := range volumes {
				if on := hasFile(w.machines, v); len(on) > 0 {
					w.t.Errorf("%s of the terminated %s is on %v", v, id, on)
				}
			}
			continue
		case "running":
			if on := runningOn(w.machines, id); !slices.Equal(on, []string{i.NodeID}) {
				w.t.Errorf("%s is to run on %s, and runs on %v", id, i.NodeID, on)
			}
		case "stopped":
			if i.DesiredState == "running" {
				w.t.Errorf("%s stays stopped", id)
			}
		default:
			w.t.Errorf("%s stays %s: %s\n%s", id, i.State, i.StateMessage, timeline(w.t, w.System, "default", id))
		}
		want[i.NodeID] += i.MemoryBytes
		for _, v := range volumes {
			if on := hasFile(w.machines, v); len(on) > 1 || len(on) == 1 && on[0] != i.NodeID {
				w.t.Errorf("%s of %s is on %v, and should be on %s", v, id, on, i.NodeID)
			}
		}
	}
	got := map[string]int64{}
	for _, m := range w.machines {
		if n := committed(w.System, m.ID); n > 0 {
			got[m.ID] = n
		}
	}
	if !maps.Equal(got, want) {
		w.t.Errorf("held on nodes: %v, should be %v", got, want)
	}
	books(w.t, w.System)
}
