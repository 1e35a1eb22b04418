package network

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// A node of 50 subnets, all with the same range, and 4 guests on each.
func fullNode() (d Desired) {
	for s := range 50 {
		subnet := Subnet{ID: fmt.Sprintf("subnet-%010d", s), CIDR: vpc.DefaultCIDR, Egress: true}
		d.Subnets = append(d.Subnets, subnet)
		for p := range 4 {
			id := fmt.Sprintf("eni-%06d%04d", s, p)
			d.Ports = append(d.Ports, Port{
				ID: id, InstanceID: "i-" + id, SubnetID: subnet.ID, MAC: vpc.MACOf(id, 0),
				Address: netip.AddrFrom4([4]byte{172, 31, 0, byte(3 + p)}),
			})
		}
	}
	return d
}

// What a run costs when everything is there already, as nearly every run's.
func BenchmarkConvergeUnchanged(b *testing.B) {
	l := newLab(b)
	k := l.kernel()
	d := fullNode()
	if err := k.Converge(context.Background(), d); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := k.Converge(context.Background(), d); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	if err := k.Converge(context.Background(), Desired{}); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkConvergeFirst(b *testing.B) {
	l := newLab(b)
	k := l.kernel()
	d := fullNode()
	for b.Loop() {
		if err := k.Converge(context.Background(), d); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := k.Converge(context.Background(), Desired{}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
