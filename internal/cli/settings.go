package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/compute"
)

// Context is the context file: which server the command line speaks to where
// neither a flag nor the environment says.
type Context struct {
	URL     string `json:"url"`
	Token   string `json:"token"`
	Project string `json:"project,omitempty"`
}

// ContextPath is where the context file stands: outcrop/context.yaml below
// XDG_CONFIG_HOME, or below ~/.config. It is empty where neither is known.
func ContextPath(getenv func(string) string) string {
	dir := getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home := getenv("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "outcrop", "context.yaml")
}

// readContext reads the context file; a missing one is an empty context.
func readContext(path string) (Context, error) {
	var c Context
	b, err := os.ReadFile(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if err := yaml.UnmarshalStrict(b, &c); err != nil {
		// The parser's own words could quote the token.
		return c, fmt.Errorf("%s is not a context file (url, token and project, as YAML); \"outcrop up\" writes a new one", path)
	}
	return c, nil
}

// WriteContext writes the context file for its owner only, whole or not at all.
func WriteContext(path string, c Context) error {
	b, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".context-*") // made with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// settings is where to go and as whom, and who said so.
type settings struct {
	url, urlFrom     string
	token, tokenFrom string
	project          string
	err              error // a file that could not be read
}

// settings resolves the settings once; ask only after the flags were read.
func (a *app) settings() *settings {
	if a.resolved == nil {
		a.resolved = a.resolve()
	}
	return a.resolved
}

// resolve takes each value from flag, environment, context file or default, in
// this order. The token of the context file goes only to the server of the
// context file.
func (a *app) resolve() *settings {
	path := ContextPath(a.getenv)
	c, err := readContext(path)
	s := &settings{err: err}
	s.url, s.urlFrom = firstOf(
		a.flags.url, "--url",
		a.getenv("OUTCROP_URL"), "OUTCROP_URL",
		c.URL, path,
		api.DefaultURL, "the default")
	s.project, _ = firstOf(
		a.flags.project, "",
		a.getenv("OUTCROP_PROJECT"), "",
		c.Project, "",
		compute.DefaultProject, "")
	switch {
	case a.flags.tokenFile != "":
		b, err := os.ReadFile(a.flags.tokenFile)
		s.token, s.tokenFrom, s.err = strings.TrimSpace(string(b)), a.flags.tokenFile, cmp.Or(err, s.err)
	case a.getenv("OUTCROP_TOKEN") != "":
		s.token, s.tokenFrom = a.getenv("OUTCROP_TOKEN"), "OUTCROP_TOKEN"
	case strings.TrimRight(s.url, "/") == strings.TrimRight(c.URL, "/"):
		s.token, s.tokenFrom = c.Token, path
	}
	return s
}

// firstOf takes pairs of value and origin and returns the first that has a value.
func firstOf(pairs ...string) (value, from string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] != "" {
			return pairs[i], pairs[i+1]
		}
	}
	return "", ""
}
