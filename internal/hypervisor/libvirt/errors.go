package libvirt

import (
	"errors"
	"fmt"
	"strings"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/outcrop-cloud/outcrop/internal/hypervisor"
)

// code returns libvirt's error number, or -1 when err is not libvirt's.
func code(err error) golibvirt.ErrorNumber {
	var e golibvirt.Error
	if errors.As(err, &e) {
		return golibvirt.ErrorNumber(e.Code)
	}
	return -1
}

// classify turns an error of a call into one that callers act on. An error that
// libvirt did not send comes from the connection.
func classify(err error, dead bool) error {
	for _, kind := range []error{hypervisor.ErrNotFound, hypervisor.ErrRefused, hypervisor.ErrUnavailable} {
		if errors.Is(err, kind) {
			return err
		}
	}
	var e golibvirt.Error
	if !errors.As(err, &e) {
		if dead || errors.Is(err, golibvirt.ErrInterrupted) {
			return fmt.Errorf("%w: the connection to libvirtd ended: %w", hypervisor.ErrUnavailable, err)
		}
		return err
	}
	switch golibvirt.ErrorNumber(e.Code) {
	case golibvirt.ErrNoDomain:
		return fmt.Errorf("%w: %w", hypervisor.ErrNotFound, err)
	case golibvirt.ErrXMLError, golibvirt.ErrXMLDetail, golibvirt.ErrXMLInvalidSchema,
		golibvirt.ErrConfigUnsupported, golibvirt.ErrInvalidArg:
		return fmt.Errorf("%w: %w", hypervisor.ErrRefused, err)
	}
	if strings.Contains(e.Message, "virtlogd") {
		return fmt.Errorf("%w (the serial console needs virtlogd: start virtlogd.socket, or run virtlogd -d)", err)
	}
	return err
}
