package compute

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Labels that say where a node stands. The zone's is published from the node's
// own zone, the others are declared by the operator: a machine does not say
// where it stands (contract N-12).
const (
	LabelZone  = "topology.az"
	LabelRack  = "topology.rack"
	LabelPower = "topology.power"
)

const (
	topologyPrefix   = "topology."
	capabilityPrefix = "capability."
)

// LabelKind says what the value of a label means (contract N-13).
type LabelKind string

const (
	KindDescriptive LabelKind = "descriptive" // matched by equality, consumed by nothing
	KindBoolean     LabelKind = "boolean"     // "true" or "false"; absent is neither
	KindCountable   LabelKind = "countable"   // a whole number of units that placement hands out
	KindOwn         LabelKind = "own"         // the operator's own key, never interpreted
)

// labelKinds declares the kind of every key of the reserved namespaces.
var labelKinds = map[string]LabelKind{
	LabelZone:  KindDescriptive,
	LabelRack:  KindDescriptive,
	LabelPower: KindDescriptive,

	"capability.cpu.model":   KindDescriptive,
	"capability.cpu.sockets": KindDescriptive,
	"capability.cpu.cores":   KindDescriptive,
	"capability.cpu.threads": KindDescriptive,

	"capability.gpu.present": KindBoolean,
	"capability.mem.ecc":     KindBoolean,
	"capability.sec.tpm":     KindBoolean,
	"capability.virt.nested": KindBoolean,

	"capability.net.sriov_vfs":    KindCountable,
	"capability.mem.hugepages_1g": KindCountable,

	// Operational keys (contract N-16).
	"capability.migration.transport":   KindDescriptive,
	"capability.host.binaries_commit":  KindDescriptive,
	"capability.host.binaries_stale":   KindBoolean,
	"capability.host.binaries_unknown": KindDescriptive,
	"capability.host.binaries_source":  KindDescriptive,
	"capability.host.dev_mode":         KindBoolean,
}

// countableFamilies are open: a new model is data, no change here.
var countableFamilies = []string{"capability.gpu.", "capability.accel."}

// formerLabels are names from before there were namespaces. They are never sent
// (contract N-12), whoever reports them.
var formerLabels = map[string]bool{"hasGpu": true, "cpuModel": true, "migrationTransport": true}

// WithoutFormer are labels less the names of the past; the same map where it has none.
func WithoutFormer(labels map[string]string) map[string]string {
	var out map[string]string
	for k := range formerLabels {
		if _, ok := labels[k]; !ok {
			continue
		}
		if out == nil {
			out = maps.Clone(labels)
		}
		delete(out, k)
	}
	if out == nil {
		return labels
	}
	return out
}

// LabelKindOf is the declared kind of key, never inferred from a value. An
// unknown key of a reserved namespace is descriptive.
func LabelKindOf(key string) LabelKind {
	if k, ok := labelKinds[key]; ok {
		return k
	}
	for _, family := range countableFamilies {
		if model, ok := strings.CutPrefix(key, family); ok && model != "" {
			return KindCountable
		}
	}
	if strings.HasPrefix(key, topologyPrefix) || strings.HasPrefix(key, capabilityPrefix) {
		return KindDescriptive
	}
	return KindOwn
}

// CountableUnits reads the value of a countable label: a whole number, not
// negative. Anything else counts as not reported, which is not zero (contract N-14).
func CountableUnits(value string) (int64, bool) {
	n, err := strconv.ParseInt(value, 10, 64)
	return n, err == nil && n >= 0
}

// readable reports whether value is one that the kind of key allows.
func readable(key, value string) bool {
	switch LabelKindOf(key) {
	case KindBoolean:
		return value == "true" || value == "false"
	case KindCountable:
		_, ok := CountableUnits(value)
		return ok
	}
	return true
}

// CheckDeclaredLabel says why an operator may not declare key=value; nil when
// fine. The limits are those of a heartbeat's capabilities (contract N-02).
func CheckDeclaredLabel(key, value string) error {
	switch {
	case key == "" || utf8.RuneCountInString(key) > 253:
		return fmt.Errorf("a label's key has 1 to 253 characters, this one has %d", utf8.RuneCountInString(key))
	case utf8.RuneCountInString(value) > 1024:
		return fmt.Errorf("the value of a label has at most 1,024 characters, this one has %d", utf8.RuneCountInString(value))
	case key == LabelZone:
		return fmt.Errorf("%s follows the node's availability zone; set the zone where the node's agent is configured", key)
	case strings.HasPrefix(key, topologyPrefix) && labelKinds[key] == "":
		return fmt.Errorf("%s is reserved; of topology.* only %s and %s can be declared", key, LabelRack, LabelPower)
	case strings.HasPrefix(key, topologyPrefix) && value == "":
		return fmt.Errorf("%s needs a name; take the label back to undeclare the level", key)
	case formerLabels[key]:
		return fmt.Errorf("%s is a name of the past; use its capability.* key", key)
	case readable(key, value):
		return nil
	case LabelKindOf(key) == KindBoolean:
		return fmt.Errorf("%s is true or false, not %q", key, value)
	default:
		return fmt.Errorf("%s is a whole number of units, 0 or more, not %q", key, value)
	}
}

// Override is a label whose declared value wins over what was detected (contract N-15).
type Override struct{ Key, Declared, Detected string }

// MergeLabels are the labels in effect: declared over detected, and the zone's.
// The second result lists what declaring overrode, by key; a caller logs when it
// differs from the list before. Values that their kind does not allow, a
// position that a machine reports of itself, and names of the past are left out.
func MergeLabels(declared, detected map[string]string, zone string) (map[string]string, []Override) {
	labels := make(map[string]string, len(declared)+len(detected)+1)
	for k, v := range detected {
		if !strings.HasPrefix(k, topologyPrefix) && !formerLabels[k] && readable(k, v) {
			labels[k] = v
		}
	}
	var overrides []Override
	for k, v := range declared {
		if CheckDeclaredLabel(k, v) != nil {
			continue
		}
		if d, ok := labels[k]; ok && d != v {
			overrides = append(overrides, Override{k, v, d})
		}
		labels[k] = v
	}
	if zone != "" {
		labels[LabelZone] = zone
	}
	slices.SortFunc(overrides, func(a, b Override) int { return strings.Compare(a.Key, b.Key) })
	return labels, overrides
}

// Labels are the node's labels in effect and what declaring overrode.
func (n *Node) Labels() (map[string]string, []Override) {
	return MergeLabels(n.Spec.DeclaredCapabilities, n.Facts.Capabilities, n.Facts.AvailabilityZone)
}

// Countables are the units of each countable key in labels. A key that is not
// there is not reported, which is not zero (contract N-14).
func Countables(labels map[string]string) map[string]int64 {
	var units map[string]int64
	for k, v := range labels {
		if LabelKindOf(k) != KindCountable {
			continue
		}
		if n, ok := CountableUnits(v); ok {
			if units == nil {
				units = make(map[string]int64)
			}
			units[k] = n
		}
	}
	return units
}

// FreeCountables is total less committed per key, never below zero: an operator
// may have shrunk a total under guests that keep what they hold (contract N-17).
// A key that total does not have stays absent.
func FreeCountables(total, committed map[string]int64) map[string]int64 {
	free := maps.Clone(total)
	for k := range free {
		free[k] = max(0, free[k]-committed[k])
	}
	return free
}
