package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/metadata"
)

// metadataEnv makes this program a metadata service of one guest, the one on
// loopback; the value is the address.
const metadataEnv = "OUTCROP_BENCH_METADATA"

// guests is how many connections ask the metadata service at the same moment; it
// is what one guest may have open.
const guests = 64

func metadataBenchmarks() []benchmark { return []benchmark{{"metadata", benchMetadata}} }

// benchMetadata measures requests with a session token to the metadata service,
// beside a bare handler, each in a process of its own.
func benchMetadata(ctx context.Context, e *env) error {
	service, err := startMetadata(ctx)
	if err != nil {
		return err
	}
	defer service.stop()
	bare, err := startBare(ctx)
	if err != nil {
		return err
	}
	defer bare.stop()
	token, err := sessionToken(ctx, service.addr)
	if err != nil {
		return err
	}
	p := pair{processes: [2]*process{service, bare}}
	for i, process := range p.processes {
		requests := make([]request, guests)
		for j := range requests {
			requests[j] = metadataRequest(process.addr, token)
		}
		if p.load[i], err = newGenerator(process.addr, guests, requests); err != nil {
			return err
		}
		defer p.load[i].close()
	}
	if err := p.measure(ctx, e.rounds, e.window); err != nil {
		return err
	}
	r := p.result()
	r.Name, r.Unit, r.Better, r.Goal, r.Against = "metadata", "requests/s", higher, ">= 0.5", "bare net/http handler"
	r.More["connections"] = guests
	var tails []float64
	for i := range p.p99[0] {
		tails = append(tails, p.p99[0][i]/p.p99[1][i])
	}
	r.More["p99Ratio"] = median(tails)
	e.print(r)
	return nil
}

func startMetadata(ctx context.Context) (*process, error) { return startSelf(ctx, metadataEnv) }

// onlyGuest is a metadata.Provider that knows one instance by every port.
type onlyGuest metadata.Instance

func (g *onlyGuest) Instance(metadata.PortKey) (*metadata.Instance, bool) {
	return (*metadata.Instance)(g), true
}

// serveMetadata has no limit on one guest's rate: that is measured elsewhere.
func serveMetadata(addr string) error {
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		return err
	}
	s, err := metadata.New(metadata.Config{
		Provider: &onlyGuest{
			ID: "i-000000001", ProjectID: "default", ImageID: "img-aaaaaaaaaa", Type: "m1.large", Hostname: "web.internal",
			Architecture: "amd64", Region: "local", Zone: "local-a", LaunchedAt: time.Now(), UserData: []byte("#!/bin/sh\n"),
			Interfaces: []metadata.Interface{{ID: "eni-aaaaaaaaaa", MAC: "02:00:00:00:00:01", Address: netip.MustParseAddr("172.31.0.3"), SubnetID: "subnet-a",
				Subnet: netip.MustParsePrefix("172.31.0.0/16"), VPCID: "vpc-a", VPC: netip.MustParsePrefix("172.31.0.0/16")}},
		},
		TokenKey: bytes.Repeat([]byte("k"), 32),
		Limits:   metadata.Limits{Connections: 2 * guests, Rate: 1 << 29, Burst: 1 << 29},
	})
	if err != nil {
		return err
	}
	s.Serve("subnet-a", l)
	return errors.New("the metadata listener ended")
}

func sessionToken(ctx context.Context, addr string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+addr+"/latest/api/token", nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("a session token: %s %s", answer.Status, b)
	}
	return strings.TrimSpace(string(b)), err
}

// metadataRequest asks for the instance's id. The moment, which a request has to
// have, stands in a header that nobody reads.
func metadataRequest(addr, token string) request {
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET /latest/meta-data/instance-id HTTP/1.1\r\nHost: %s\r\nX-Aws-Ec2-Metadata-Token: %s\r\nX-Sent-At: ", addr, token)
	at := b.Len()
	b.WriteString(momentLayout + "\r\n\r\n")
	return request{b.Bytes(), at}
}
