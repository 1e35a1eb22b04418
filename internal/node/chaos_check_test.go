package node

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// books is all that the server knows, as of one moment.
type books struct {
	instances map[string]store.Instance
	nodes     map[string]compute.Node
	left      map[string]bool // node and instance: it left, and the node may still have something of it
}

// read looks into the database while everything else stands still.
func (c *chaos) read() (b books, err error) {
	synctest.Wait()
	b = books{map[string]store.Instance{}, map[string]compute.Node{}, map[string]bool{}}
	return b, c.server.db.Read(context.Background(), func(tx *store.Tx) error {
		list, err := tx.Instances("default", store.Cursor{}, 100000)
		for _, i := range list {
			b.instances[i.ID] = i
		}
		nodes, nerr := tx.Nodes("", 100)
		for _, n := range nodes {
			b.nodes[n.ID] = n
			left, lerr := tx.DeparturesOn(n.ID)
			for _, d := range left {
				b.left[n.ID+" "+d.ID] = true
			}
			err = errors.Join(err, lerr)
		}
		return errors.Join(err, nerr)
	})
}

// check holds what has to hold at every moment.
func (c *chaos) check() error {
	if !c.server.up() {
		return nil
	}
	b, err := c.read()
	if err != nil {
		return err
	}
	var wrong []error
	add := func(id, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf(format+"\n%s", append(args, c.story(id))...))
	}
	runs := map[string]string{}
	for _, box := range c.boxes {
		for _, vm := range box.list() {
			i, known := b.instances[vm.ID]
			if vm.BootID != "" && runs[vm.ID] != "" {
				add(vm.ID, "%s runs on %s and on %s", vm.ID, runs[vm.ID], box.id)
			}
			if vm.BootID != "" {
				runs[vm.ID] = box.id
			}
			left := b.left[box.id+" "+vm.ID] && (vm.BootID == "" || box.declaredOff)
			if (!known || i.State == compute.StateTerminated || i.NodeID != box.id) && !left {
				add(vm.ID, "%s has the VM %s (%s), which is %q on %q", box.id, vm.ID, vm.State, i.State, i.NodeID)
			}
		}
	}
	used := map[string]compute.Usage{}
	for id, i := range b.instances {
		if i.State == compute.StateError && i.Message == "" {
			add(id, "%s is in error and does not say why", id)
		}
		if i.ForceStopping && i.State != compute.StateStopping && i.State != compute.StateRebooting {
			add(id, "%s is %s and is being stopped by force", id, i.State)
		}
		on := []string{i.NodeID}
		if i.Move != nil {
			on = append(on, i.Move.To)
		}
		for _, node := range on {
			if node != "" && i.State != compute.StateTerminated {
				u := used[node]
				u.VCPUs += i.Spec.Shape.VCPUs
				u.MemoryBytes += i.Spec.Shape.MemoryBytes
				used[node] = u
			}
		}
	}
	for id, n := range b.nodes {
		if n.Used.VCPUs != used[id].VCPUs || n.Used.MemoryBytes != used[id].MemoryBytes {
			add(id, "node %s has %+v allocated, its instances sum up to %+v", id, n.Used, used[id])
		}
		if room := n.Committable(); n.Used.VCPUs > room.VCPUs || n.Used.MemoryBytes > room.MemoryBytes {
			add(id, "node %s has %+v allocated and room for %+v", id, n.Used, room)
		}
	}
	audit, err := c.server.ctl.GetAudit(context.Background(), iam.System)
	for _, f := range audit.Findings {
		if !slices.Contains([]string{"NotReported", "UnknownVM", "VMElsewhere"}, f.Code) { // a report may be late
			add(f.InstanceID, "audit: %s: %s (%s, %s)", f.Code, f.Message, f.InstanceID, f.NodeID)
		}
	}
	return errors.Join(append(wrong, err)...)
}

// story is what is known of an instance, for a person.
func (c *chaos) story(id string) string {
	var out []string
	if events, err := c.events(id); err == nil {
		for _, e := range events {
			out = append(out, fmt.Sprintf("  %12v %s by %s: %s %s", e.At.Sub(c.began).Round(time.Millisecond), e.Event, e.Actor, e.State, e.Message))
		}
	}
	for _, l := range c.log {
		if strings.Contains(l, id) {
			out = append(out, "  asked: "+l)
		}
	}
	return strings.Join(out, "\n") + "\n" + c.logs.about(40, id)
}

