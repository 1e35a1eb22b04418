package node

import (
	"reflect"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// order is the newest goal of one VM. The zero order is that of a VM which the
// server does not name.
type order struct {
	goal     compute.Goal
	desired  api.DesiredInstance
	deadline time.Time // until when a guest that is up may take to go down
}

// newOrder reads what the server wants. A goal that this agent does not know
// changes nothing on the node: the server may be newer.
func newOrder(d api.DesiredInstance, received time.Time) order {
	o := order{goal: compute.Goal(d.Goal), desired: d, deadline: received}
	switch {
	case actions[o.goal] == nil:
		o.goal = goalNone
	case d.Force || o.goal == compute.GoalGone:
	case d.StopWithinMS > 0:
		o.deadline = received.Add(time.Duration(d.StopWithinMS) * time.Millisecond)
	case d.Reboot:
		o.deadline = received.Add(compute.DefaultStopDeadline)
	}
	return o
}

// after merges a newer order into o and says whether there is anything new in
// it. The same goal told again can only bring its deadline nearer (lesson 20);
// less than a second is the wobble of the wire.
func (o order) after(n order) (order, bool) {
	same := o.goal == n.goal && o.desired.Epoch == n.desired.Epoch
	nearer := n.deadline.Before(o.deadline.Add(-time.Second)) || n.desired.Force && !o.desired.Force
	if same && !nearer {
		n.deadline = o.deadline
	}
	return n, !same || nearer || !reflect.DeepEqual(o.timeless(), n.timeless())
}

func (o order) timeless() api.DesiredInstance {
	o.desired.StopWithinMS = 0
	return o.desired
}
