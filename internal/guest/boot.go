package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// Where cloud-init tells how a boot went. What is below /run is of this boot: a link
// to a file that cloud-init removes as a boot begins.
const (
	runDir       = "run/cloud-init"
	resultFile   = runDir + "/result.json"
	statusFile   = runDir + "/status.json"
	disabledFile = runDir + "/disabled"
	program      = "usr/bin/cloud-init"
	userDataFile = "var/lib/cloud/instance/user-data.txt" // as it came, before any decoding
)

// maxDetail bounds the detail, in characters.
const maxDetail = 500

// readBoot reads what this boot made of its user-data. The hash is told when the boot
// is over: before, the file may still be that of an earlier one.
func readBoot(root fs.FS) (*api.BootReport, error) {
	switch {
	case exists(root, disabledFile):
		return &api.BootReport{Status: "disabled", Detail: "cloud-init is switched off"}, nil
	case !exists(root, runDir) && !exists(root, program):
		return &api.BootReport{Status: "disabled", Detail: "this image has no cloud-init"}, nil
	}
	result, err := readResult(root)
	if errors.Is(err, fs.ErrNotExist) {
		return &api.BootReport{Status: "running"}, nil
	}
	if err != nil {
		return nil, err
	}
	b := &api.BootReport{Status: "done"}
	switch {
	case len(result.Errors) > 0:
		b.Status, b.Detail = "error", detail(result.Errors)
	case len(result.warnings()) > 0:
		b.Status, b.Detail = "degraded", detail(result.warnings())
	}
	b.UserDataHash, err = userDataHash(root)
	return b, err
}

func exists(root fs.FS, name string) bool {
	_, err := fs.Stat(root, name)
	return err == nil
}

// outcome is what cloud-init says of a boot, and of each of its stages.
type outcome struct {
	Errors      []string            `json:"errors"`
	Recoverable map[string][]string `json:"recoverable_errors"` // by level, since cloud-init 23.4
}

// warnings leaves out the levels that ask nobody to do anything.
func (o outcome) warnings() (list []string) {
	for _, level := range slices.Sorted(maps.Keys(o.Recoverable)) {
		if level == "WARNING" || level == "ERROR" || level == "CRITICAL" {
			list = append(list, o.Recoverable[level]...)
		}
	}
	return list
}

// readResult is there once the last stage has ended. Some versions tell what could be
// recovered from in the stages only.
func readResult(root fs.FS) (o outcome, err error) {
	var result struct{ V1 outcome }
	b, err := fs.ReadFile(root, resultFile)
	if err == nil {
		err = json.Unmarshal(b, &result)
	}
	if err != nil {
		return o, fmt.Errorf("cloud-init's result: %w", err)
	}
	o = result.V1
	var stages struct{ V1 map[string]json.RawMessage }
	b, err = fs.ReadFile(root, statusFile)
	if err != nil || json.Unmarshal(b, &stages) != nil || len(o.Recoverable) > 0 {
		return o, nil
	}
	o.Recoverable = map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(stages.V1)) {
		var stage outcome
		if json.Unmarshal(stages.V1[name], &stage) != nil {
			continue // not a stage
		}
		for level, texts := range stage.Recoverable {
			o.Recoverable[level] = append(o.Recoverable[level], texts...)
		}
	}
	return o, nil
}

// moduleError is how cloud-init writes down that a module failed:
// ('scripts-user', RuntimeError('…')).
var moduleError = regexp.MustCompile(`(?s)^\('([^']+)', (.*)\)$`)

// detail joins the messages, each with its module in front, as one line.
func detail(texts []string) string {
	var parts []string
	for _, t := range texts {
		if m := moduleError.FindStringSubmatch(t); m != nil {
			t = "module " + m[1] + ": " + m[2]
		}
		parts = append(parts, t)
	}
	line := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.Join(parts, "; "))
	if runes := []rune(line); len(runes) > maxDetail {
		line = string(runes[:maxDetail-1]) + "…"
	}
	return line
}

// userDataHash is empty where the boot had no user-data.
func userDataHash(root fs.FS) (string, error) {
	b, err := fs.ReadFile(root, userDataFile)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("the user-data that cloud-init kept: %w", err)
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
