package network

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/outcrop-cloud/outcrop/internal/metadata"
)

// byPort is a metadata.Provider of guests.
type byPort map[metadata.PortKey]*metadata.Instance

func (b byPort) Instance(k metadata.PortKey) (*metadata.Instance, bool) { i, ok := b[k]; return i, ok }

// A guest written for EC2: the AWS SDK's client at its usual address, through two guests' own cards. They have the same
// address in networks of two projects, and each is told of itself.
// contract: U-03 U-18
// lesson 27
// lesson 28
func TestAWSClientInGuests(t *testing.T) {
	l := newLab(t)
	d, pa1, _, pb1 := twoProjects()
	guests := byPort{}
	for _, p := range []Port{pa1, pb1} {
		guests[metadata.PortKey{SubnetID: p.SubnetID, Address: p.Address}] = &metadata.Instance{
			ID: p.InstanceID, ProjectID: "of-" + p.SubnetID, Region: "local", Zone: "local-a", Architecture: "amd64", UserData: []byte("#!/bin/sh\necho " + p.InstanceID + "\n"),
			Interfaces: []metadata.Interface{{ID: p.ID, MAC: p.MAC.String(), Address: p.Address, SubnetID: p.SubnetID}},
		}
	}
	s, err := metadata.New(metadata.Config{Provider: guests, TokenKey: bytes.Repeat([]byte("k"), 32)})
	if err != nil {
		t.Fatal(err)
	}
	l.config.Metadata = s.Serve
	l.converge(l.kernel(), d)
	for _, p := range []Port{pa1, pb1} {
		g := l.guest(p)
		g.boot()
		dial := func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = g.ns.do(func() error {
				c, err = (&net.Dialer{Timeout: deadline}).DialContext(ctx, network, address)
				return err
			})
			return c, err
		}
		tr := &http.Transport{DialContext: dial}
		t.Cleanup(tr.CloseIdleConnections)
		client := imds.New(imds.Options{HTTPClient: &http.Client{Transport: tr}})
		doc, err := client.GetInstanceIdentityDocument(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if doc.InstanceID != p.InstanceID || doc.AccountID != "of-"+p.SubnetID || doc.PrivateIP != p.Address.String() {
			t.Errorf("%s is told of %+v", p.ID, doc.InstanceIdentityDocument)
		}
		data, err := client.GetUserData(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(data.Content)
		data.Content.Close()
		if want := "#!/bin/sh\necho " + p.InstanceID + "\n"; err != nil || string(b) != want {
			t.Errorf("%s: user-data %q, %v", p.ID, b, err)
		}
	}
	if st := s.Stats(); st.TokensIssued != 2 || st.MissingTokens != 0 {
		t.Errorf("%+v: want a token for each client, and nothing without", st)
	}
}
