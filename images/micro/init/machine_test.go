package main

import (
	"fmt"
	"testing"
	"testing/fstest"
)

func TestDisks(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text + "\n")} }
	sys := fstest.MapFS{
		"block/vdaa/size":   file("8"),
		"block/vdb/size":    file("880"),
		"block/vdb/ro":      file("1"),
		"block/vda/size":    file("6291456"),
		"block/vda/ro":      file("0"),
		"block/vda/serial":  file("vol-1"),
		"block/loop0/size":  file("8"),
		"block/vdc/unknown": file(""),
	}
	want := []disk{
		{name: "vda", bytes: 3 << 30, serial: "vol-1"},
		{name: "vdb", bytes: 450560, readOnly: true},
		{name: "vdc"},
		{name: "vdaa", bytes: 4096},
	}
	if got := disks(sys); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("disks = %v, want %v", got, want)
	}
	if got := disks(fstest.MapFS{}); got != nil {
		t.Errorf("disks without /sys/block = %v", got)
	}
}

func TestFATLabel(t *testing.T) {
	boot := make([]byte, 512)
	boot[38], boot[510], boot[511] = 0x29, 0x55, 0xAA
	copy(boot[43:], "MICRO      FAT16   ")
	if got := fatLabel(boot); got != "MICRO" {
		t.Errorf("fatLabel = %q, want MICRO", got)
	}
	boot[38] = 0
	for _, b := range [][]byte{boot, nil, boot[:100]} {
		if got := fatLabel(b); got != "" {
			t.Errorf("fatLabel of no FAT16 = %q", got)
		}
	}
}

func TestVCPUs(t *testing.T) {
	for online, want := range map[string]int{"0": 1, "0-3": 4, "0,2-3": 3, "": 0} {
		sys := fstest.MapFS{"devices/system/cpu/online": {Data: []byte(online + "\n")}}
		if got := vcpus(sys); got != want {
			t.Errorf("vcpus(%q) = %d, want %d", online, got, want)
		}
	}
}

func TestMemTotal(t *testing.T) {
	for in, want := range map[string]int64{
		"MemTotal:          94776 kB\nMemFree: 1 kB\n": 94776 << 10,
		"MemFree: 1 kB\n": 0,
	} {
		if got := memTotal(in); got != want {
			t.Errorf("memTotal(%q) = %d, want %d", in, got, want)
		}
	}
}
