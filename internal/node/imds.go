package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/metadata"
	"github.com/outcrop-cloud/outcrop/internal/vpc"
)

// guestbook is what the metadata service answers from. A metadata.Instance is never
// changed, only replaced, and stays the same pointer while nothing changes.
type guestbook struct {
	dir layout

	mu       sync.RWMutex
	known    known
	userData map[string][]byte // of the present boot, by instance
	byPort   map[metadata.PortKey]*metadata.Instance
	agents   map[string]api.AgentSettings
}

func newGuestbook(dir layout) *guestbook {
	return &guestbook{dir: dir, userData: map[string][]byte{}}
}

// Instance implements metadata.Provider.
func (g *guestbook) Instance(k metadata.PortKey) (*metadata.Instance, bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	i, ok := g.byPort[k]
	return i, ok
}

// agent is what the guest's agent is to do.
func (g *guestbook) agent(id string) (api.AgentSettings, bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	s, ok := g.agents[id]
	return s, ok
}

// set is the newest word of the server: options, tags and the agent's flag hold
// at once, whether the guest runs or not (contract U-18).
func (g *guestbook) set(k known) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known = k
	g.rebuild()
}

// boots takes the bytes that this boot's seed holds (contract U-03).
func (g *guestbook) boots(id string, userData []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.userData[id] = userData
	g.rebuild()
}

// rebuild makes the tables anew; g.mu is held.
func (g *guestbook) rebuild() {
	subnets := map[string]api.DesiredSubnet{}
	for _, s := range g.known.Subnets {
		subnets[s.ID] = s
	}
	byPort, agents, userData := map[metadata.PortKey]*metadata.Instance{}, map[string]api.AgentSettings{}, map[string][]byte{}
	for _, d := range g.known.Instances {
		if !compute.ValidInstanceID(d.ID) {
			continue
		}
		if agents[d.ID].Activation != "" {
			continue // named twice
		}
		b, ok := g.userData[d.ID]
		if !ok { // of a boot before this agent's start
			b, _ = os.ReadFile(filepath.Join(g.dir.instance(d.ID), fileUserData))
		}
		userData[d.ID] = b
		agents[d.ID] = api.AgentSettings{Enabled: d.AgentEnabled, Activation: d.AgentActivation, IntervalSeconds: int64(api.AgentInterval.Seconds())}
		i := metadataOf(d, subnets, b)
		for _, nic := range i.Interfaces {
			key := metadata.PortKey{SubnetID: nic.SubnetID, Address: nic.Address}
			if old := g.byPort[key]; old != nil && reflect.DeepEqual(old, i) {
				i = old
			}
			if byPort[key] == nil {
				byPort[key] = i
			}
		}
	}
	g.byPort, g.agents, g.userData = byPort, agents, userData
}

// domain is where the network's name service knows the guests.
const domain = ".internal"

func metadataOf(d api.DesiredInstance, subnets map[string]api.DesiredSubnet, userData []byte) *metadata.Instance {
	i := &metadata.Instance{
		ID: d.ID, ProjectID: d.ProjectID, ImageID: d.ImageID, Type: d.InstanceType,
		Hostname: hostname(d) + domain, Architecture: runtime.GOARCH, Region: d.Region, Zone: d.Zone,
		Tags: d.Tags, UserData: userData,
		Options: metadata.Options{
			Disabled: d.Metadata.HTTPEndpoint == "disabled",
			HopLimit: int(d.Metadata.HTTPPutResponseHopLimit),
			Tags:     d.Metadata.InstanceMetadataTags == "enabled",
		},
	}
	if d.CloudInitID != d.ID {
		i.RerunID = d.CloudInitID
	}
	if d.LaunchedAt != nil {
		i.LaunchedAt = *d.LaunchedAt
	}
	for n, line := range d.PublicKeys {
		i.PublicKeys = append(i.PublicKeys, metadata.PublicKey{Name: "key-" + strconv.Itoa(n), Line: strings.TrimSpace(line)})
	}
	for _, nic := range d.Interfaces {
		mac, err1 := vpc.ParseMAC(nic.MAC)
		addr, err2 := netip.ParseAddr(nic.Address)
		if err1 != nil || err2 != nil {
			continue // it has no port either
		}
		s := subnets[nic.SubnetID]
		cidr, _ := netip.ParsePrefix(s.CIDR)
		vpcCIDR, _ := netip.ParsePrefix(s.VPCCIDR)
		i.Interfaces = append(i.Interfaces, metadata.Interface{
			ID: nic.ID, MAC: mac.String(), Address: addr, SubnetID: nic.SubnetID, Subnet: cidr, VPCID: s.VPCID, VPC: vpcCIDR,
		})
	}
	return i
}
