package compute

import (
	"fmt"
	"time"
)

// Level is how far apart, or how close together, members of a group stand.
type Level string

const (
	LevelNode  Level = "node"
	LevelRack  Level = "rack"  // topology.rack, within its zone
	LevelPower Level = "power" // topology.power, within its zone
	LevelZone  Level = "zone"
)

// GroupKind is what a placement group asks for.
type GroupKind string

const (
	GroupSpread    GroupKind = "spread"    // at most one member per domain of the level
	GroupCluster   GroupKind = "cluster"   // all members in one domain
	GroupPartition GroupKind = "partition" // no domain holds members of two partitions
)

// MaxPartitions bounds the partitions of a group.
const MaxPartitions = 7

// GroupRule is the rule of a placement group. A strict rule refuses a placement
// that would break it; else the best of what there is counts. A level that a
// node does not declare does not exist (contract N-12), so a strict rule refuses
// that node.
type GroupRule struct {
	Kind       GroupKind
	Level      Level
	Strict     bool  // always set for GroupPartition
	Partitions int64 // of GroupPartition, 2 to MaxPartitions
}

// Check says what is wrong with the rule; nil when nothing is.
func (r GroupRule) Check() error {
	switch r.Level {
	case LevelNode, LevelRack, LevelPower, LevelZone:
	default:
		return fmt.Errorf("the level of a placement group is node, rack, power or zone, not %q", r.Level)
	}
	switch {
	case r.Kind != GroupSpread && r.Kind != GroupCluster && r.Kind != GroupPartition:
		return fmt.Errorf("the kind of a placement group is spread, cluster or partition, not %q", r.Kind)
	case r.Kind != GroupPartition && r.Partitions != 0:
		return fmt.Errorf("only a partition group has partitions, not a %s group", r.Kind)
	case r.Kind == GroupPartition && (r.Partitions < 2 || r.Partitions > MaxPartitions):
		return fmt.Errorf("a partition group has 2 to %d partitions, not %d", MaxPartitions, r.Partitions)
	case r.Kind == GroupPartition && !r.Strict:
		return fmt.Errorf("a partition group is always strict")
	}
	return nil
}

// PlacementGroup is a set of instances with a rule about where they stand
// (contract U-14). Deleting it leaves its members running.
type PlacementGroup struct {
	ID        string
	ProjectID string
	Name      string
	Rule      GroupRule
	CreatedAt time.Time
}
