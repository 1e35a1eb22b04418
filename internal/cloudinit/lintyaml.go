package cloudinit

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/outcrop-cloud/outcrop/internal/nearest"
)

// cloudConfig checks that the text is one YAML mapping whose keys cloud-init knows.
func (l *linter) cloudConfig(b []byte, line int) {
	root := l.yaml(b, line)
	if root == nil {
		return
	}
	if root.Kind != yaml.MappingNode {
		l.add(codeBadYAML, line+root.Line-1, "a cloud-config must be a mapping, lines as \"key: value\" at the left margin")
		return
	}
	seen := map[string]int{}
	for i := 0; i < len(root.Content) && !l.full(); i += 2 {
		key, at := root.Content[i].Value, line+root.Content[i].Line-1
		if first := seen[key]; first != 0 {
			l.add(codeDuplicateKey, at, "the key %s stands on line %d already, and cloud-init uses the last one alone: merge the two", show(key), first)
		} else {
			l.key(root.Content[i], at)
		}
		seen[key] = at
	}
}

// key checks one top-level key.
func (l *linter) key(n *yaml.Node, line int) {
	switch {
	case knownKeys[n.Value] || n.Tag == "!!merge":
	case n.Value == "network":
		l.add(codeUnknownKey, line, "cloud-init does not read the network from user-data: interfaces are configured from the instance's own settings")
	default:
		advice := ""
		if near := nearest.Nearest(n.Value, keyList); near != "" {
			advice = ": did you mean " + near + "?"
		}
		l.add(codeUnknownKey, line, "cloud-init does not know the key %s%s", show(n.Value), advice)
	}
}

// show quotes a key, shortened: a text that is no cloud-config may parse as one long key.
func show(key string) string {
	if r := []rune(key); len(r) > 40 {
		key = string(r[:40]) + "…"
	}
	return strconv.Quote(key)
}

// archive is a list of texts, or of mappings with a text as "content" and maybe its
// "type" (user_data.py, _explode_archive).
func (l *linter) archive(b []byte, line, depth int) {
	root := l.yaml(b, line)
	if root == nil {
		return
	}
	if root.Kind != yaml.SequenceNode {
		l.add(codeBadYAML, line+root.Line-1, "a cloud-config-archive must be a list, entries as \"- type: text/x-shellscript\"")
		return
	}
	for _, entry := range root.Content {
		content, kind := entry, ""
		if entry.Kind == yaml.MappingNode {
			content = field(entry, "content")
			if t := field(entry, "type"); t != nil {
				kind = t.Value
			}
		}
		if content == nil || content.Kind != yaml.ScalarNode || content.Tag == "!!binary" {
			continue
		}
		l.archived(content, kind, line+content.Line-1, depth)
	}
}

// archived lints one text of an archive. A literal block keeps its lines, one below its
// header; in the other styles they are lost.
func (l *linter) archived(content *yaml.Node, kind string, line, depth int) {
	b := []byte(content.Value)
	f, known := partFormats[strings.ToLower(kind)]
	if !known {
		if kind != "" {
			l.unknownType(kind, line)
			return
		}
		if f = sniff(b); f == formatUnknown {
			f = formatCloudConfig
		}
	}
	if content.Style&yaml.LiteralStyle != 0 {
		l.content(f, b, line+1, depth+1)
		return
	}
	l.encoded(line, func() { l.content(f, b, line, depth+1) })
}

// field returns a mapping's value by name, or nil.
func field(mapping *yaml.Node, name string) *yaml.Node {
	for i := 0; i < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// yaml parses exactly one document and returns its root, or nil after a finding.
func (l *linter) yaml(b []byte, line int) *yaml.Node {
	doc, more, err := parseYAML(b)
	switch {
	case errors.Is(err, io.EOF) || err == nil && isNull(doc.Content[0]):
		l.add(codeEmpty, line, "there is nothing below the first line: cloud-init logs a warning and does nothing")
	case err != nil:
		l.add(codeBadYAML, line+yamlErrorLine(b, err)-1, "this is not YAML, so that cloud-init will ignore all of it: %s", yamlProblem(err))
	case more != nil:
		l.add(codeBadYAML, line+more.Line-1, "a second YAML document begins here, and cloud-init takes none of them: remove the line with ---")
	default:
		return doc.Content[0]
	}
	return nil
}

// parseYAML returns the first document and, if there is one, the second; io.EOF when
// there is none. Only the tree is built: aliases stay references, so that no text can
// blow up.
func parseYAML(b []byte) (doc, more *yaml.Node, err error) {
	d := yaml.NewDecoder(bytes.NewReader(b))
	doc, more = new(yaml.Node), new(yaml.Node)
	if err := d.Decode(doc); err != nil {
		return nil, nil, err
	}
	switch err := d.Decode(more); {
	case errors.Is(err, io.EOF):
		return doc, nil, nil
	case err != nil:
		return nil, nil, err
	}
	return doc, more, nil
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Tag == "!!null"
}

// yamlErrorLine finds where the mistake is: the first line with which the text has the
// same problem. The parser's own number is that of the block around it, or none.
func yamlErrorLine(b []byte, err error) int {
	if len(b) > MaxUserData { // out of gzip: not worth parsing it a dozen times
		return 1
	}
	var ends []int
	for i, c := range b {
		if c == '\n' {
			ends = append(ends, i+1)
		}
	}
	problem := yamlProblem(err)
	return 1 + sort.Search(len(ends), func(i int) bool {
		_, _, err := parseYAML(b[:ends[i]])
		return err != nil && yamlProblem(err) == problem
	})
}

var yamlPrefix = regexp.MustCompile(`^yaml: (line \d+: )?`)

// yamlProblem is the parser's message without its line. It is about syntax and carries
// no text of the document; the one that would, a name after *, may be half a password.
func yamlProblem(err error) string {
	problem := yamlPrefix.ReplaceAllString(err.Error(), "")
	if strings.HasPrefix(problem, "unknown anchor") {
		return "a value that begins with * refers to a name that nothing has: put it in quotes if it is meant as text"
	}
	return problem
}
