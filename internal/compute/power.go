package compute

import "time"

// PowerVerb is what a power action does to a node.
type PowerVerb string

const (
	PowerShutdown PowerVerb = "shutdown"
	PowerReboot   PowerVerb = "reboot"
)

// PowerState is where a power action stands (contract N-19).
type PowerState string

const (
	PowerShuttingDown PowerState = "shutting-down" // told; the host goes down at NotBefore
	PowerRebooting    PowerState = "rebooting"     // told; until the host has booted again
	PowerOff          PowerState = "off"           // its heartbeats stopped; until it is powered on
	PowerDone         PowerState = "done"          // the host booted again after the action
	PowerFailed       PowerState = "failed"        // the host did not act; Message says why
)

// Times of a power action.
const (
	// PowerDelay is how long a host waits where the request names no time, so that
	// the answer to the request gets out first.
	PowerDelay = 5 * time.Second
	// MaxPowerDelay bounds the time that a request may name.
	MaxPowerDelay = 24 * time.Hour
	// PowerPatience is how long a host may take to go down, once its guests are.
	PowerPatience = 5 * time.Minute
)

// PowerAction is the latest shutdown or reboot of a node through the API
// (contract N-18). Without an Action there never was one.
type PowerAction struct {
	Action     PowerVerb  `json:",omitempty"`
	State      PowerState `json:",omitempty"`
	Generation int64      `json:",omitempty"` // bumped by every new action
	// NotBefore is a little later than the answer to the request, so that it gets out.
	NotBefore time.Time `json:",omitzero"`
	// Deadline is when a host that is still there with the same boot has failed.
	Deadline time.Time `json:",omitzero"`
	// BootID is that of the boot which is to end.
	BootID string `json:",omitempty"`
	// GoneAt is when the node was seen gone.
	GoneAt time.Time `json:",omitzero"`
	// EndedAt is when the action was done, or had failed.
	EndedAt time.Time `json:",omitzero"`
	Message string    `json:",omitempty"`
	// LastControlPlane: it was the only control-plane node up.
	LastControlPlane bool `json:",omitempty"`
}

// Open reports whether the action still decides the node's state.
func (p *PowerAction) Open() bool { return p.InProgress() || p.State == PowerOff }

// InProgress reports whether the host is on its way down, or up again.
func (p *PowerAction) InProgress() bool {
	return p.State == PowerShuttingDown || p.State == PowerRebooting
}

// Down reports whether the node is off, or on its way down or up again.
func (n *Node) Down() bool {
	s := n.State()
	return s == NodeOff || s == NodeShuttingDown || s == NodeRebooting
}

// PowerEvent is what is seen of a host that is to go down.
type PowerEvent string

const (
	PowerSameBoot  PowerEvent = "same boot"           // it beats, of the boot that is to end
	PowerOverdue   PowerEvent = "same boot, too late" // likewise, after the deadline
	PowerOtherBoot PowerEvent = "other boot"          // it beats, of another boot
	PowerSilent    PowerEvent = "silent"              // it has not been heard of for a while
	PowerRefused   PowerEvent = "refused"             // it says that the host did not act
)

// powerMoves is the table of (state, event); a test holds that no cell is missing.
// That a reboot is over is told by the boot id alone, never by a heartbeat, and
// silence says nothing of it. A node that is off and beats again with the boot
// that was to end was not off, only away.
var powerMoves = map[PowerState]map[PowerEvent]PowerState{
	"":                {PowerSameBoot: "", PowerOverdue: "", PowerOtherBoot: "", PowerSilent: "", PowerRefused: ""},
	PowerShuttingDown: {PowerSameBoot: PowerShuttingDown, PowerOverdue: PowerFailed, PowerOtherBoot: PowerDone, PowerSilent: PowerOff, PowerRefused: PowerFailed},
	PowerRebooting:    {PowerSameBoot: PowerRebooting, PowerOverdue: PowerFailed, PowerOtherBoot: PowerDone, PowerSilent: PowerRebooting, PowerRefused: PowerFailed},
	PowerOff:          {PowerSameBoot: PowerShuttingDown, PowerOverdue: PowerFailed, PowerOtherBoot: PowerDone, PowerSilent: PowerOff, PowerRefused: PowerFailed},
	PowerDone:         {PowerSameBoot: PowerDone, PowerOverdue: PowerDone, PowerOtherBoot: PowerDone, PowerSilent: PowerDone, PowerRefused: PowerDone},
	PowerFailed:       {PowerSameBoot: PowerFailed, PowerOverdue: PowerFailed, PowerOtherBoot: PowerFailed, PowerSilent: PowerFailed, PowerRefused: PowerFailed},
}