func (c *chaos) events(id string) ([]api.Event, error) {
	list, err := c.server.ctl.ListEvents(context.Background(), iam.System, "default", id, control.Page{Limit: control.MaxLimit})
	return list.Items, err
}

// Bounds of the end: how long until everything has come to rest, and until what was
// terminated is forgotten.
const (
	chaosRest   = 25 * time.Minute
	chaosForget = compute.TerminatedListed + 15*time.Minute
)

// settle puts everything right and looks at what has become of it; then it
// terminates all, and looks at what is left.
func (c *chaos) settle() error {
	if !c.server.up() {
		if err := c.server.start(); err != nil {
			return err
		}
	}
	c.due = nil
	for _, b := range c.boxes {
		b.link.turn(fair)
		b.vms.SetDown(false)
		b.fill(false)
		b.dieAt(nil)
		b.stop()
		if err := b.start(); err != nil {
			return err
		}
	}
	time.Sleep(time.Minute) // until all are heard of
	for _, b := range c.boxes {
		if err := c.tenant.Do(context.Background(), "POST", api.NodePath(b.id, "uncordon"), nil, nil); err != nil {
			return err
		}
	}
	time.Sleep(chaosRest)
	if err := errors.Join(c.check(), c.settled()); err != nil {
		return fmt.Errorf("at rest: %w", err)
	}
	c.became = map[string]int{}
	for _, id := range c.ids {
		events, _ := c.events(id)
		for _, e := range events {
			c.became[e.Event]++
		}
		err := c.tenant.Do(context.Background(), "DELETE", api.InstancePath("default", id), nil, nil)
		if err != nil && !fault.Is(err, fault.NotFound) { // those that were terminated long ago are forgotten
			return fmt.Errorf("terminate %s: %w", id, err)
		}
	}
	time.Sleep(5 * time.Minute)
	if err := errors.Join(c.clearDisks(), c.check(), c.empty()); err != nil {
		return fmt.Errorf("when all were terminated: %w", err)
	}
	time.Sleep(chaosForget)
	return c.forgotten()
}

// settled says what is not as it was asked for.
func (c *chaos) settled() error {
	b, err := c.read()
	if err != nil {
		return err
	}
	var wrong []error
	for _, id := range c.ids {
		i, known := b.instances[id]
		w := c.wishes[id]
		add := func(format string, args ...any) {
			wrong = append(wrong, fmt.Errorf(id+" "+format+"\n%s", append(args, c.story(id))...))
		}
		if !known {
			if w.state != "terminated" && !w.perhapsGone {
				add("is gone, and %s was asked for", w.state)
			}
			continue
		}
		if i.State.Transitional() {
			add("is still %s (%s)", i.State, i.Message)
			continue
		}
		if w.perhapsGone && i.State == compute.StateTerminated {
			continue
		}
		want := w.state
		if w.desired != "" && w.state != "terminated" {
			want = w.desired
		}
		if want != "" && want != "?" && string(i.State) != want && !c.excused(&i) {
			add("is %s (%s), and %s was asked for", i.State, i.Message, want)
		}
		if lost := c.lost(i.NodeID, id, w.wrote); len(lost) > 0 {
			add("has lost what its guest wrote: %q", lost)
		}
		vm, seeds := c.vm(i.NodeID, id)
		switch i.State {
		case compute.StateRunning:
			text := slices.IndexFunc(w.userData, func(t string) bool { return digest([]byte(t)) == i.Spec.UserDataHash })
			if vm != hypervisor.Running {
				add("should run, its VM is %q", vm)
			}
			if text < 0 {
				add("has user-data that nobody gave it")
			} else if !seeds.sawUserData(id, w.userData[text]) {
				add("booted with other user-data than it has")
			}
		case compute.StateStopped, compute.StateError:
			if vm == hypervisor.Running || vm == hypervisor.Paused {
				add("is %s (%s), and its VM is %s", i.State, i.Message, vm)
			}
		}
	}
	return errors.Join(wrong...)
}

