package runner

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The guest's script run by a real shell, read back as from a console.
func TestGuestScript(t *testing.T) {
	shells := [][]string{{"sh"}}
	if _, err := exec.LookPath("busybox"); err == nil {
		shells = append(shells, []string{"busybox", "sh"})
	}
	for _, tc := range []struct {
		name    string
		command []string
		env     map[string]string
		exit    int64
		want    string
	}{
		{"words", []string{"printf", "%s|", "a b", "it's", "$HOME", "`id`", "x\ny", "\\"}, nil, 0, "a b|it's|$HOME|`id`|x\ny|\\|"},
		{"environment", []string{"printenv", "A.1", "B"}, map[string]string{"A.1": "it's", "B": "x y"}, 0, "it's\nx y\n"},
		{"exit code", []string{"sh", "-c", "exit 3"}, nil, 3, ""},
		{"both outputs in order", []string{"sh", "-c", "echo 1; echo 2 >&2; echo 3"}, nil, 0, "1\n2\n3\n"},
		{"no line end", []string{"printf", "abc"}, nil, 0, "abc"},
		{"much", []string{"sh", "-c", "seq 5000"}, nil, 0, numbers(5000)},
		{"missing program", []string{"no-such-program"}, nil, 127, ""},
		{"killed", []string{"sh", "-c", "kill -9 $$"}, nil, 137, ""},
		{"left behind", []string{"sh", "-c", "sleep 1000 & echo done"}, nil, 0, "done\n"},
		{"name with =", []string{"./a=b"}, nil, 127, ""},
	} {
		for _, shell := range shells {
			t.Run(tc.name+"/"+shell[0], func(t *testing.T) {
				dir := t.TempDir()
				script := strings.ReplaceAll(string(guestScript("MARK", &Job{Command: tc.command, Env: tc.env})), "d=/run/outcrop-job\n", "d="+dir+"\n")
				script = strings.ReplaceAll(script, "dmesg -n 1", "true")
				path := dir + "/script"
				if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
					t.Fatal(err)
				}
				text, err := exec.Command(shell[0], append(shell[1:], path)...).Output()
				if err != nil {
					t.Fatal(err)
				}
				var out bytes.Buffer
				c := newConsole("MARK", &out)
				for i := 0; i < len(text); i += 1000 { // as it grows
					c.read(text[:i])
				}
				c.read(text)
				if !c.ended || c.exit != tc.exit || tc.want != "" && out.String() != tc.want {
					t.Errorf("exit %d (ended %t), output %q; want %d, %q", c.exit, c.ended, out.String(), tc.exit, tc.want)
				}
			})
		}
	}
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

func TestConsoleTellsWhatIsMissing(t *testing.T) {
	for _, tc := range []struct {
		name  string
		reads []string
		want  string
		ended bool
	}{
		{"in order, seen twice", []string{"M out 0 4 YWJj\r\n", "M out 0 4 YWJj\r\nM out 1 4 ZGVm\r\nM end 0 2\r\n"}, "abcdef", true},
		{"half a line", []string{"M out 0 4 YW"}, "", false},
		{"a gap", []string{"M out 0 4 YWJj\nM out 3 4 ZGVm\n"}, "abc\noutcrop: 2 pieces of the output, of 3072 bytes at most, were lost on the console\ndef", false},
		{"a gap at the end", []string{"M out 0 4 YWJj\nM end 1 2\n"}, "abc\noutcrop: 1 pieces of the output, of 3072 bytes at most, were lost on the console\n", true},
		{"written into", []string{"M out 0 4 Y[ 1.0] kernel: xWJj\nM out 0 8 YWJj\nM out 0 4 YWJj\n"}, "abc", false},
		{"behind another prefix", []string{"[ 12.1] cloud-init[9]: M out 0 4 YWJj\n"}, "abc", false},
		{"another's mark", []string{"N end 0 0\nM end x 0\n"}, "", false},
	} {
		var out bytes.Buffer
		c := newConsole("M", &out)
		for _, r := range tc.reads {
			c.read([]byte(r))
		}
		if out.String() != tc.want || c.ended != tc.ended {
			t.Errorf("%s: %q, ended %t; want %q, %t", tc.name, out.String(), c.ended, tc.want, tc.ended)
		}
	}
}

func FuzzConsole(f *testing.F) {
	f.Add([]byte("M out 0 4 YWJj\r\nM end 0 1\r\n"), 5)
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		var one, two bytes.Buffer
		a, b := newConsole("M", &one), newConsole("M", &two)
		a.read(text)
		b.read(text[:min(max(at, 0), len(text))])
		b.read(text)
		if one.String() != two.String() || a.exit != b.exit || a.ended != b.ended {
			t.Errorf("read at once: %q %d; in two steps: %q %d", one.String(), a.exit, two.String(), b.exit)
		}
	})
}
