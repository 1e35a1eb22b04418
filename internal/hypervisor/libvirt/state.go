package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"
	"strings"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirtxml"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// prefix of the names of our domains. A domain is ours when it has this prefix
// and our metadata element: a name alone can be anybody's.
const prefix = "outcrop-"

// slowMonitor is how long QEMU may leave its monitor unanswered before a VM's
// Reason says so.
const slowMonitor = 5 * time.Second

// List returns all our VMs; see hypervisor.Hypervisor.
func (d *Driver) List(ctx context.Context) ([]hypervisor.VM, error) {
	vms, err := query(ctx, d, func(c *conn) ([]hypervisor.VM, error) {
		records, err := c.ConnectGetAllDomainStats(nil, uint32(golibvirt.DomainStatsState), 0)
		if err != nil {
			return nil, err
		}
		var vms []hypervisor.VM
		for _, r := range records {
			if !strings.HasPrefix(r.Dom.Name, prefix) {
				continue
			}
			vm, ours, err := describe(c, r)
			switch {
			case golibvirt.IsNotFound(err): // undefined since the list was made
			case err != nil:
				return nil, fmt.Errorf("domain %s: %w", r.Dom.Name, err)
			case ours:
				vms = append(vms, vm)
			}
		}
		return vms, nil
	})
	if err != nil {
		return nil, fmt.Errorf("libvirt: list VMs: %w", err)
	}
	return vms, nil
}

// Get returns one VM; see hypervisor.Hypervisor.
func (d *Driver) Get(ctx context.Context, id string) (hypervisor.VM, error) {
	vm, err := query(ctx, d, func(c *conn) (hypervisor.VM, error) {
		_, vm, err := find(c, id)
		return vm, err
	})
	if err != nil {
		return hypervisor.VM{}, fmt.Errorf("libvirt: read VM %s: %w", id, err)
	}
	return vm, nil
}

// find returns the domain of one of our VMs, or ErrNotFound.
func find(c *conn, id string) (golibvirt.Domain, hypervisor.VM, error) {
	dom, err := c.DomainLookupByName(prefix + id)
	if err != nil {
		return dom, hypervisor.VM{}, err
	}
	records, err := c.ConnectGetAllDomainStats([]golibvirt.Domain{dom}, uint32(golibvirt.DomainStatsState), 0)
	if err != nil {
		return dom, hypervisor.VM{}, err
	}
	if len(records) != 1 {
		return dom, hypervisor.VM{}, hypervisor.ErrNotFound
	}
	vm, ours, err := describe(c, records[0])
	if err == nil && !ours {
		err = fmt.Errorf("%w: domain %s exists but carries no metadata of ours", hypervisor.ErrNotFound, dom.Name)
	}
	return records[0].Dom, vm, err
}

// describe turns what libvirt says of a domain into a VM. No call in here waits
// for the domain's QEMU.
func describe(c *conn, r golibvirt.DomainStatsRecord) (vm hypervisor.VM, ours bool, err error) {
	mark, ours, err := readMark(c, r.Dom)
	if err != nil || !ours {
		return vm, false, err
	}
	state, reason := stateOf(r.Params)
	vm.ID = mark.ID
	vm.State, vm.Reason = translate(state, reason)
	if vm.State != hypervisor.Running && vm.State != hypervisor.Paused {
		return vm, true, nil
	}
	vm.BootID = fmt.Sprintf("%d-%s", r.Dom.ID, mark.Run)
	stuck, err := unanswered(c, r.Dom)
	if err != nil {
		return vm, true, err
	}
	switch {
	case stuck > slowMonitor:
		vm.Reason = fmt.Sprintf("QEMU has not answered for %v", stuck.Round(time.Second))
	case vm.State == hypervisor.Paused && golibvirt.DomainPausedReason(reason) == golibvirt.DomainPausedIoerror:
		vm.Reason = diskError(c, r.Dom)
	}
	return vm, true, nil
}

func stateOf(params []golibvirt.TypedParam) (state, reason int32) {
	for _, p := range params {
		v, _ := p.Value.I.(int32)
		switch p.Field {
		case golibvirt.DomainStatsStateState:
			state = v
		case golibvirt.DomainStatsStateReason:
			reason = v
		}
	}
	return state, reason
}

// translate maps a domain state with its reason, as listed in libvirt-domain.h.
func translate(state, reason int32) (hypervisor.State, string) {
	switch golibvirt.DomainState(state) {
	case golibvirt.DomainShutoff:
		return translateOff(golibvirt.DomainShutoffReason(reason))
	case golibvirt.DomainCrashed:
		return hypervisor.Crashed, "the guest crashed"
	case golibvirt.DomainPaused:
		return translatePaused(golibvirt.DomainPausedReason(reason))
	}
	return hypervisor.Running, ""
}

