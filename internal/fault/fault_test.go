package fault_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// A kind survives the way over HTTP and back.
// contract: E-01
func TestKindsAndStatuses(t *testing.T) {
	for kind, status := range map[fault.Kind]int{
		fault.Internal: 500, fault.Invalid: 400, fault.Unauthenticated: 401, fault.Forbidden: 403, fault.NotFound: 404, fault.Conflict: 409, fault.TooLarge: 413, fault.TooMany: 429,
	} {
		if kind.Status() != status || fault.KindOf(status) != kind {
			t.Errorf("kind %d: status %d, back %d", kind, kind.Status(), fault.KindOf(status))
		}
		if e := fault.New(kind, "x"); e.Code == "" || e.Code != strings.ToUpper(e.Code) {
			t.Errorf("kind %d: code %q", kind, e.Code)
		}
	}
	for status, kind := range map[int]fault.Kind{405: fault.Invalid, 422: fault.Invalid, 418: fault.Invalid, 502: fault.Internal, 200: fault.Internal} {
		if got := fault.KindOf(status); got != kind {
			t.Errorf("status %d: kind %d, want %d", status, got, kind)
		}
	}
}

// What is no fault of the caller's stays at home: its text is the cause.
func TestFromHidesTheCause(t *testing.T) {
	cause := errors.New("pq: password authentication failed for 10.0.0.7")
	e := fault.From(fmt.Errorf("reading: %w", cause))
	if e.Kind != fault.Internal || strings.Contains(e.Error(), "10.0.0.7") || !errors.Is(e, cause) {
		t.Errorf("%+v", e)
	}
	mine := fault.Coded(fault.Conflict, fault.InvalidState, "no")
	if got := fault.From(fmt.Errorf("wrapped: %w", mine)); got != mine || !fault.HasCode(got, fault.InvalidState) || !fault.Is(got, fault.Conflict) {
		t.Errorf("%+v", got)
	}
}

// contract: E-02
func TestInvalidFields(t *testing.T) {
	if err := fault.InvalidFields(nil); err != nil {
		t.Errorf("no problem is an error: %v", err)
	}
	one := fault.From(fault.InvalidFields([]fault.Field{{Path: "a", Message: "is bad"}}))
	two := fault.From(fault.InvalidFields([]fault.Field{{Path: "a", Message: "is bad"}, {Message: "worse"}}))
	if one.Code != fault.InvalidInput || one.Message != "the request has a problem; see fields" || one.Error() != one.Message+"; a: is bad" {
		t.Errorf("%+v, %s", one, one)
	}
	if two.Message != "the request has 2 problems; see fields" || two.Error() != two.Message+"; a: is bad; worse" {
		t.Errorf("%+v, %s", two, two)
	}
}
