package control_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// machine is a node that keeps volumes with content, sends them and fetches them, a
// step at a time, so that a test can put anything between two steps.
type machine struct {
	*apptest.Node
	t        *testing.T
	revision string
	told     api.SyncResponse
	vms      map[string]*vm
	files    map[string]string // content by volume id
	unread   map[string]string // uploads that cannot be made, with why
	sent     map[string]bool   // uploads that the server has
}

type vm struct {
	running bool
	epoch   int64 // of the goal that was reached
	phase   compute.Phase
	root    string // volume id
}

func newMachine(t *testing.T, s *apptest.System, id string) *machine {
	m := &machine{Node: s.Node(id), t: t, vms: map[string]*vm{}, files: map[string]string{}, unread: map[string]string{}, sent: map[string]bool{}}
	m.told.Instances = []api.DesiredInstance{}
	return m
}

// restart is an agent that starts anew: it has what is on its disk, and what runs runs on.
func (m *machine) restart() { m.revision, m.told, m.sent = "", api.SyncResponse{}, map[string]bool{} }

// report is all that the machine has.
func (m *machine) report() api.SyncRequest {
	in := api.SyncRequest{Revision: m.revision, Instances: []api.ObservedInstance{}}
	for id, v := range m.vms {
		in.Instances = append(in.Instances, api.ObservedInstance{ID: id, Epoch: v.epoch, Phase: string(v.phase)})
	}
	for _, v := range m.told.Volumes {
		if _, here := m.files[v.ID]; v.Gone && !here {
			in.GoneVolumes = append(in.GoneVolumes, v.ID)
		}
	}
	for _, u := range m.told.Uploads {
		if why := m.unread[u.InstanceID]; why != "" {
			in.FailedUploads = append(in.FailedUploads, api.FailedUpload{ID: u.ID, Message: why})
		}
	}
	return in
}

// sync reports all and takes what is to be.
func (m *machine) sync() {
	m.t.Helper()
	var out api.SyncResponse
	m.Do("POST", api.NodePath(m.ID, "sync"), m.report()).Want(http.StatusOK).Decode(&out)
	if out.Changed {
		m.revision, m.told = out.Revision, out
		named := map[string]bool{}
		for _, d := range out.Instances {
			named[d.ID] = true
		}
		maps.DeleteFunc(m.vms, func(id string, v *vm) bool { return !named[id] && v.phase == compute.PhaseGone })
	}
}

// act does what the last sync told, as far as VMs and volumes go, and says whether
// there was anything to do.
func (m *machine) act() (did bool) {
	m.t.Helper()
	for _, d := range m.told.Instances {
		v := m.vms[d.ID]
		if v != nil && v.epoch == d.Epoch {
			continue
		}
		did = true
		if v == nil {
			v = &vm{}
			m.vms[d.ID] = v
		}
		m.reach(v, d)
	}
	for _, v := range m.told.Volumes {
		if _, here := m.files[v.ID]; v.Gone && here {
			delete(m.files, v.ID)
			did = true
		}
	}
	return did
}

func (m *machine) reach(v *vm, d api.DesiredInstance) {
	m.t.Helper()
	v.epoch = d.Epoch
	for _, vol := range d.Volumes {
		if vol.Root {
			v.root = vol.ID
		}
	}
	switch compute.Goal(d.Goal) {
	case compute.GoalRunning:
		for _, vol := range d.Volumes {
			image := vol.Image
			if vol.Root {
				image = &d.Image
			}
			m.makeVolume(vol.ID, image)
		}
		v.running, v.phase = true, compute.PhaseRunning
	case compute.GoalStopped:
		v.running, v.phase = false, compute.PhaseStopped
	case compute.GoalGone:
		v.running, v.phase = false, compute.PhaseGone
		delete(m.files, v.root)
	}
}

