package control

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
	"github.com/outcrop-cloud/outcrop/internal/store"
	"github.com/outcrop-cloud/outcrop/internal/store/storetest"
)

// The fleet that placement keeps is always the one that a look at all rows gives,
// whatever happened, by whichever server, and when transactions were undone.
// lesson 12 16
func TestFleetIsWhatTheDatabaseSays(t *testing.T) {
	storetest.Each(t, func(t *testing.T, o store.Options) {
		l := newFleetLab(t, o)
		rnd := rand.New(rand.NewPCG(1, 2))
		for step := range 120 {
			l.step(t, l.servers[rnd.IntN(len(l.servers))], rnd)
			if step%8 > 0 {
				continue
			}
			for i, c := range l.servers {
				if have, want := snapshotOf(t, c), snapshotOf(t, l.fresh(t)); !reflect.DeepEqual(have, want) {
					t.Fatalf("step %d: server %d sees\n%+v\nthe rows say\n%+v", step, i, have, want)
				}
			}
		}
	})
}

// fleetLab is two servers on one database.
type fleetLab struct {
	db      *store.DB
	dir     string
	servers []*Control
	image   string
	groups  []string
	made    int
}

func newFleetLab(t *testing.T, o store.Options) *fleetLab {
	l := &fleetLab{db: storetest.Open(t, o), dir: t.TempDir()}
	l.servers = []*Control{l.fresh(t), l.fresh(t)}
	img := compute.Image{ID: "img-aaaaaaaaaa", ProjectID: "default", Name: "disk", Format: "raw", VirtualSize: 1 << 20, State: compute.ImageAvailable}
	if err := l.db.Write(t.Context(), func(tx *store.Tx) error { img.CreatedAt = tx.Now; return tx.InsertImage(&img) }); err != nil {
		t.Fatal(err)
	}
	l.image = img.ID
	return l
}

func (l *fleetLab) fresh(t *testing.T) *Control {
	t.Helper()
	c, err := New(Options{DB: l.db, Dir: l.dir})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func snapshotOf(t *testing.T, c *Control) (out []schedule.Node) {
	t.Helper()
	if err := c.lookAtFleet(t.Context(), func(_ *store.Tx, ix *schedule.Index) error {
		out = ix.Snapshot().Nodes
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i := range out { // nothing held may be nil or empty
		if len(out[i].Held) == 0 {
			out[i].Held = nil
		}
		if len(out[i].Members) == 0 {
			out[i].Members = nil
		}
	}
	return out
}

// step does one thing that may happen.
func (l *fleetLab) step(t *testing.T, c *Control, rnd *rand.Rand) {
	ctx := t.Context()
	node := fmt.Sprintf("n%d", rnd.IntN(5))
	instances, err := c.ListInstances(ctx, iam.System, "default", Page{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	switch rnd.IntN(8) {
	case 0:
		err = l.db.Heartbeat(ctx, &store.Beat{NodeID: node, Facts: compute.NodeFacts{Hostname: node, Role: compute.RoleHybrid, Architecture: "amd64",
			Capacity: compute.Capacity{TotalVCPUs: 4 + rnd.Int64N(3), VCPUOvercommitRatio: 2, TotalMemoryBytes: 64 << 30, MemoryOvercommitRatio: 1, TotalDiskBytes: 1 << 40}}})
	case 1:
		rack, units := fmt.Sprintf("r%d", rnd.IntN(3)), fmt.Sprint(rnd.IntN(4))
		_, err = c.UpdateNode(ctx, iam.System, node, api.PatchNode{DeclaredCapabilities: map[string]*string{compute.LabelRack: &rack, "capability.gpu.x": &units}})
		err = unlessGone(err)
	case 2:
		g, gerr := c.CreatePlacementGroup(ctx, iam.System, "default", api.CreatePlacementGroup{Name: fmt.Sprint("g", l.made), Kind: []string{"spread", "cluster", "partition"}[rnd.IntN(3)], Level: "rack"}, "")
		err = gerr
		l.made++
		l.groups = append(l.groups, g.ID)
	case 3:
		if len(l.groups) > 0 && rnd.IntN(3) == 0 {
			err = unlessGone(c.DeletePlacementGroup(ctx, iam.System, "default", l.groups[0]))
			l.groups = l.groups[1:]
		}
	case 4:
		if n := len(instances.Items); n > 0 {
			i := instances.Items[rnd.IntN(n)]
			err = l.end(t, c, i.ID)
		}
	case 5:
		// A transaction that places and then comes to nothing.
		_ = c.whilePlacing(ctx, func(p *placing) error {
			p.take(schedule.Allocation{NodeID: node, Usage: compute.Usage{VCPUs: 1}})
			return fmt.Errorf("undone")
		})
	case 6:
		err = unlessGone(c.DeleteNode(ctx, iam.System, node))
	default:
		in := api.CreateInstance{Name: "vm", ImageID: l.image, InstanceType: "m1.tiny"}
		if len(l.groups) > 0 && rnd.IntN(2) == 0 {
			in.PlacementGroupID = l.groups[rnd.IntN(len(l.groups))]
		}
		if rnd.IntN(3) == 0 {
			in.Countables = map[string]int64{"capability.gpu.x": 1}
		}
		if _, err = c.CreateInstance(ctx, iam.System, "default", in, ""); err == nil {
			err = l.servers[rnd.IntN(len(l.servers))].placeWaiting(ctx)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// unlessGone passes what is no refusal.
func unlessGone(err error) error {
	if err != nil && fault.From(err).Kind == fault.Internal {
		return err
	}
	return nil
}

// end terminates an instance as its node's word does.
func (l *fleetLab) end(t *testing.T, c *Control, id string) error {
	return l.db.Write(t.Context(), func(tx *store.Tx) error {
		i, err := tx.InstanceByID(id)
		if err != nil || i.State == compute.StateTerminated {
			return err
		}
		i.State, i.TerminatedAt = compute.StateTerminated, tx.Now
		return c.save(tx, &i, "test", "end", "")
	})
}
