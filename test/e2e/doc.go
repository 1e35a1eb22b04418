// Package e2e tries the whole system on real parts: processes of the built
// binary, libvirtd, QEMU, guests that boot and say on their serial console what
// they got. Nothing on the path is faked.
//
// It needs root, libvirt with QEMU and what images/build.sh needs; without, it is
// skipped, or fails where OUTCROP_REQUIRE_REAL is set. Guests are emulated, so
// that it takes the same way on every machine. Everything it starts ends with it.
package e2e
