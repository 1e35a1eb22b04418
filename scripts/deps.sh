#!/bin/bash
# deps.sh demo|test: installs the Debian packages that the demo, or the whole
# test suite, needs. It says nothing when none is missing. It needs root then.
set -euo pipefail
shopt -s inherit_errexit

root=$(dirname "$(dirname "$(realpath "$0")")")
# shellcheck source=../images/lib.sh
. "$root/images/lib.sh"

log() { printf 'deps: %s\n' "$*" >&2; }
die() {
	log "error: $*"
	exit 1
}

DEMO=(
	ca-certificates curl git iproute2 util-linux
	qemu-system-x86 qemu-utils libvirt-daemon libvirt-daemon-system libvirt-clients
	busybox-static cpio gzip kmod dosfstools mtools syslinux                # the micro image
	mmdebstrap fdisk e2fsprogs grub-common grub-pc-bin                      # the debian image
)
TEST=(
	gcc libc6-dev                                                           # go test -race
	genisoimage xorriso libarchive-tools                                    # others that read our ISO images
	nftables postgresql openssl shellcheck
)

# go_version is the Go release that go.mod asks for, like 1.26.0.
go_version() { sed -n 's/^go //p' "$root/go.mod"; }

# go_suffices: a go from 1.21 on fetches the release that go.mod asks for.
go_suffices() {
	local have
	have=$(go env GOVERSION 2>/dev/null) || return 1
	printf '1.21\n%s\n' "${have#go}" | sort -VC
}

case "${1:-}" in
demo) packages=("${DEMO[@]}") ;;
test)
	packages=("${DEMO[@]}" "${TEST[@]}")
	# By command: the packages of these two differ between Debian and others.
	command -v node >/dev/null || packages+=(nodejs)
	command -v npm >/dev/null || packages+=(npm)
	;;
*) die "usage: deps.sh demo|test" ;;
esac

install_packages "${packages[@]}"
go_suffices || die "Go $(go_version) or newer is missing, and Debian 12 has no such package: unpack it from https://go.dev/dl/ to /usr/local/go"
