package network

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

var (
	_ Network = (*Fake)(nil)
	_ Network = (*Kernel)(nil)
)

// Whatever is wrong is told at once, and nothing is changed.
func TestContradictions(t *testing.T) {
	s := Subnet{ID: "subnet-aaaaaaaaaa", CIDR: vpc.DefaultCIDR}
	p := Port{ID: "eni-1", SubnetID: s.ID, MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Address: netip.MustParseAddr("172.31.0.3")}
	with := func(change func(*Port)) Port {
		q := p
		q.ID = "eni-2"
		q.MAC[5] = 2
		q.Address = q.Address.Next()
		change(&q)
		return q
	}
	for name, c := range map[string]struct {
		d    Desired
		want []string
	}{
		"fine":            {Desired{[]Subnet{s}, []Port{p, with(func(*Port) {})}}, nil},
		"nothing":         {Desired{}, nil},
		"same address":    {Desired{[]Subnet{s}, []Port{p, with(func(q *Port) { q.Address = p.Address })}}, []string{`"eni-1" and "eni-2" both have 172.31.0.3`}},
		"same MAC":        {Desired{[]Subnet{s}, []Port{p, with(func(q *Port) { q.MAC = p.MAC })}}, []string{"both have 02:00:00:00:00:01"}},
		"same port":       {Desired{[]Subnet{s}, []Port{p, with(func(q *Port) { q.ID = p.ID })}}, []string{"same tap"}},
		"same subnet":     {Desired{[]Subnet{s, s}, nil}, []string{"same bridge"}},
		"reserved":        {Desired{[]Subnet{s}, []Port{with(func(q *Port) { q.Address = vpc.Gateway(s.CIDR) })}}, []string{"not a usable address"}},
		"no subnet":       {Desired{nil, []Port{p}}, []string{"not on this node"}},
		"no MAC":          {Desired{[]Subnet{s}, []Port{with(func(q *Port) { q.MAC = vpc.MAC{} })}}, []string{"not a unicast MAC"}},
		"group MAC":       {Desired{[]Subnet{s}, []Port{with(func(q *Port) { q.MAC[0] = 1 })}}, []string{"not a unicast MAC"}},
		"MTU":             {Desired{[]Subnet{{ID: "x", CIDR: s.CIDR, MTU: 100}}, nil}, []string{"MTU 100"}},
		"IPv6":            {Desired{[]Subnet{{ID: "x", CIDR: netip.MustParsePrefix("fd00::/64")}}, nil}, []string{"IPv4"}},
		"several at once": {Desired{[]Subnet{{ID: "x", MTU: 1}}, []Port{p}}, []string{"MTU 1", "IPv4", "not on this node"}},
	} {
		f := &Fake{}
		err := f.Converge(context.Background(), c.d)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, w := range c.want {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", name, err, w)
			}
		}
	}
}

func TestFake(t *testing.T) {
	f := &Fake{}
	d := Desired{Subnets: []Subnet{{ID: "subnet-aaaaaaaaaa", CIDR: vpc.DefaultCIDR}}}
	if err := f.Converge(context.Background(), d); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	f.FailWith(func(Desired) error { return broken })
	if err := f.Converge(context.Background(), Desired{}); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	got, runs := f.Current()
	if len(got.Subnets) != 1 || got.Subnets[0].MTU != 1500 || got.Subnets[0].Domain != "internal" || runs != 2 {
		t.Errorf("%+v after %d runs", got, runs)
	}
	f.FailWith(nil)
	if err := f.Converge(context.Background(), Desired{}); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestDeviceNames(t *testing.T) {
	for id, want := range map[string]string{"eni-abcdefgh12": "octabcdefgh12", "eni-ABCDEFGH12": "oct", "x": "oct", "": "oct"} {
		got := Port{ID: id}.Tap()
		if !strings.HasPrefix(got, want) || !deviceShape.MatchString(got) {
			t.Errorf("%q: %s", id, got)
		}
	}
	if (Port{ID: "x"}).Tap() == (Port{ID: "y"}).Tap() {
		t.Error("two ids, one name")
	}
}

func TestPortFailure(t *testing.T) {
	mine, other, stale, all := errors.New("mine"), errors.New("other"), errors.New("stale"), errors.New("all")
	err := errors.Join(&failure{"", stale}, errors.Join(&failure{"eni-1", mine}, &failure{"eni-2", other}))
	if got := PortFailure(err, "eni-1"); !errors.Is(got, mine) || errors.Is(got, other) || errors.Is(got, stale) {
		t.Errorf("%v", got)
	}
	if got := PortFailure(err, "eni-3"); got != nil {
		t.Errorf("%v", got)
	}
	if got := PortFailure(errors.Join(err, all), "eni-3"); !errors.Is(got, all) {
		t.Errorf("%v", got)
	}
	if got := PortFailure(nil, "eni-3"); got != nil {
		t.Errorf("%v", got)
	}
}
