// Package archtest says who may import whom, and other rules of the tree that no
// compiler checks. A rule that has to give way is changed here, with its reason
// in docs/adr.
package archtest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/outcrop-cloud/outcrop/"

// pure packages hold nouns and rules: they know no transport, no database and no
// file, and import none of ours but each other. Time is passed in to them.
var pure = []string{"cloudinit", "compute", "diskimage", "fault", "fleet", "httpsig", "iam", "nearest", "schedule", "vpc"}

// impure is what a pure package may not import. httpsig signs messages of
// net/http, so it knows that one.
var impure = map[string][]string{
	"net/http":     {"httpsig"},
	"database/sql": nil,
	"os":           nil,
}

// apart are the processes. They meet in api and in the pure packages only.
var apart = []string{"guest", "node", "runner", "server"}

// users says who may import a package: only the named ones, and its own tests.
var users = map[string][]string{
	"cli":                {"cmd/outcrop"},
	"hypervisor/fake":    {"cli"},
	"hypervisor/libvirt": {"cli"},
	"store":              {"apptest", "cli", "control", "gateway", "store/storetest", "test"},
}

// vague names say nothing about what is inside.
var vague = []string{"common", "helper", "helpers", "misc", "model", "models", "pkg", "util", "utils"}

// pkg is what `go list` says about a package; tests are not in Imports.
type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string // all that it imports, directly or not
}

func (p *pkg) name() string { return short(p.ImportPath) }

// short is the path below internal/, or below the module for the rest.
func short(importPath string) string {
	return strings.TrimPrefix(strings.TrimPrefix(importPath, module), "internal/")
}

// below says whether name is the package or inside its folder.
func below(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", module+"...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		name := p.name()
		for _, imported := range p.Imports {
			if why := refused(name, imported); why != "" {
				t.Errorf("%s imports %s: %s", name, short(imported), why)
			}
		}
		for _, dep := range p.Deps {
			if a, b := process(name), process(short(dep)); strings.HasPrefix(dep, module) && a != "" && b != "" && a != b {
				t.Errorf("%s depends on %s: processes meet in api only", name, short(dep))
			}
		}
		if slices.Contains(vague, path.Base(name)) {
			t.Errorf("%s: name a package for what is inside it", name)
		}
	}
}

// refused tells why one package may not import another, if it may not.
func refused(name, imported string) string {
	ours := strings.HasPrefix(imported, module)
	if slices.Contains(pure, name) {
		if excepted, ok := impure[imported]; ok && !slices.Contains(excepted, name) {
			return "a pure package gets what it needs as arguments"
		}
		if ours && !slices.Contains(pure, short(imported)) {
			return "a pure package imports pure ones only"
		}
	}
	if allowed, ok := users[short(imported)]; ours && ok && !slices.ContainsFunc(allowed, func(a string) bool { return below(name, a) }) {
		return "only " + strings.Join(allowed, ", ") + " may"
	}
	return ""
}

// process is the process that a package belongs to, if it belongs to one alone.
func process(name string) string {
	for _, a := range apart {
		if below(name, a) {
			return a
		}
	}
	return ""
}

// Tests wait for events or move a clock; they never sleep, but where a bubble of
// testing/synctest makes it cost no time.
func TestNoSleeps(t *testing.T) {
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "node_modules" {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		tree, err := parser.ParseFile(files, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(tree.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` }) {
			return nil
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: time.Sleep in a test", files.Position(s.Pos()))
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