// powerMessages is what a state says of itself when it is entered by an event;
// what a host says of its refusal is its own.
var powerMessages = map[PowerState]string{
	PowerShuttingDown: "the host goes down",
	PowerRebooting:    "the host goes down and boots again",
	PowerOff:          "the host is off, until somebody powers it on",
	PowerDone:         "the host booted again",
	PowerFailed:       "the host was asked to go down and still runs; look at its log (journalctl -b), then ask again",
}

// BeginPower notes a new action on the node. grace is what its guests may still
// take to stop.
func (n *Node) BeginPower(verb PowerVerb, now time.Time, delay, grace time.Duration, lastControlPlane bool) {
	state := PowerShuttingDown
	if verb == PowerReboot {
		state = PowerRebooting
	}
	from := now.Add(delay)
	n.Power = PowerAction{
		Action: verb, State: state, Generation: n.Power.Generation + 1, NotBefore: from, Deadline: from.Add(grace + PowerPatience),
		BootID: n.Liveness.BootID, LastControlPlane: lastControlPlane, Message: powerMessages[state],
	}
}

// See applies an event and says whether anything changed. why is the host's own
// word, where it has one.
func (p *PowerAction) See(e PowerEvent, why string, now time.Time) (changed bool) {
	next := powerMoves[p.State][e]
	if next == p.State {
		return false
	}
	p.State, p.Message = next, orText(why, powerMessages[next])
	switch next {
	case PowerOff:
		p.GoneAt = now
	case PowerShuttingDown: // it was not gone
		p.GoneAt = time.Time{}
	case PowerDone, PowerFailed:
		p.EndedAt = now
	}
	return true
}

// heard is a heartbeat of the boot. One that names no boot is taken for the boot
// that was there: it shows nothing else.
func (p *PowerAction) heard(bootID string, now time.Time) (changed bool) {
	switch {
	case bootID != "" && bootID != p.BootID:
		return p.See(PowerOtherBoot, "", now)
	case now.After(p.Deadline):
		return p.See(PowerOverdue, "", now)
	}
	return p.See(PowerSameBoot, "", now)
}

// Judge draws what follows from the time that has passed since the node was heard
// of. Nobody is judged before a node that went down when it was told would be
// missed, nor before a server that began to listen had the time to hear of it
// (lesson 2).
func (p *PowerAction) Judge(l Liveness, now, listening time.Time, interval time.Duration) (changed bool) {
	if !p.InProgress() {
		return false
	}
	from := listening
	if p.NotBefore.After(from) {
		from = p.NotBefore
	}
	if status, _ := l.Status(now, from, interval); status == LivenessOK {
		return false
	}
	if p.State == PowerRebooting && now.After(p.Deadline) {
		return p.Progress(powerLate)
	}
	return p.See(PowerSilent, "", now)
}

const powerLate = "the host has not booted again yet; look at its console"

// Progress notes what an open action is doing or waiting for.
func (p *PowerAction) Progress(message string) (changed bool) {
	if !p.InProgress() || message == "" || p.Message == message {
		return false
	}
	p.Message = message
	return true
}

// Woken notes who tried to wake a host that is off.
func (p *PowerAction) Woken(message string) (changed bool) {
	if p.State != PowerOff || p.Message == message {
		return false
	}
	p.Message = message
	return true
}

// PowerStage is what a node's agent does about a power action.
type PowerStage string

const (
	PowerWaiting  PowerStage = "waiting"  // until the action's time has come
	PowerStopping PowerStage = "stopping" // its guests go down
	PowerActing   PowerStage = "acting"   // the host was asked
	PowerGaveUp   PowerStage = "failed"   // the host did not act
)

// maxHeardGeneration bounds the generation that a node's word can bring about: later
// actions count on from it, and each is above all before it. It is the last that every
// reader of JSON takes for what it is (RFC 8259 section 6).
const maxHeardGeneration = 1<<53 - 1

// Told takes in what the node's agent says of the action of a generation, and says
// whether anything changed. A generation that is not known here yet is of a record
// which a restored backup has lost; later ones go on from it, as an agent does
// nothing that it has done before.
func (p *PowerAction) Told(generation int64, stage PowerStage, message string, now time.Time) (changed bool) {
	switch {
	case generation > max(p.Generation, maxHeardGeneration):
		return false
	case generation > p.Generation:
		p.See(PowerRefused, "the node knows of a later action than this server does; ask again", now)
		p.Generation = generation
		return true
	case generation < p.Generation:
		return false
	case stage == PowerGaveUp:
		return p.See(PowerRefused, "the host did not act: "+orText(message, "it did not say why"), now)
	}
	return p.Progress(message)
}