// excused: the nodes were full or out of service, or the instance's own could not do
// it in time, as its hypervisor or its disk let it down; and nobody wishes more than
// to be told so.
func (c *chaos) excused(i *store.Instance) bool {
	events, err := c.events(i.ID)
	if i.State != compute.StateError || i.Spec.DesiredState != "" || err != nil {
		return false
	}
	asked := time.Time{}
	for _, e := range events {
		switch {
		case e.Actor == "operator" && e.Event != "update":
			asked = e.At
		case e.Event == "unplaceable":
			return true
		case e.Event == "deadline":
			for _, t := range c.troubles {
				if t.node == i.NodeID && t.from.Before(e.At) && t.to.After(asked) {
					return true
				}
			}
		}
	}
	return false
}

func (c *chaos) vm(node, id string) (hypervisor.State, *guests) {
	for _, b := range c.boxes {
		if b.id != node {
			continue
		}
		for _, vm := range b.list() {
			if vm.ID == id {
				return vm.State, b.vms
			}
		}
		return "", b.vms
	}
	return "", nil
}

// lost is what is not on the root volume of an instance any more.
func (c *chaos) lost(node, id string, wrote []string) (lost []string) {
	for _, b := range c.boxes {
		if b.id != node || len(wrote) == 0 {
			continue
		}
		dir := filepath.Join(b.vms.dir, "instances", id)
		text, err := diskText(filepath.Join(dir, fileRoot), filepath.Join(dir, fileBase))
		if errors.Is(err, os.ErrNotExist) { // it was moved while it was stopped, and is made with its next start
			continue
		}
		for _, w := range wrote {
			if !strings.Contains(string(text), w) {
				lost = append(lost, w)
			}
		}
	}
	return lost
}

// empty says what is left although every instance is terminated.
func (c *chaos) empty() error {
	b, err := c.read()
	if err != nil {
		return err
	}
	var wrong []error
	for id, i := range b.instances {
		if i.State != compute.StateTerminated {
			wrong = append(wrong, fmt.Errorf("%s is still %s\n%s", id, i.State, c.story(id)))
		}
	}
	for _, box := range c.boxes {
		if d, _ := box.net.Current(); len(d.Ports)+len(d.Subnets) > 0 {
			wrong = append(wrong, fmt.Errorf("%s still has the network %+v", box.id, d))
		}
		for _, folder := range []string{"instances", "volumes", "uploads"} {
			entries, err := os.ReadDir(filepath.Join(box.vms.dir, folder))
			for _, e := range entries {
				wrong = append(wrong, fmt.Errorf("%s still has %s/%s\n%s", box.id, folder, e.Name(), c.story(e.Name())))
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				wrong = append(wrong, err)
			}
		}
	}
	return errors.Join(append(wrong, c.rows(map[string]string{
		"allocations": "SELECT COUNT(*) FROM allocations", "volumes": "SELECT COUNT(*) FROM volumes",
		"blobs": "SELECT COUNT(*) FROM blobs", "cards": "SELECT COUNT(*) FROM interfaces WHERE instance_id <> ''",
		"departures":          "SELECT COUNT(*) FROM departures",
		"addresses of nobody": "SELECT COUNT(*) FROM interfaces WHERE released_at = 0",
	}))...)
}

// forgotten says what of terminated instances is still known after they are no
// longer listed.
func (c *chaos) forgotten() error {
	synctest.Wait()
	files, err := os.ReadDir(filepath.Join(c.server.dir, "images"))
	if len(files) != 1 {
		err = errors.Join(err, fmt.Errorf("%d image files of 1 image: %v", len(files), files))
	}
	return errors.Join(err, c.rows(map[string]string{
		"instances": "SELECT COUNT(*) FROM instances", "events": "SELECT COUNT(*) FROM events", "guest agents": "SELECT COUNT(*) FROM instance_agents", "uploads": "SELECT COUNT(*) FROM image_uploads",
	}))
}

// rows says which of the counts are not 0.
func (c *chaos) rows(counts map[string]string) error {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(c.server.dir, "outcrop.db")+"?_pragma=query_only(1)")
	if err != nil {
		return err
	}
	defer db.Close()
	var wrong []error
	for what, query := range counts {
		n := 0
		if err := db.QueryRow(query).Scan(&n); err != nil || n != 0 {
			wrong = append(wrong, fmt.Errorf("%d %s are left, %w", n, what, errors.Join(err)))
		}
	}
	return errors.Join(wrong...)
}
