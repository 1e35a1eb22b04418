package detect

import (
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
)

// model reads a machine of testdata; files called .hex are bytes in hex.
func model(t testing.TB, name string) fstest.MapFS {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	root := make(fstest.MapFS)
	for _, f := range archive.Files {
		data := f.Data
		path, isHex := strings.CutSuffix(f.Name, ".hex")
		if isHex {
			if data, err = hex.DecodeString(strings.TrimSpace(string(data))); err != nil {
				t.Fatalf("%s: %s: %v", name, f.Name, err)
			}
		}
		root[path] = &fstest.MapFile{Data: data, Mode: 0o444}
	}
	return root
}

func count(n int64) *int64 { return &n }

// contract: N-04 N-12 N-13 N-14
func TestMachine(t *testing.T) {
	yes, no := known(true), known(false)
	tests := []struct {
		name   string
		want   Facts
		labels map[string]string
	}{
		{
			name: "server",
			want: Facts{
				Hostname: "rack1-n7", Architecture: "amd64", MachineID: "4f1c0e9d7b6a45e2a2d3c4b5a6978812",
				BootID: "0b6d4ed6-9ef8-4d4c-b9c5-0b4b3c6c1d0e",
				VCPUs:  8, MemoryBytes: 395985632 << 10,
				CPUModel: "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz",
				Sockets:  count(2), Cores: count(4), Threads: count(8),
				ECC: yes, GPU: yes, NestedVirt: yes, SecureBoot: yes, TPM: yes,
				Hugepages1G: count(64), SRIOVVFs: count(128),
				KVM: true, KVMVersion: "6.1.0-28-amd64",
				WakeOnLANMACs: []string{"3c:fd:fe:00:00:02", "3c:fd:fe:00:00:01", "3c:fd:fe:00:00:03"},
			},
			labels: map[string]string{
				"capability.cpu.model":        "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz",
				"capability.cpu.sockets":      "2",
				"capability.cpu.cores":        "4",
				"capability.cpu.threads":      "8",
				"capability.gpu.present":      "true",
				"capability.mem.ecc":          "true",
				"capability.sec.tpm":          "true",
				"capability.virt.nested":      "true",
				"capability.net.sriov_vfs":    "128",
				"capability.mem.hugepages_1g": "64",
			},
		},
		{
			name: "cloudvm",
			want: Facts{
				Hostname: "vm", Architecture: "amd64", MachineID: "00000000000000000000000000000abc",
				VCPUs: 3, MemoryBytes: 2014276 << 10, CPUModel: "AMD EPYC",
				Sockets: count(1), Cores: count(2), Threads: count(3),
				GPU: no, SecureBoot: no, Hugepages1G: count(0), SRIOVVFs: count(0),
			},
			labels: map[string]string{
				"capability.cpu.model":        "AMD EPYC",
				"capability.cpu.sockets":      "1",
				"capability.cpu.cores":        "2",
				"capability.cpu.threads":      "3",
				"capability.gpu.present":      "false",
				"capability.net.sriov_vfs":    "0",
				"capability.mem.hugepages_1g": "0",
			},
		},
		{
			name: "arm",
			want: Facts{
				Hostname: "altra", Architecture: "arm64", VCPUs: 2, MemoryBytes: 527931392 << 10,
				ECC: yes, KVM: true, KVMVersion: "6.12.9",
			},
			labels: map[string]string{"capability.mem.ecc": "true"},
		},
		{
			name: "desktop",
			want: Facts{
				Hostname: "desk", Architecture: "riscv64",
				ECC: no, GPU: yes, NestedVirt: no, SecureBoot: no, SRIOVVFs: count(0),
			},
			labels: map[string]string{
				"capability.gpu.present":   "true",
				"capability.mem.ecc":       "false",
				"capability.virt.nested":   "false",
				"capability.net.sriov_vfs": "0",
			},
		},
		{
			name:   "unknown",
			want:   Facts{Architecture: runtime.GOARCH},
			labels: map[string]string{},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Machine(model(t, test.name), "/no/such/path")
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			if labels := got.Capabilities(); !maps.Equal(labels, test.labels) {
				t.Errorf("labels %v\nwant   %v", labels, test.labels)
			}
		})
	}
}

// An empty class directory is a no; a missing one is silence.
func TestNoTPM(t *testing.T) { // contract: N-14
	root := os.DirFS(t.TempDir())
	if got := (machine{root}).tpm(); got != nil {
		t.Errorf("without the class: %v", *got)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sys/class/tpm"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := (machine{os.DirFS(dir)}).tpm(); got == nil || *got {
		t.Errorf("with an empty class: %v", got)
	}
}

// TestThisMachine: whatever this machine is, it has CPUs, memory and a disk.
func TestThisMachine(t *testing.T) {
	f := Machine(os.DirFS("/"), t.TempDir())
	if f.VCPUs < 1 || f.MemoryBytes < 1<<20 || f.DiskBytes < 1<<20 || f.BootID == "" || f.Hostname == "" {
		t.Errorf("%+v", f)
	}
	if f.Architecture != runtime.GOARCH {
		t.Errorf("architecture %s, built for %s", f.Architecture, runtime.GOARCH)
	}
}

func TestCountList(t *testing.T) {
	for list, want := range map[string]int64{"0": 1, "0-3": 4, "0-1,4,6-7": 5, "": -1, "3-1": -1, "a": -1, "0,": -1, "-1": -1} {
		got, ok := countList(list)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%q counts %d, want %d", list, got, want)
		}
	}
}

func FuzzMemoryArrays(f *testing.F) {
	f.Add([]byte(model(f, "arm")["sys/firmware/dmi/tables/DMI"].Data))
	f.Add([]byte{16, 4, 0, 0})
	f.Fuzz(func(_ *testing.T, table []byte) { memoryArrays(table) })
}

func BenchmarkMachine(b *testing.B) {
	root := os.DirFS("/")
	for b.Loop() {
		Machine(root, "/")
	}
}
