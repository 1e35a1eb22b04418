package cloudinit

import (
	"bytes"
	"strings"

	"github.com/outcrop-cloud/outcrop/internal/nearest"
)

// format is what a text of user-data is to cloud-init.
type format int

const (
	formatUnknown format = iota
	formatScript
	formatCloudConfig
	formatArchive
	formatJSONPatch
	formatBoothook
	formatInclude
	formatPartHandler
	formatJinja
)

// formatNames are how a text of each format begins.
var formatNames = map[format]string{
	formatScript:      "#!",
	formatCloudConfig: "#cloud-config",
	formatArchive:     "#cloud-config-archive",
	formatJSONPatch:   "#cloud-config-jsonp",
	formatBoothook:    "#cloud-boothook",
	formatInclude:     "#include", // and #include-once
	formatPartHandler: "#part-handler",
	formatJinja:       "## template: jinja",
}

// sniff tells the format from the beginning, as cloud-init does (handlers/__init__.py,
// type_from_starts_with): white space and case do not count, the longest name wins.
func sniff(b []byte) format {
	start := lower(bytes.TrimSpace(b), 32)
	best := formatUnknown
	for f, name := range formatNames {
		if strings.HasPrefix(start, name) && len(name) > len(formatNames[best]) {
			best = f
		}
	}
	return best
}

// partFormats are the types that a MIME part or an entry of an archive may declare.
var partFormats = map[string]format{
	"text/x-shellscript":              formatScript,
	"text/x-shellscript-per-boot":     formatScript,
	"text/x-shellscript-per-instance": formatScript,
	"text/x-shellscript-per-once":     formatScript,
	"text/cloud-config":               formatCloudConfig,
	"text/cloud-config-archive":       formatArchive,
	"text/cloud-config-jsonp":         formatJSONPatch,
	"text/cloud-boothook":             formatBoothook,
	"text/x-include-url":              formatInclude,
	"text/x-include-once-url":         formatInclude,
	"text/part-handler":               formatPartHandler,
	"text/jinja2":                     formatJinja,
}

// hint guesses what an unknown text was meant to be.
func hint(b []byte) string {
	line, _, _ := strings.Cut(lower(bytes.TrimSpace(b), 64), "\n")
	line = strings.TrimSpace(line)
	if key, _, ok := strings.Cut(line, ":"); ok && knownKeys[key] {
		return ": it looks like a cloud-config without its first line, #cloud-config"
	}
	known := make([]string, 0, len(formatNames))
	for f := formatScript; f <= formatJinja; f++ {
		known = append(known, formatNames[f])
	}
	known = append(known, "#include-once")
	if near := nearest.Nearest(line, known); near != "" {
		return ": did you mean " + near + "?"
	}
	return ": begin with #! for a script or with #cloud-config for a cloud-config"
}
