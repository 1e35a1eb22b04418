package api

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// Bounds of a heartbeat (contract N-02), in characters where not said otherwise.
const (
	maxHostname     = 253
	maxCapabilities = 512 // entries
	maxCapKey       = 253
	maxCapValue     = 1024
	maxText         = 1024 // of the optional texts
)

// DecodeHeartbeat reads and checks a heartbeat. A good one is decoded straight
// into the struct; where that or the check fails, the body is read once more,
// field by field, to name every problem at once (contract E-02, N-04).
func DecodeHeartbeat(b []byte) (*Heartbeat, error) {
	h := new(Heartbeat)
	if jsonv2.Unmarshal(b, h) == nil && h.good() {
		return h, nil
	}
	return decodeSlowly(b)
}

// good reports whether a heartbeat that decoded is within all bounds and has all
// that it needs. A required count that is 0 may be absent: the slow path tells.
func (h *Heartbeat) good() bool {
	c := &h.Capacity
	return (c.SampledAt == nil || PlausibleMoment(*c.SampledAt)) && h.Hostname != "" && fits(h.Hostname, maxHostname) &&
		slices.Contains(compute.Roles, compute.Role(h.Role)) && slices.Contains(compute.Architectures, h.Architecture) &&
		fits(h.Region, maxText) && fits(h.AvailabilityZone, maxText) && fits(h.BootID, maxText) && !strings.Contains(h.BootID, "\x00") && fits(h.MachineID, maxText) && fits(h.WakeOnLanMAC, maxText) &&
		fits(c.Architecture, maxText) && fits(c.KVMVersion, maxText) &&
		c.TotalVCPUs > 0 && c.TotalMemoryBytes > 0 && c.TotalDiskBytes > 0 &&
		c.ReservedVCPUs >= 0 && c.CommittedVCPUs >= 0 && c.ReservedMemoryBytes >= 0 && c.CommittedMemoryBytes >= 0 &&
		goodRatio(c.VCPUOvercommitRatio) && goodRatio(c.MemoryOvercommitRatio) && goodCapabilities(h.Capabilities)
}

// PlausibleMoment reports whether t can be written as RFC 3339 in UTC, too: year 0
// or 9999 in another zone may lie outside of it there.
func PlausibleMoment(t time.Time) bool { y := t.UTC().Year(); return 0 <= y && y <= 9999 }

func fits(s string, max int) bool { return len(s) <= max || utf8.RuneCountInString(s) <= max }

func goodRatio(r *float64) bool { return r == nil || (*r > 0 && *r <= math.MaxFloat64) }

func goodCapabilities(m map[string]string) bool {
	if len(m) > maxCapabilities {
		return false
	}
	for k, v := range m {
		if k == "" || v == "" || !fits(k, maxCapKey) || !fits(v, maxCapValue) {
			return false // an empty value may have been null
		}
	}
	return true
}

// fieldReader reads one JSON object field by field and gathers what is wrong.
type fieldReader struct {
	prefix string
	values map[string]jsontext.Value
	bad    *[]fault.Field
}

func (r fieldReader) fail(name, message string) {
	*r.bad = append(*r.bad, fault.Field{Path: r.prefix + name, Message: message})
}

// take returns the raw value of a field; null counts as absent.
func (r fieldReader) take(name string, required bool) (jsontext.Value, bool) {
	v, ok := r.values[name]
	if ok && v.Kind() != 'n' {
		return v, true
	}
	if required {
		r.fail(name, "is needed")
	}
	return nil, false
}

func (r fieldReader) object(name string, required bool) (fieldReader, bool) {
	out := fieldReader{prefix: r.prefix + name + ".", bad: r.bad}
	v, ok := r.take(name, required)
	if !ok {
		return out, false
	}
	if v.Kind() != '{' || jsonv2.Unmarshal(v, &out.values) != nil {
		r.fail(name, "must be an object")
		return out, false
	}
	return out, true
}

func (r fieldReader) text(name string, required bool, max int) (s string) {
	v, ok := r.take(name, required)
	switch {
	case !ok:
	case v.Kind() != '"' || jsonv2.Unmarshal(v, &s) != nil:
		r.fail(name, "must be a string")
	case required && s == "":
		r.fail(name, "must not be empty")
	case !fits(s, max):
		r.fail(name, "has more than "+strconv.Itoa(max)+" characters")
	}
	return s
}

func (r fieldReader) choice(name string, known []string) string {
	s := r.text(name, true, maxText)
	if s != "" && !slices.Contains(known, s) {
		r.fail(name, "is one of "+strings.Join(known, ", "))
	}
	return s
}

func (r fieldReader) flag(name string) *bool {
	v, ok := r.take(name, false)
	if !ok {
		return nil
	}
	var b bool
	if jsonv2.Unmarshal(v, &b) != nil {
		r.fail(name, "must be true or false")
		return nil
	}
	return &b
}

// count reads a whole number of 0 or more that fits 64 bits. 1.0 and 1e3 are
// whole numbers too.
func (r fieldReader) count(name string, required bool) int64 {
	v, ok := r.take(name, required)
	if !ok {
		return 0
	}
	n, ok := wholeNumber(v)
	switch {
	case v.Kind() != '0':
		r.fail(name, "must be a number")
	case !ok:
		r.fail(name, "must be a whole number below 2^63")
	case n < 0:
		r.fail(name, "must not be negative")
	default:
		return n
	}
	return 0
}

