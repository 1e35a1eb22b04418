package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/fault"
	"github.com/outcrop-cloud/outcrop/internal/iam"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

// beatLab is a Control with a clock that stands still between beats.
type beatLab struct {
	*testing.T
	*Control
	clock time.Time
}

func newBeatLab(t *testing.T) *beatLab {
	l := &beatLab{T: t, clock: time.Date(2026, 4, 15, 12, 0, 0, 0, time.UTC)}
	now := func() time.Time { return l.clock }
	dir := t.TempDir()
	db, err := store.Open(t.Context(), store.Options{Dir: dir, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if l.Control, err = New(Options{DB: db, Dir: dir, Now: now}); err != nil {
		t.Fatal(err)
	}
	return l
}

const beatBody = `{"hostname":"a","role":"hybrid","architecture":"amd64","capacity":{"totalVCPUs":8,"totalMemoryBytes":17179869184,"totalDiskBytes":1000,"sampledAt":%q},"capabilities":{"pool":%q}}`

// beat sends a body and checks that the answer is the record as GET has it, byte
// for byte.
func (l *beatLab) beat(body string) string {
	l.Helper()
	l.clock = l.clock.Add(61_000_001 * time.Microsecond)
	got, err := l.Heartbeat(l.Context(), iam.Caller{Role: iam.Node, NodeID: "n"}, "n", []byte(body))
	if err != nil {
		l.Fatal(err)
	}
	n, err := l.GetNode(l.Context(), iam.Caller{Role: iam.Operator}, "n")
	if err != nil {
		l.Fatal(err)
	}
	want, err := json.Marshal(n)
	if err != nil {
		l.Fatal(err)
	}
	if string(got) != string(want) {
		l.Errorf("%s is answered\n%s\nand read as\n%s", body, got, want)
	}
	return string(got)
}

func (l *beatLab) sampled(after time.Duration) string {
	return l.clock.Add(after).Format(time.RFC3339Nano)
}

// A beat that repeats the last one is answered from what is kept of it, and still
// with what holds now.
// contract: N-05 N-07 N-23
func TestRepeatedBeat(t *testing.T) {
	l := newBeatLab(t)
	same := func() string { return l.beat(fmt.Sprintf(beatBody, l.sampled(time.Minute), "x")) }
	repeated := func() {
		t.Helper()
		if b := l.beats.of("n"); b == nil || b.answer == nil || len(b.holes) != 4 {
			t.Fatalf("nothing is kept: %+v", b)
		}
	}
	same()
	repeated()
	for _, after := range []time.Duration{0, time.Nanosecond, 1234 * time.Millisecond, -time.Minute, time.Hour, -48 * time.Hour} {
		l.beat(fmt.Sprintf(beatBody, l.sampled(after), "x"))
	}
	l.beat(fmt.Sprintf(beatBody, "2026-04-15T14:00:00.5+02:00", "x"))
	l.beat(fmt.Sprintf(beatBody, "0001-02-03T04:05:06.789012Z", "x"))
	repeated()

	operator := iam.Caller{Role: iam.Operator}
	name := "rack 7"
	if _, err := l.UpdateNode(t.Context(), operator, "n", api.PatchNode{DisplayName: &name}); err != nil {
		t.Fatal(err)
	}
	if got := same(); !strings.Contains(got, `"displayName":"rack 7"`) {
		t.Errorf("a new name is not answered: %s", got)
	}
	since := l.clock
	l.obs.setFindings("n", []api.Finding{{Code: "Emulated", Message: "no KVM", Since: &since}})
	if got := same(); !strings.Contains(got, `"Emulated"`) {
		t.Errorf("a finding is not answered: %s", got)
	}
	same()
	repeated()
	l.obs.setFindings("n", nil)
	if got := same(); strings.Contains(got, `"findings"`) {
		t.Errorf("a finding is answered that is gone: %s", got)
	}
	if got := l.beat(fmt.Sprintf(beatBody, l.sampled(0), "y")); !strings.Contains(got, `"pool":"y"`) {
		t.Errorf("a new label is not answered: %s", got)
	}
	if err := l.DeleteNode(t.Context(), operator, "n"); err != nil {
		t.Fatal(err)
	}
	same()
	repeated()
}

// Bodies that could be mistaken for repeated ones.
func TestUnlikeBeats(t *testing.T) {
	l := newBeatLab(t)
	mark := markedSeen.Format(time.RFC3339Nano)
	for _, body := range []string{
		fmt.Sprintf(beatBody, l.sampled(0), mark),
		fmt.Sprintf(beatBody, l.sampled(time.Second), mark),
		fmt.Sprintf(beatBody, l.sampled(0), "sampledAt"),
		strings.Replace(fmt.Sprintf(beatBody, l.sampled(0), "x"), `"sampledAt":`, "\"sampledAt\" :\n\t", 1),
		strings.Replace(fmt.Sprintf(beatBody, l.sampled(time.Second), "x"), `"sampledAt":`, "\"sampledAt\" :\n\t", 1),
		strings.Replace(fmt.Sprintf(beatBody, l.sampled(0), "x"), `"sampledAt"`, `"\u0073ampledAt"`, 1),
		strings.Replace(fmt.Sprintf(beatBody, l.sampled(0), "x"), `,"sampledAt":`, `},"sampledAt":{"x":`, 1),
		strings.Replace(fmt.Sprintf(beatBody, "", "x"), `,"sampledAt":""`, ``, 1),
		strings.Replace(fmt.Sprintf(beatBody, "", "x"), `"sampledAt":""`, `"sampledAt":null`, 1),
		fmt.Sprintf(beatBody, "0001-01-01T00:00:00Z", "x"), // the zero time: no sample
		fmt.Sprintf(beatBody, "2026-04-15T14:00:00\u005a", "x"),
	} {
		l.beat(body)
	}
}

// A moment that is none is refused, whatever was sent before.
// contract: N-04
func TestRepeatedBeatWithoutMoment(t *testing.T) {
	l := newBeatLab(t)
	l.beat(fmt.Sprintf(beatBody, l.sampled(0), "x"))
	for _, moment := range []string{"", "now", "2026-04-15 12:00:00Z", "2026-13-01T00:00:00Z", " 2026-04-15T12:00:00Z", "0000-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"} {
		_, err := l.Heartbeat(t.Context(), iam.Caller{Role: iam.Node, NodeID: "n"}, "n", fmt.Appendf(nil, beatBody, moment, "x"))
		var f *fault.Error
		if !errors.As(err, &f) || len(f.Fields) != 1 || f.Fields[0].Path != "capacity.sampledAt" {
			t.Errorf("%q: %v", moment, err)
		}
	}
	_, err := l.Heartbeat(t.Context(), iam.Caller{Role: iam.Node, NodeID: "n"}, "n", []byte(fmt.Sprintf(beatBody, l.sampled(0), "x")+"{}"))
	if err == nil {
		t.Error("what follows the object is not refused")
	}
}

// What a token is bound to holds for repeated beats, too.
// contract: N-01
func TestRepeatedBeatOfAnotherToken(t *testing.T) {
	l := newBeatLab(t)
	body := fmt.Sprintf(beatBody, l.sampled(0), "x")
	l.beat(body)
	for _, who := range []iam.Caller{
		{Role: iam.Node, NodeID: "other"},
		{Role: iam.Node, NodeID: "n", NodeRole: string(compute.RoleStorage)},
		{Role: iam.Node, NodeID: "n", NodeZone: "elsewhere"},
		{Role: iam.Operator},
	} {
		_, err := l.Heartbeat(t.Context(), who, "n", []byte(body))
		if f := new(fault.Error); !errors.As(err, &f) || f.Kind != fault.Forbidden {
			t.Errorf("%+v: %v", who, err)
		}
	}
}

func FuzzSampleIn(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(beatBody, "2026-04-15T12:00:00Z", "x")))
	f.Add([]byte(`"sampledAt":"`))
	f.Add([]byte(`"sampledAt"`))
	f.Fuzz(func(t *testing.T, body []byte) {
		from, to, ok := sampleIn(body)
		if !ok {
			return
		}
		if from > to || body[from-1] != '"' || body[to] != '"' || strings.Contains(string(body[from:to]), `"`) {
			t.Fatalf("%q: %d to %d", body, from, to)
		}
	})
}