// makeVolume makes a volume that is not here.
func (m *machine) makeVolume(id string, image *api.DesiredImage) {
	m.t.Helper()
	if _, here := m.files[id]; !here {
		m.files[id] = m.fetch(image)
	}
}

// wouldBe is what a start would make a volume of.
func (m *machine) wouldBe(instance, id string) string {
	m.t.Helper()
	for _, d := range m.told.Instances {
		for _, v := range d.Volumes {
			switch {
			case d.ID != instance || v.ID != id:
			case v.Root:
				return m.fetch(&d.Image)
			default:
				return m.fetch(v.Image)
			}
		}
	}
	m.t.Fatalf("%s is to send %s, of which it knows nothing", m.ID, id)
	return ""
}

// fetch is the content of a volume that is made of an image.
func (m *machine) fetch(image *api.DesiredImage) string {
	m.t.Helper()
	if image == nil {
		return "empty"
	}
	a := m.Do("GET", api.NodePath(m.ID, "images", image.SHA256), nil).Want(http.StatusOK)
	sum := sha256.Sum256(a.Body)
	if hex.EncodeToString(sum[:]) != image.SHA256 || int64(len(a.Body)) != image.SizeBytes {
		m.t.Fatalf("%s got an image that is not what it was told", m.ID)
	}
	return contentOf(a.Body)
}

// upload sends the next volume that is wanted, if the VM is at rest.
func (m *machine) upload() (did bool) {
	m.t.Helper()
	for _, u := range m.told.Uploads {
		v := m.vms[u.InstanceID]
		if v == nil || v.running || v.epoch != u.Epoch || m.unread[u.InstanceID] != "" {
			continue
		}
		for n, id := range u.VolumeIDs {
			key := u.ID + strconv.Itoa(n)
			if m.sent[key] {
				continue
			}
			content, here := m.files[id]
			if !here { // it was never started here
				content = m.wouldBe(u.InstanceID, id)
			}
			a := m.Do("PUT", api.NodePath(m.ID, "uploads", u.ID, strconv.Itoa(n)), diskOf(content))
			if a.Status != http.StatusNotFound { // given up meanwhile
				a.Want(http.StatusNoContent)
			}
			m.sent[key] = true
			return true
		}
	}
	return false
}

// step does one thing after another until there is nothing to do.
func settle(machines ...*machine) {
	for idle := 0; idle < 2; {
		idle++
		for _, m := range machines {
			m.sync()
			if m.act() || m.upload() {
				idle = 0
			}
		}
	}
}

// diskOf is a raw disk with a text in its first sector.
func diskOf(content string) []byte {
	disk := make([]byte, 1<<20)
	copy(disk, "disk:"+content)
	return disk
}

func contentOf(disk []byte) string {
	text, ok := strings.CutPrefix(strings.TrimRight(string(disk[:512]), "\x00"), "disk:")
	if !ok {
		return "image"
	}
	return text
}

// write is what a guest does to its root volume.
func (m *machine) write(id, content string) { m.files[m.vms[id].root] = content }

// runningOn lists the machines on which the VM runs.
func runningOn(machines []*machine, id string) (on []string) {
	for _, m := range machines {
		if v := m.vms[id]; v != nil && v.running {
			on = append(on, m.ID)
		}
	}
	return on
}

// hasFile lists the machines that have the volume.
func hasFile(machines []*machine, volume string) (on []string) {
	for _, m := range machines {
		if _, here := m.files[volume]; here {
			on = append(on, m.ID)
		}
	}
	slices.Sort(on)
	return on
}

func timeline(t *testing.T, s *apptest.System, project, id string) string {
	t.Helper()
	var out api.List[api.Event]
	s.Operator.Do("GET", api.InstancePath(project, id, "events")+"?limit=1000", nil).Want(200).Decode(&out)
	var b strings.Builder
	for _, e := range out.Items {
		fmt.Fprintf(&b, "%s by %s: %s %q\n", e.Event, e.Actor, e.State, e.Message)
	}
	return b.String()
}
