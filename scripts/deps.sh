#!/bin/bash
# deps.sh demo|test: installs the Debian packages and the Go that the demo, or the
# whole test suite, needs. It says nothing when nothing is missing, and needs root
# when something is.
set -euo pipefail
shopt -s inherit_errexit

root=$(dirname "$(dirname "$(realpath "$0")")")
export PATH=/usr/local/go/bin:$PATH
# shellcheck source=../images/lib.sh
. "$root/images/lib.sh"

log() { printf 'deps: %s\n' "$*" >&2; }
die() {
	log "error: $*"
	exit 1
}

# quietly COMMAND...: what it prints is shown only when it fails.
quietly() {
	local out
	out=$("$@" 2>&1 </dev/null) || {
		printf '%s\n' "$out" >&2
		die "this failed: $*"
	}
}

# install PACKAGE...: installs those that are missing.
install() {
	local package missing=()
	for package in "$@"; do
		installed "$package" || missing+=("$package")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	[ "$(id -u)" = 0 ] || die "missing packages: ${missing[*]}; run this as root, or install them"
	log "installing ${missing[*]}"
	quietly apt-get update -qq
	DEBIAN_FRONTEND=noninteractive quietly apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

DEMO=(
	ca-certificates curl git iproute2 nftables util-linux
	qemu-system-x86 qemu-utils libvirt-daemon libvirt-daemon-system libvirt-clients
	busybox-static cpio gzip kmod dosfstools mtools syslinux                # the micro image
	mmdebstrap fdisk e2fsprogs grub-common grub-pc-bin                      # the debian image
)
TEST=(
	gcc libc6-dev                                                           # go test -race
	genisoimage xorriso libarchive-tools                                    # others that read our ISO images
	postgresql openssl shellcheck make
)

# go_version is the Go release that go.mod asks for, like 1.26.0.
go_version() { sed -n 's/^go //p' "$root/go.mod"; }

go_suffices() {
	local have
	have=$(cd "$root" && go env GOVERSION 2>/dev/null) || return 1
	printf '%s\n' "$(go_version)" "${have#go}" | sort -VC
}

# install_go unpacks Go into /usr/local/go. Each release is a module, which
# Debian's old Go can fetch and check, and then is made executable.
install_go() {
	local module version cache
	[ ! -e /usr/local/go ] || die "the Go in /usr/local/go is older than $(go_version): remove it, or install a newer one"
	[ "$(id -u)" = 0 ] || die "Go $(go_version) or newer is missing: see https://go.dev/dl/"
	command -v go >/dev/null || install golang-go
	module=golang.org/toolchain version=v0.0.1-go$(go_version).$(go env GOOS)-$(go env GOARCH)
	log "installing Go $(go_version)"
	cache=$(mktemp -d /usr/local/go.XXXXXX)
	(cd "$cache" && quietly go mod init toolchain && GOMODCACHE=$cache quietly go mod download $module@"$version")
	chmod -R u+w "$cache"
	chmod -R a+rX "$cache/$module@$version"
	find "$cache/$module@$version"/{bin,pkg/tool} -type f -exec chmod 0755 {} +
	mv "$cache/$module@$version" /usr/local/go
	rm -rf "$cache"
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

install "${packages[@]}"
go_suffices || install_go
