package cloudinit

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func gz(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(s))
	_ = z.Close()
	return b.String()
}

func b64(s string) string {
	return base64.StdEncoding.EncodeToString([]byte(s))
}

// mimeOf makes a message of parts, each with its own header lines.
func mimeOf(parts ...string) string {
	var b strings.Builder
	b.WriteString("Content-Type: multipart/mixed; boundary=\"==B==\"\nMIME-Version: 1.0\n\n")
	for _, p := range parts {
		b.WriteString("--==B==\n" + p + "\n")
	}
	b.WriteString("--==B==--\n")
	return b.String()
}

const goodConfig = "#cloud-config\npackages:\n  - nginx\nruncmd:\n  - [sh, -c, 'echo hi']\n"

func TestLint(t *testing.T) {
	bomb := gz(strings.Repeat("#", maxUnpacked+1))
	for _, tt := range []struct {
		name, data string
		want       []string // CODE@line
	}{
		{"nothing", "", nil},
		{"script", "#!/bin/sh\necho hi\n", nil},
		{"script in capitals", "#!/BIN/SH\n", nil},
		{"cloud-config", goodConfig, nil},
		{"cloud-config, other case", "#Cloud-Config\npackages: []\n", nil},
		{"cloud-config after blank lines", "\n\n" + goodConfig, nil},
		{"cloud-config with CRLF", "#cloud-config\r\npackages: [a]\r\n", nil},
		{"cloud-config with an alias", "#cloud-config\npackages: &a [x]\nbootcmd: *a\n", nil},
		{"cloud-config with a merge key", "#cloud-config\nsnap: &a {x: 1}\n<<: *a\n", nil},
		{"boothook", "#cloud-boothook\n#!/bin/sh\necho\n", nil},
		{"include", "#include\nhttps://example.com/x\n", nil},
		{"include-once", "#include-once https://example.com/x\n", nil},
		{"part-handler", "#part-handler\ndef list_types(): pass\n", nil},
		{"json patch", "#cloud-config-jsonp\n[]\n", nil},
		{"jinja", "## template: jinja\n#cloud-config\nhostname: {{ v1.x }}\n{% if %}\n", nil},
		{"jinja that makes its first line", "## template: jinja\n{% if a %}#!{% endif %}\n", nil},
		{"gzip", gz(goodConfig), nil},
		{"archive", "#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    packages: [a]\n- |\n  #!/bin/sh\n  echo\n", nil},
		{"mime", mimeOf("Content-Type: text/cloud-config\n\n"+goodConfig, "Content-Type: text/x-shellscript\n\n#!/bin/sh\n"), nil},
		{"mime from a mailbox", "From nobody Mon Nov 30 00:00:00 2026\n" + mimeOf("Content-Type: text/plain\n\n#!/bin/sh\n"), nil},
		{"mime, one part", "MIME-Version: 1.0\nContent-Type: text/cloud-config\n\npackages: [a]\n", nil},
		{"mime, base64 part", mimeOf("Content-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\n" + b64(goodConfig)), nil},
		{"mime, quoted-printable part", mimeOf("Content-Type: text/cloud-config\nContent-Transfer-Encoding: quoted-printable\n\n#cloud-config\nlocale: de=5FDE\n"), nil},
		{"mime, gzip part", mimeOf("Content-Type: application/gzip\nContent-Transfer-Encoding: base64\n\n" + b64(gz(goodConfig))), nil},
		{"mime, config called a script", mimeOf("Content-Type: text/x-shellscript\n\n" + goodConfig), nil},
		{"mime, own handler for own type", mimeOf("Content-Type: text/part-handler\n\n#part-handler\n", "Content-Type: text/mine\n\nx\n"), nil},
		{"mime in gzip", gz(mimeOf("Content-Type: text/cloud-config\n\n" + goodConfig)), nil},

		{"blank", " \n\t\n", []string{"EMPTY@1"}},
		{"empty cloud-config", "#cloud-config\n", []string{"EMPTY@1"}},
		{"null cloud-config", "#cloud-config\n---\n~\n", []string{"EMPTY@1"}},
		{"plain words", "hello there\n", []string{"UNKNOWN_FORMAT@1"}},
		{"NULs", "\x00\x00\x00\x00", []string{"UNKNOWN_FORMAT@1"}},
		{"gzip in gzip", gz(gz(goodConfig)), []string{"UNKNOWN_FORMAT@1"}},
		{"blank in the format", "# cloud-config\npackages: []\n", []string{"UNKNOWN_FORMAT@1"}},
		{"jinja of nothing", "## template: jinja\npackages: []\n", []string{"UNKNOWN_FORMAT@2"}},
		{"base64 of a script", b64("#!/bin/sh\necho hi\n"), []string{"BASE64@1"}},
		{"base64 twice, in lines", b64(b64(goodConfig)[:40]+"\n"+b64(goodConfig)[40:]) + "\n", []string{"BASE64@1"}},
		{"base64 of gzip", b64(gz(goodConfig)), []string{"BASE64@1"}},
		{"base64 of nothing useful", b64("hello there, you"), []string{"UNKNOWN_FORMAT@1"}},
		{"BOM", "\xef\xbb\xbf" + goodConfig, []string{"BOM@1"}},
		{"UTF-16", "\xff\xfe#\x00!\x00", []string{"BOM@1"}},
		{"script with raw bytes", "#!/bin/sh\nexit\n\xff\xfe", []string{"NOT_UTF8@1"}},
		{"white space before a script", "\r\n#!/bin/sh\n", []string{"SHEBANG@1", "CRLF@1"}},
		{"CRLF", "#!/bin/sh\r\necho hi\r\n", []string{"CRLF@1"}},
		{"CRLF further down", "#!/bin/sh\necho hi\necho ho\r\n", []string{"CRLF@3"}},
		{"boothook without interpreter", "#cloud-boothook\necho\r\n", []string{"SHEBANG@1", "CRLF@2"}},
		{"bad YAML", "#cloud-config\npackages:\n  - a\n bad\n", []string{"BAD_YAML@4"}},
		{"tab in YAML", "#cloud-config\nusers:\n\t- a\n", []string{"BAD_YAML@3"}},
		{"unknown anchor", "#cloud-config\nusers: *nobody\n", []string{"BAD_YAML@2"}},
		{"two documents", "#cloud-config\npackages: []\n---\nruncmd: []\n", []string{"BAD_YAML@3"}},
		{"list ends early", "#cloud-config\n- a\n- b\nc: d\n", []string{"BAD_YAML@4"}},
		{"open quote", "#cloud-config\nhostname: 'x\n\nruncmd: []\n", []string{"BAD_YAML@2"}},
		{"no end of line", "#cloud-config\nusers: [a", []string{"BAD_YAML@2"}},
		{"control character", "#cloud-config\nusers: []\nhostname: \x01\n", []string{"BAD_YAML@3"}},
		{"list", "#cloud-config\n- packages\n", []string{"BAD_YAML@2"}},
		{"unknown keys", "#cloud-config\npacakges: []\nfoo-bar-baz: 1\nrun_cmd: []\n", []string{"UNKNOWN_KEY@2", "UNKNOWN_KEY@3", "UNKNOWN_KEY@4"}},
		{"network", "#cloud-config\nnetwork: {version: 2}\n", []string{"UNKNOWN_KEY@2"}},
		{"key twice", "#cloud-config\nruncmd: [a]\nusers: []\nruncmd: [b]\n", []string{"DUPLICATE_KEY@4"}},
		{"unknown key in gzip", gz("#cloud-config\n\npacakges: []\n"), []string{"UNKNOWN_KEY@3"}},
		{"gzip cut off", gz(goodConfig)[:40], []string{"BAD_GZIP@1"}},
		{"gzip header alone", "\x1f\x8b", []string{"BAD_GZIP@1"}},
		{"gzip that grows too large", bomb, []string{"TOO_LARGE_UNPACKED@1"}},
		{"parts that grow too large together", mimeOf(slices.Repeat([]string{"Content-Type: application/gzip\nContent-Transfer-Encoding: base64\n\n" + b64(gz("#!"+strings.Repeat("x", maxUnpacked/2)))}, 3)...), []string{"TOO_LARGE_UNPACKED@13"}},

		{"mime, unknown key", mimeOf("Content-Type: text/x-shellscript\n\n#!/bin/sh\n", "Content-Type: text/cloud-config\n\npacakges: []\n"), []string{"UNKNOWN_KEY@12"}},
		{"mime, unknown key in base64", mimeOf("Content-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\n" + b64("\n\n\npacakges: []\n")), []string{"UNKNOWN_KEY@8"}},
		{"mime, unknown type", mimeOf("Content-Type: text/html\n\n<p>\n"), []string{"UNKNOWN_FORMAT@7"}},
		{"mime, script without interpreter", mimeOf("Content-Type: text/x-shellscript\n\necho\n"), []string{"SHEBANG@7"}},
		{"mime, no boundary", "MIME-Version: 1.0\nContent-Type: multipart/mixed\n\nx\n", []string{"BAD_MIME@4"}},
		{"mime, no part", "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n\nx\n", []string{"BAD_MIME@4"}},
		{"mime, cut off", strings.TrimSuffix(mimeOf("Content-Type: text/plain\n\n#!/bin/sh\n"), "--==B==--\n"), []string{"BAD_MIME@8"}},
		{"mime, not base64", mimeOf("Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n***\n"), []string{"BAD_MIME@8"}},
		{"mime, broken header", mimeOf("no header at all\n\nx\n"), []string{"BAD_MIME@5"}},
		{"archive of a mapping", "#cloud-config-archive\na: b\n", []string{"BAD_YAML@2"}},
		{"archive, unknown key", "#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    packages: []\n    pacakges: []\n- content: 'pacakges: []'\n", []string{"UNKNOWN_KEY@5", "UNKNOWN_KEY@6"}},
		{"archive, unknown type", "#cloud-config-archive\n- {type: text/html, content: x}\n- {type: text/plain}\n", []string{"UNKNOWN_FORMAT@2"}},

		{"close to the limit", "#!/bin/sh\n" + strings.Repeat("#", MaxUserData*9/10), []string{"NEAR_LIMIT@0"}},
		{"at the limit", "#!/bin/sh\n" + strings.Repeat("#", MaxUserData-10), []string{"NEAR_LIMIT@0"}},
		{"over the limit", "#!/bin/sh\n" + strings.Repeat("#", MaxUserData-9), []string{"OVER_LIMIT@0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, f := range Lint([]byte(tt.data)) {
				got = append(got, fmt.Sprintf("%s@%d", f.Code, f.Line))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q\n%+v", got, tt.want, Lint([]byte(tt.data)))
			}
		})
	}
}

