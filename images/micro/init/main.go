// Command init is PID 1 of the micro guest image: it boots in seconds, says on the serial console what it was
// given (disks, seed, network, metadata), one fact a line, and then offers a shell.
//
// Every fact is a line "outcrop-micro: subject key=value ..."; images/README.md lists them.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// seedWait is how long a cidata disk may take to appear. Loading the virtio modules waits for the probes of the disks
// that are there, so this only covers a disk that is plugged in late.
const seedWait = time.Second

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: this is PID 1 of the micro guest image; boot the image instead of running it")
		os.Exit(1)
	}
	con := &console{out: os.Stdout}
	con.fact("userland", "uptime", uptime())
	mountAll(con)
	procs := newProcesses()
	go procs.reap()
	loadModules(con, "/lib/modules")
	go watchPower(con)

	reportMachine(con)
	net := &network{con: con, procs: procs}
	go net.up()
	userData := seedUp(con)
	con.fact("ready", "uptime", uptime())

	boot := outcome{con: con, dir: "/"}
	boot.begin(userData)
	var problem error
	if isScript(userData) {
		problem = runScript(con, procs, userData)
	}
	boot.end(problem)
	runShell(con, procs) // for ever: PID 1 must not return
}

// uptime is the time since the kernel started, in seconds.
func uptime() string {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.2f", time.Duration(ts.Nano()).Seconds())
}

// mountAll mounts what the kernel offers. The console is open already, so a failure can be told.
func mountAll(con *console) {
	for _, m := range []struct{ kind, dir, data string }{
		{"devtmpfs", "/dev", ""},
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"tmpfs", "/run", "mode=0755"},
		{"tmpfs", "/tmp", "mode=1777"},
		{"devpts", "/dev/pts", ""},
	} {
		err := os.MkdirAll(m.dir, 0o755)
		if err == nil {
			err = unix.Mount(m.kind, m.dir, m.kind, 0, m.data)
		}
		if err != nil {
			con.fact("mount", "dir", m.dir, "error", err)
		}
	}
}

// loadModules inserts dir's modules in the order of dir/order, which the image build wrote with the dependencies first.
func loadModules(con *console, dir string) {
	order, err := os.ReadFile(dir + "/order")
	if err != nil {
		con.fact("modules", "error", err)
		return
	}
	for _, name := range strings.Fields(string(order)) {
		if err := loadModule(dir + "/" + name); err != nil {
			con.fact("module", "name", name, "error", err)
		}
	}
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// reportMachine prints what the hypervisor gave: processors, memory, identity, disks.
func reportMachine(con *console) {
	sys := os.DirFS("/sys")
	con.fact("", "vcpus", vcpus(sys))
	if meminfo, err := os.ReadFile("/proc/meminfo"); err == nil {
		con.fact("memory", "bytes", memTotal(string(meminfo)))
	}
	con.fact("machine", "uuid", sysText(sys, "class/dmi/id/product_uuid"), "serial", sysText(sys, "class/dmi/id/product_serial"))
	for _, d := range disks(sys) {
		if isRoot(d) {
			con.fact("root", "device", d.device(), "bytes", d.bytes, "serial", d.serial)
		}
		con.fact("disk", "device", d.device(), "bytes", d.bytes, "serial", d.serial, "readonly", d.readOnly)
	}
}

// seedUp finds and reads the cidata disk, prints it, sets the host name, and returns the user-data.
func seedUp(con *console) []byte {
	device, ok := findSeed(os.DirFS("/sys"), seedWait)
	if !ok {
		con.fact("no cidata")
		return nil
	}
	files, err := readSeedDisk(device)
	if err != nil {
		con.fact("cidata", "device", device, "error", err)
		return nil
	}
	con.fact("cidata", "device", device, "files", strings.Join(files.names(), ","))
	meta := metaData(files["meta-data"])
	con.fact("", "instance-id", meta["instance-id"])
	if name := meta["local-hostname"]; name != "" {
		if err := unix.Sethostname([]byte(name)); err != nil {
			con.fact("hostname", "error", err)
		} else {
			con.fact("", "hostname", name)
		}
	}
	for _, name := range files.names() {
		con.fact(name, digest(files[name])...)
	}
	return files["user-data"]
}