func translateOff(reason golibvirt.DomainShutoffReason) (hypervisor.State, string) {
	switch reason {
	case golibvirt.DomainShutoffCrashed:
		return hypervisor.Crashed, "the guest or its QEMU process crashed"
	case golibvirt.DomainShutoffFailed:
		return hypervisor.Crashed, "QEMU failed to start"
	case golibvirt.DomainShutoffDaemon:
		return hypervisor.Crashed, "QEMU was gone when libvirtd came back"
	}
	return hypervisor.Off, ""
}

func translatePaused(reason golibvirt.DomainPausedReason) (hypervisor.State, string) {
	switch reason {
	case golibvirt.DomainPausedIoerror:
		return hypervisor.Paused, "a disk failed"
	case golibvirt.DomainPausedUser:
		return hypervisor.Paused, "paused by an operator"
	case golibvirt.DomainPausedWatchdog:
		return hypervisor.Paused, "the guest's watchdog fired"
	case golibvirt.DomainPausedCrashed:
		return hypervisor.Paused, "the guest crashed"
	case golibvirt.DomainPausedAPIError, golibvirt.DomainPausedPostcopyFailed:
		return hypervisor.Paused, "a libvirt operation on it failed"
	case golibvirt.DomainPausedUnknown:
		return hypervisor.Paused, "QEMU stopped it"
	}
	return hypervisor.Running, "" // for a moment: starting up, shutting down, a snapshot
}

// unanswered says for how long QEMU owes libvirt an answer; zero when it owes
// none.
func unanswered(c *conn, dom golibvirt.Domain) (time.Duration, error) {
	state, _, ms, err := c.DomainGetControlInfo(dom, 0)
	if code(err) == golibvirt.ErrOperationInvalid || err == nil && golibvirt.DomainControlState(state) != golibvirt.DomainControlOccupied {
		return 0, nil // it ended a moment ago, or is fine
	}
	return time.Duration(ms) * time.Millisecond, err
}

// littleSpace is less than a disk image needs to grow on.
const littleSpace = 16 << 20

// diskError says why QEMU paused: mostly for want of space, which libvirt's
// protocol knows but go-libvirt cannot decode, so the file systems are asked.
func diskError(c *conn, dom golibvirt.Domain) string {
	x, err := currentXML(c, dom)
	if err != nil {
		return "a disk failed"
	}
	for _, disk := range x.Devices.Disks {
		if disk.ReadOnly != nil || disk.Source == nil || disk.Source.File == nil || disk.Target == nil {
			continue
		}
		var fs unix.Statfs_t
		if unix.Statfs(disk.Source.File.File, &fs) == nil && fs.Bavail*uint64(fs.Bsize) < littleSpace {
			return fmt.Sprintf("no space left for disk %s; make room and start it again", disk.Target.Dev)
		}
	}
	return "a disk failed"
}

// currentXML reads the definition that a running domain was started with, or
// that one that is off will start with.
func currentXML(c *conn, dom golibvirt.Domain) (*libvirtxml.Domain, error) {
	text, err := c.DomainGetXMLDesc(dom, 0)
	if err != nil {
		return nil, err
	}
	x := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{}}
	return x, x.Unmarshal(text)
}

// namespace of the metadata element that makes a domain ours.
const namespace = "urn:outcrop-cloud:instance:1"

// mark is that element. Run is new with each Start and makes boot ids unique
// where libvirt's own domain ids begin again. libvirt adds the namespace when
// it takes an element by a call and strips it when it gives one.
type mark struct {
	XMLName xml.Name `xml:"instance"`
	ID      string   `xml:"id,attr"`
	Run     string   `xml:"run,attr,omitempty"`
}

// inDefinition is the element as it stands in a whole definition. An id needs
// no escaping.
func (m mark) inDefinition() string {
	return fmt.Sprintf(`<outcrop:instance xmlns:outcrop="%s" id="%s"/>`, namespace, m.ID)
}

// readMark reads the mark of the running domain, or of the definition of one
// that is off. ours is false for a domain without.
func readMark(c *conn, dom golibvirt.Domain) (m mark, ours bool, err error) {
	text, err := c.DomainGetMetadata(dom, int32(golibvirt.DomainMetadataElement),
		golibvirt.OptString{namespace}, golibvirt.DomainAffectCurrent)
	if code(err) == golibvirt.ErrNoDomainMetadata {
		return m, false, nil
	}
	if err != nil {
		return m, false, err
	}
	if err := xml.Unmarshal([]byte(text), &m); err != nil || prefix+m.ID != dom.Name {
		return m, false, nil
	}
	return m, true, nil
}

// writeMark sets the mark of the next start.
func writeMark(c *conn, dom golibvirt.Domain, m mark) error {
	text, err := xml.Marshal(m)
	if err != nil {
		return err
	}
	return c.DomainSetMetadata(dom, int32(golibvirt.DomainMetadataElement), golibvirt.OptString{string(text)},
		golibvirt.OptString{"outcrop"}, golibvirt.OptString{namespace}, golibvirt.DomainAffectConfig)
}