// maxNumberText bounds a number's text, so that 1e999999999 costs nothing.
const maxNumberText = 40

func wholeNumber(v jsontext.Value) (int64, bool) {
	s := string(v)
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.Abs(f) > 1e19 || len(s) > maxNumberText {
		return 0, false
	}
	if f != 0 && math.Abs(f) < 1e-3 {
		return 0, false
	}
	x, ok := new(big.Rat).SetString(s)
	if !ok || !x.IsInt() || !x.Num().IsInt64() {
		return 0, false
	}
	return x.Num().Int64(), true
}

func (r fieldReader) ratio(name string) *float64 {
	v, ok := r.take(name, false)
	if !ok {
		return nil
	}
	f, err := strconv.ParseFloat(string(v), 64)
	switch {
	case v.Kind() != '0':
		r.fail(name, "must be a number")
	case err != nil || math.IsInf(f, 0) || !(f > 0):
		r.fail(name, "must be above 0 and finite")
	default:
		return &f
	}
	return nil
}

func (r fieldReader) moment(name string) *time.Time {
	s := r.text(name, false, maxText)
	if v, ok := r.take(name, false); !ok || v.Kind() != '"' {
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || !PlausibleMoment(t) {
		r.fail(name, "must be a time as RFC 3339 writes it, e.g. 2026-04-15T12:00:00Z")
		return nil
	}
	return &t
}

func (r fieldReader) labels(name string) map[string]string {
	o, ok := r.object(name, false)
	if !ok {
		return nil
	}
	if len(o.values) > maxCapabilities {
		r.fail(name, "has more than "+strconv.Itoa(maxCapabilities)+" entries")
		return nil
	}
	out := make(map[string]string, len(o.values))
	for k, v := range o.values {
		var s string
		switch {
		case k == "" || !fits(k, maxCapKey):
			r.fail(name, "has a key that is empty or longer than "+strconv.Itoa(maxCapKey)+" characters")
		case v.Kind() != '"' || jsonv2.Unmarshal(v, &s) != nil:
			o.fail(k, "must be a string")
		case !fits(s, maxCapValue):
			o.fail(k, "has more than "+strconv.Itoa(maxCapValue)+" characters")
		}
		out[k] = s
	}
	return out
}

func decodeSlowly(b []byte) (*Heartbeat, error) {
	var bad []fault.Field
	r := fieldReader{bad: &bad}
	if err := jsonv2.Unmarshal(b, &r.values); err != nil || r.values == nil {
		return nil, fault.InvalidFields([]fault.Field{{Message: "the body is not one JSON object" + syntaxHint(b)}})
	}
	roles := make([]string, len(compute.Roles))
	for i, role := range compute.Roles {
		roles[i] = string(role)
	}
	h := &Heartbeat{
		Hostname: r.text("hostname", true, maxHostname), Role: r.choice("role", roles),
		Region: r.text("region", false, maxText), AvailabilityZone: r.text("availabilityZone", false, maxText),
		Architecture: r.choice("architecture", compute.Architectures), Capabilities: r.labels("capabilities"),
		BootID: r.text("bootId", false, maxText), MachineID: r.text("machineId", false, maxText), WakeOnLanMAC: r.text("wakeOnLanMac", false, maxText),
	}
	if strings.Contains(h.BootID, "\x00") {
		r.fail("bootId", "must not hold the character NUL")
	}
	if c, ok := r.object("capacity", true); ok {
		h.Capacity = HeartbeatCapacity{
			TotalVCPUs: c.count("totalVCPUs", true), ReservedVCPUs: c.count("reservedVCPUs", false),
			VCPUOvercommitRatio: c.ratio("vcpuOvercommitRatio"), CommittedVCPUs: c.count("committedVCPUs", false),
			TotalMemoryBytes: c.count("totalMemoryBytes", true), ReservedMemoryBytes: c.count("reservedMemoryBytes", false),
			MemoryOvercommitRatio: c.ratio("memoryOvercommitRatio"), CommittedMemoryBytes: c.count("committedMemoryBytes", false),
			TotalDiskBytes: c.count("totalDiskBytes", true),
			HasGPU:         c.flag("hasGPU"), HasNestedVirt: c.flag("hasNestedVirt"), HasSecureBoot: c.flag("hasSecureBoot"), HasTPM: c.flag("hasTPM"),
			Architecture: c.text("architecture", false, maxText), KVMVersion: c.text("kvmVersion", false, maxText), SampledAt: c.moment("sampledAt"),
		}
	}
	slices.SortFunc(bad, func(a, b fault.Field) int { return strings.Compare(a.Path, b.Path) })
	if err := fault.InvalidFields(bad); err != nil {
		return nil, err
	}
	return h, nil
}

// syntaxHint says where a body stops being JSON.
func syntaxHint(b []byte) string {
	if len(bytes.TrimSpace(b)) == 0 {
		return ": it is empty"
	}
	var v any
	err := json.Unmarshal(b, &v)
	if se, ok := err.(*json.SyntaxError); ok {
		return ": " + se.Error() + " at byte " + strconv.FormatInt(se.Offset, 10)
	}
	if err == nil {
		return " (a name may stand only once, and text must be UTF-8)"
	}
	return ""
}