func TestLintAdvises(t *testing.T) {
	for _, tt := range []struct{ data, want string }{
		{"#cloud-config\npacakges: []\n", `"pacakges": did you mean packages?`},
		{"#cloud-config\nrun-cmd: []\n", `did you mean runcmd?`},
		{"# cloud-config\nusers: []\n", `did you mean #cloud-config?`},
		{"#cloud-boothok\n#!/bin/sh\n", `did you mean #cloud-boothook?`},
		{"packages:\n  - a\n", `without its first line, #cloud-config`},
		{b64(b64(goodConfig)), `base64 of #cloud-config`},
		{gz(goodConfig)[:40], `the end is missing`},
		{"#cloud-config\na: [\n", `this is not YAML`},
	} {
		got := Lint([]byte(tt.data))
		if len(got) == 0 || !strings.Contains(got[0].Message, tt.want) {
			t.Errorf("%.30q: got %+v, want a message with %q", tt.data, got, tt.want)
		}
	}
}

func TestLintKeepsSecrets(t *testing.T) {
	for _, data := range []string{
		"hunter2\n", "#!hunter2\r\n", "#cloud-config\npassword: [hunter2\n", "#cloud-config\nhunter2\n",
		"#cloud-config\npassword: \"\\hunter2\"\n", "#cloud-config\npassword: !<hunter2 x\n",
		"#cloud-config\npassword: *hunter2\n", "#cloud-config\npassword: &hunter2\n",
		b64("#!hunter2"), mimeOf("Content-Type: text/plain\n\nhunter2\n"), mimeOf("hunter2\n\nhunter2\n"),
	} {
		for _, f := range Lint([]byte(data)) {
			if strings.Contains(f.Message, "hunter2") {
				t.Errorf("%q: the message quotes it: %s", data, f.Message)
			}
		}
	}
}

