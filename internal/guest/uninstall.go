package guest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// What the install script makes.
const (
	installedUnit    = "/etc/systemd/system/outcrop-guest.service"
	installedProgram = "/usr/local/sbin/outcrop-guest"
)

// uninstall undoes the install script. The program removes itself while it runs,
// which Linux allows.
func uninstall(stateDir string) error {
	var errs []error
	_, err := os.Stat(installedUnit)
	systemd := err == nil
	if systemd {
		errs = append(errs, systemctl("disable", "outcrop-guest.service"))
	}
	for _, path := range []string{installedUnit, installedProgram, stateDir} {
		errs = append(errs, os.RemoveAll(path))
	}
	if systemd {
		errs = append(errs, systemctl("daemon-reload"))
	}
	return errors.Join(errs...)
}

func systemctl(args ...string) error {
	if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
