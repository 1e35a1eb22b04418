package detect

import (
	"fmt"
	"strconv"
	"strings"
)

// memory is MemTotal of proc_meminfo(5), whose kB are 1,024 bytes.
func (m machine) memory() int64 {
	for line := range strings.Lines(m.text("proc/meminfo")) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil || kib < 0 || kib > 1<<53 {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// cpuModel is the first "model name" of proc_cpuinfo(5); arm64 has none.
func (m machine) cpuModel() string {
	for line := range strings.Lines(m.text("proc/cpuinfo")) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}

// onlineCPUs counts the CPUs in use. Where sysfs is missing, cpuinfo lists them.
func (m machine) onlineCPUs() int64 {
	if n, ok := countList(m.text("sys/devices/system/cpu/online")); ok {
		return n
	}
	n := int64(0)
	for line := range strings.Lines(m.text("proc/cpuinfo")) {
		if key, _, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "processor" {
			n++
		}
	}
	return n
}

// countList counts a kernel CPU list such as "0-3,8".
func countList(list string) (int64, bool) {
	n := int64(0)
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseInt(first, 10, 32)
		b, errB := strconv.ParseInt(last, 10, 32)
		if errA != nil || errB != nil || a < 0 || b < a {
			return 0, false
		}
		n += b - a + 1
	}
	return n, true
}

// topology counts the packages, cores and threads that are online. Threads of a
// core share a list of siblings; core ids repeat among packages.
func (m machine) topology() (sockets, cores, threads *int64) {
	names, _ := m.entries("sys/devices/system/cpu")
	packages, siblings, count := make(map[string]bool), make(map[string]bool), int64(0)
	for _, name := range names {
		number, isCPU := strings.CutPrefix(name, "cpu")
		if _, err := strconv.Atoi(number); !isCPU || err != nil {
			continue
		}
		dir := fmt.Sprintf("sys/devices/system/cpu/%s/topology/", name)
		id := m.text(dir + "physical_package_id")
		if id == "" {
			continue // offline
		}
		if id == "-1" {
			return nil, nil, nil // the firmware did not tell the kernel
		}
		shared := m.text(dir + "core_cpus_list") // since Linux 5.3
		if shared == "" {
			shared = m.text(dir + "thread_siblings_list")
		}
		if shared == "" {
			return nil, nil, nil
		}
		packages[id], siblings[shared] = true, true
		count++
	}
	if count == 0 {
		return nil, nil, nil
	}
	s, c := int64(len(packages)), int64(len(siblings))
	return &s, &c, &count
}

// nestedVirt is the parameter of whichever KVM module is loaded.
func (m machine) nestedVirt() *bool {
	for _, module := range []string{"kvm_intel", "kvm_amd"} {
		switch m.text("sys/module/" + module + "/parameters/nested") {
		case "Y", "1":
			return known(true)
		case "N", "0":
			return known(false)
		}
	}
	return nil
}

func known(b bool) *bool { return &b }