// Many and deep things end in a bounded answer.
func TestLintIsBounded(t *testing.T) {
	nested := "Content-Type: text/plain\n\nx\n"
	for range 50 {
		nested = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n\n--x\n" + nested + "--x--\n"
	}
	keys := "#cloud-config\n"
	for i := range 5000 {
		keys += fmt.Sprintf("unknown-key-%d: 1\n", i)
	}
	for name, data := range map[string]string{
		"deep mime":        nested,
		"many keys":        keys,
		"deep flow":        "#cloud-config\na: " + strings.Repeat("[", 60_000),
		"deep mapping":     "#cloud-config\n" + strings.Repeat("? ", 30_000),
		"deep list":        "#cloud-config\n" + strings.Repeat("- ", 30_000),
		"many aliases":     "#cloud-config\na: &a [x]\nb: [" + strings.Repeat("*a,", 20_000) + "]\n",
		"long flow":        "#cloud-config\na: [" + strings.Repeat("{a: b},", 9_000) + "]\n",
		"unpacked mapping": gz("#cloud-config\n" + strings.Repeat("a: b\n", maxUnpacked/5-10)),
		"unpacked flow":    gz("#cloud-config\n" + strings.Repeat("[", maxUnpacked-20)),
		"many parts":       mimeOf(slices.Repeat([]string{"a: b\n\nx"}, 5_000)...),
	} {
		t.Run(name, func(t *testing.T) {
			if got := Lint([]byte(data)); len(got) > maxFindings {
				t.Errorf("%d findings", len(got))
			}
		})
	}
}

func FuzzLint(f *testing.F) {
	for _, s := range []string{
		goodConfig, "#!/bin/sh\r\n", "\xef\xbb\xbf#cloud-config\n", gz(goodConfig), b64(goodConfig),
		"#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    a: b\n", "## template: jinja\n#!x\n",
		mimeOf("Content-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\n" + b64(goodConfig)),
		"#cloud-config\n&a ? *a\n: !!binary x\n", "#cloud-config\n<<: [a]\n---\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		lines := bytes.Count(b, []byte("\n")) + 2
		for _, finding := range Lint(b) {
			if finding.Code == "" || finding.Message == "" || finding.Line < 0 {
				t.Errorf("finding %+v", finding)
			}
			if finding.Line > lines && !isGzip(b) {
				t.Errorf("line %d of %d: %+v", finding.Line, lines, finding)
			}
		}
		if !bytes.Equal(b, before) {
			t.Error("the user-data was changed")
		}
	})
}

func BenchmarkLint(b *testing.B) {
	data := []byte(goodConfig + "write_files:\n" + strings.Repeat("  - {path: /tmp/x, content: hello}\n", 1800))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if got := Lint(data); len(got) != 1 {
			b.Fatal(got)
		}
	}
}
