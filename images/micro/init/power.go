package main

import (
	"encoding/binary"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// grace is how long programs may take to end before the machine goes down.
const grace = 2 * time.Second

// watchPower turns the power button, ctrl-alt-del and the signals of busybox's poweroff, halt and reboot into
// an orderly end of the machine.
func watchPower(con *console) {
	button := make(chan struct{}, 1)
	paths, _ := filepath.Glob("/dev/input/event*") // complete: loading the button module waits for its probes
	for _, path := range paths {
		go watchButton(path, button)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) // ctrl-alt-del becomes SIGINT instead of a reset
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	select {
	case <-button:
		shutdown(con, "power off", unix.LINUX_REBOOT_CMD_POWER_OFF)
	case s := <-signals:
		if s == syscall.SIGINT || s == syscall.SIGTERM {
			shutdown(con, "reboot", unix.LINUX_REBOOT_CMD_RESTART)
		}
		shutdown(con, "power off", unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
}

func watchButton(path string, pressed chan<- struct{}) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	var event [inputEventSize]byte
	for {
		if _, err := io.ReadFull(f, event[:]); err != nil {
			return
		}
		if isPowerPress(event[:]) {
			select {
			case pressed <- struct{}{}:
			default:
			}
		}
	}
}

// struct input_event of a 64-bit kernel: 16 bytes of time, type, code, value (linux/input.h).
const (
	inputEventSize = 24
	evKey          = 1
	keyPower       = 116
)

func isPowerPress(event []byte) bool {
	return binary.LittleEndian.Uint16(event[16:]) == evKey &&
		binary.LittleEndian.Uint16(event[18:]) == keyPower &&
		binary.LittleEndian.Uint32(event[20:]) == 1
}

// shutdown asks everything to end, writes the disks out and leaves the machine.
func shutdown(con *console, what string, how int) {
	con.fact(what, "uptime", uptime())
	_ = unix.Kill(-1, unix.SIGTERM)
	_ = unix.Kill(-1, unix.SIGHUP) // an interactive shell ignores SIGTERM
	for end := time.Now().Add(grace); time.Now().Before(end) && alive(); {
		time.Sleep(20 * time.Millisecond)
	}
	_ = unix.Kill(-1, unix.SIGKILL)
	unix.Sync()
	err := unix.Reboot(how)
	con.fact(what, "error", err)
	select {} // what is left for PID 1; the hypervisor's force-stop ends it
}

// alive says whether PID 1 has children left, of any of its threads. Kernel threads belong to PID 2.
func alive() bool {
	lists, _ := filepath.Glob("/proc/1/task/*/children")
	for _, list := range lists {
		if children, err := os.ReadFile(list); err == nil && strings.TrimSpace(string(children)) != "" {
			return true
		}
	}
	return false
}
