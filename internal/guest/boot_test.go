package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

func files(pairs ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return m
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// contract: U-10
func TestReadBoot(t *testing.T) {
	const status22 = `{"v1":{"datasource":"DataSourceNoCloud [seed=/dev/vdb]","init":{"errors":[],"finished":2,"start":1},"stage":null}}`
	tests := []struct {
		name  string
		files fstest.MapFS
		want  api.BootReport
	}{
		{"no cloud-init", files(), api.BootReport{Status: "disabled", Detail: "this image has no cloud-init"}},
		{"switched off", files(disabledFile, "", program, ""), api.BootReport{Status: "disabled", Detail: "cloud-init is switched off"}},
		{"not begun", files(program, ""), api.BootReport{Status: "running"}},
		{"at work, beside what the boot before left", files(statusFile, `{"v1":{"stage":"init"}}`, userDataFile, "old"), api.BootReport{Status: "running"}},
		{"done", files(resultFile, `{"v1":{"datasource":"DataSourceEc2Local","errors":[]}}`, statusFile, status22, userDataFile, "#!/bin/sh\n\x00"),
			api.BootReport{Status: "done", UserDataHash: hashOf("#!/bin/sh\n\x00")}},
		{"without user-data", files(resultFile, `{"v1":{"errors":[]}}`, userDataFile, ""), api.BootReport{Status: "done"}},
		{"a module failed", files(resultFile, `{"v1":{"errors":["('scripts-user', RuntimeError('Runparts: 1 failures (runcmd) in 1 attempted commands'))"]}}`, userDataFile, "x"),
			api.BootReport{Status: "error", Detail: "module scripts-user: RuntimeError('Runparts: 1 failures (runcmd) in 1 attempted commands')", UserDataHash: hashOf("x")}},
		{"two failed", files(resultFile, `{"v1":{"errors":["('ntp', KeyError('a\nb'))","odd"]}}`),
			api.BootReport{Status: "error", Detail: "module ntp: KeyError('a b'); odd"}},
		{"warnings in the result", files(resultFile, `{"v1":{"errors":[],"recoverable_errors":{"WARNING":["Unhandled non-multipart userdata"],"DEPRECATED":["old key"]}}}`),
			api.BootReport{Status: "degraded", Detail: "Unhandled non-multipart userdata"}},
		{"warnings in a stage", files(resultFile, `{"v1":{"errors":[]}}`, statusFile, `{"v1":{"stage":null,"modules-final":{"errors":[],"recoverable_errors":{"WARNING":["w"]}}}}`),
			api.BootReport{Status: "degraded", Detail: "w"}},
		{"only deprecations", files(resultFile, `{"v1":{"errors":[],"recoverable_errors":{"DEPRECATED":["old key"]}}}`), api.BootReport{Status: "done"}},
	}
	for _, tt := range tests {
		got, err := readBoot(tt.files)
		if err != nil || *got != tt.want {
			t.Errorf("%s: %+v, %v; want %+v", tt.name, got, err, tt.want)
		}
	}
	if b, err := readBoot(files(resultFile, "{")); err == nil {
		t.Errorf("half a result gives %+v", b)
	}
	long, err := readBoot(files(resultFile, `{"v1":{"errors":["`+strings.Repeat("ä", 2000)+`"]}}`))
	if err != nil || len([]rune(long.Detail)) != maxDetail {
		t.Errorf("%v, %d characters", err, len([]rune(long.Detail)))
	}
}

// What a guest's files hold is not the agent's: any bytes give a report that a node takes, or an error.
func FuzzReadBoot(f *testing.F) {
	f.Add([]byte(`{"v1":{"errors":["('ntp', x)"]}}`), []byte(`{"v1":{"init":{"recoverable_errors":{"WARNING":["w"]}}}}`))
	f.Add([]byte(`{"v1":null}`), []byte(`[]`))
	f.Fuzz(func(t *testing.T, result, status []byte) {
		b, err := readBoot(files(resultFile, string(result), statusFile, string(status)))
		if err != nil {
			return
		}
		if len([]rune(b.Detail)) > maxDetail || strings.ContainsAny(b.Detail, "\n\x00") {
			t.Errorf("detail %q", b.Detail)
		}
	})
}
