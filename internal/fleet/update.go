package fleet

import (
	"slices"
	"strings"
)

// UpdateMode says who picks the version of an app's runners (contract R-09).
type UpdateMode string

const (
	UpdateFollow UpdateMode = "follow" // the version that the gateway was built from
	UpdatePaused UpdateMode = "paused" // each stays on its own
	UpdatePinned UpdateMode = "pinned" // the held version
)

// UpdateModes are all modes.
var UpdateModes = []UpdateMode{UpdateFollow, UpdatePaused, UpdatePinned}

// UpdateSetting is an app's choice. Version is set with pinned only.
type UpdateSetting struct {
	Mode    UpdateMode
	Version string
}

// ParseUpdateSetting reads the body of PUT /v1/hosts/update-setting.
func ParseUpdateSetting(body []byte) (UpdateSetting, error) {
	o, p := parse(body)
	var s UpdateSetting
	mode, ok := o.text("mode", 1, 16, required)
	s.Mode = UpdateMode(mode)
	if ok && !slices.Contains(UpdateModes, s.Mode) {
		p.add("mode", "must be one of %v", UpdateModes)
	}
	s.Version, ok = o.name("version", 64, o != nil && s.Mode == UpdatePinned)
	if ok && s.Mode != UpdatePinned {
		p.add("version", "goes with mode pinned only")
	}
	o.noOthers()
	return s, p.err()
}

// OutcropRunner begins the cliVersion of Outcrop's own runner.
const OutcropRunner = "outcrop/"

// RunnerVersion is the version that a runner should be on. gateway is what the
// server was told that follow means; where it is empty, own is Outcrop's version
// for Outcrop's runner, and any other runner stays on what it has: it is never
// told to fetch a version of something else (contract R-09).
func (s UpdateSetting) RunnerVersion(gateway, own, cliVersion string) string {
	switch {
	case s.Mode == UpdatePinned:
		return s.Version
	case s.Mode == UpdatePaused:
		return cliVersion
	case gateway != "":
		return gateway
	case strings.HasPrefix(cliVersion, OutcropRunner):
		return OutcropRunner + own
	}
	return cliVersion
}
