package apptest

import (
	"net/http"
	"slices"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/iam"
)

// Node is a node agent as the server sees one: it beats and syncs when the test
// says so, and its VMs do at once what they are told.
type Node struct {
	*Client
	ID string
	// Phase, where set, says what becomes of a VM in place of its goal; empty
	// leaves the goal.
	Phase func(d api.DesiredInstance) (compute.Phase, string)
	// What its syncs say of its boot, of a power action and of packets that it sent.
	BootID string
	Power  *api.PowerReport
	Woke   []api.WakeReport

	mu       sync.Mutex
	revision string
	vms      map[string]api.ObservedInstance
	desired  map[string]api.DesiredInstance
}

// Machine is what the nodes of a test report: room for many small instances.
func Machine(id string) *api.Heartbeat {
	one := 1.0
	return &api.Heartbeat{
		Hostname: id, Role: string(compute.RoleHypervisor), Architecture: "amd64",
		Capacity: api.HeartbeatCapacity{
			TotalVCPUs: 64, VCPUOvercommitRatio: &one, TotalMemoryBytes: 256 << 30, MemoryOvercommitRatio: &one, TotalDiskBytes: 8 << 40,
		},
	}
}

// Node makes a token for the node and sends its first heartbeat.
func (s *System) Node(id string) *Node {
	s.t.Helper()
	n := s.NodeToken(id)
	n.Beat(Machine(id))
	return n
}

// NodeToken is a node that has not reported yet.
func (s *System) NodeToken(id string) *Node {
	s.t.Helper()
	return &Node{
		Client: s.As(s.Token(api.CreateToken{Role: string(iam.Node), NodeID: id})), ID: id,
		vms: map[string]api.ObservedInstance{}, desired: map[string]api.DesiredInstance{},
	}
}

// Beat sends a heartbeat.
func (n *Node) Beat(h *api.Heartbeat) (out api.Node) {
	n.s.t.Helper()
	n.Do("PUT", api.NodePath(n.ID, "heartbeat"), h).Want(http.StatusOK).Decode(&out)
	return out
}

// Sync reports what the node has and takes what it is to do; the server may hold
// the answer for up to wait seconds.
func (n *Node) Sync(wait int64) (out api.SyncResponse) {
	n.s.t.Helper()
	n.mu.Lock()
	in := api.SyncRequest{Revision: n.revision, Instances: []api.ObservedInstance{}, WaitSeconds: wait, BootID: n.BootID, Power: n.Power, Wakes: n.Woke}
	for _, v := range n.vms {
		in.Instances = append(in.Instances, v)
	}
	n.mu.Unlock()
	n.Do("POST", api.NodePath(n.ID, "sync"), in).Want(http.StatusOK).Decode(&out)
	if !out.Changed {
		return out
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.revision = out.Revision
	n.desired = map[string]api.DesiredInstance{}
	for _, d := range out.Instances {
		n.desired[d.ID] = d
	}
	return out
}

// Act does what the last sync told and reports whether anything changed.
func (n *Node) Act() (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.vms {
		if _, wanted := n.desired[id]; !wanted {
			delete(n.vms, id)
		}
	}
	for id, d := range n.desired {
		next := n.next(d)
		if n.vms[id] != next {
			n.vms[id] = next
			changed = true
		}
	}
	return changed
}

var reached = map[string]compute.Phase{
	string(compute.GoalRunning): compute.PhaseRunning, string(compute.GoalStopped): compute.PhaseStopped, string(compute.GoalGone): compute.PhaseGone,
}

func (n *Node) next(d api.DesiredInstance) api.ObservedInstance {
	o := api.ObservedInstance{ID: d.ID, Epoch: d.Epoch, Phase: string(reached[d.Goal])}
	if n.Phase != nil {
		if p, message := n.Phase(d); p != "" {
			o.Phase, o.Message = string(p), message
		}
	}
	return o
}

// Settle syncs and acts until there is nothing left to do.
func (n *Node) Settle() {
	n.s.t.Helper()
	for n.Sync(0).Changed && n.Act() {
	}
}

// Desired is what the node was last told of an instance.
func (n *Node) Desired(id string) (api.DesiredInstance, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d, ok := n.desired[id]
	return d, ok
}

// Drive syncs and acts until the instance is in one of the states; the answers
// are held, so nothing spins.
func (n *Node) Drive(project, id string, states ...compute.InstanceState) api.Instance {
	n.s.t.Helper()
	for idle := 0; ; idle++ {
		i := n.s.Operator.Instance(project, id)
		if slices.Contains(states, compute.InstanceState(i.State)) {
			return i
		}
		if idle == maxIdle {
			n.s.t.Fatalf("instance %s stays %s (%s); want one of %v", id, i.State, i.StateMessage, states)
		}
		wait := int64(5)
		if n.Act() {
			idle, wait = 0, 0
		}
		n.Sync(wait)
	}
}

// maxIdle is how many held syncs without news end Drive.
const maxIdle = 6

// Launch makes a running instance on the node.
func (n *Node) Launch(project string, in api.CreateInstance) api.Instance {
	n.s.t.Helper()
	i := n.s.Create(project, in)
	return n.Drive(project, i.ID, compute.StateRunning)
}

// Create asks for an instance by the operator; what the request does not say is
// small.
func (s *System) Create(project string, in api.CreateInstance) (i api.Instance) {
	s.t.Helper()
	if in.Name == "" {
		in.Name = "vm"
	}
	if in.ImageID == "" {
		in.ImageID = s.Image(project)
	}
	if in.InstanceType == "" && in.VCPUs == 0 {
		in.InstanceType = "m1.tiny"
	}
	s.Operator.Do("POST", api.InstancePath(project, ""), in).Want(http.StatusAccepted).Decode(&i)
	return i
}

// Stopped makes a stopped instance on the node.
func (n *Node) Stopped(project string, in api.CreateInstance) api.Instance {
	n.s.t.Helper()
	i := n.Launch(project, in)
	n.s.Operator.Do("POST", api.InstancePath(project, i.ID, "stop"), nil).Want(http.StatusAccepted)
	return n.Drive(project, i.ID, compute.StateStopped)
}
