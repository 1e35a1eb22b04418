# shellcheck shell=bash
# What the image builds share. Sourced, never run.

KERNEL_META=linux-image-cloud-amd64

log() { printf 'images: %s\n' "$*" >&2; }

die() {
	printf 'images: error: %s\n' "$*" >&2
	exit 1
}

# need COMMAND...: stops when one is missing.
need() {
	local command
	for command in "$@"; do
		command -v "$command" >/dev/null || die "$command is missing; run images/build.sh --deps micro (or debian) as root, or install it"
	done
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# install_packages PACKAGE...: installs those that are not there yet.
install_packages() {
	local package missing=()
	for package in "$@"; do
		installed "$package" || missing+=("$package")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	[ "$(id -u)" = 0 ] || die "missing packages: ${missing[*]}; run as root, or install them"
	log "installing ${missing[*]}"
	refresh_lists
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# refresh_lists: a fresh machine has no package lists.
refresh_lists() {
	apt-cache show "$KERNEL_META" >/dev/null 2>&1 || apt-get update -qq >&2
}

# kernel_package: the package behind the newest cloud kernel that this machine's apt knows.
kernel_package() {
	local package
	package=$(apt-cache depends "$KERNEL_META" 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
	[ -n "$package" ] || die "apt does not know $KERNEL_META; run apt-get update"
	echo "$package"
}

# kernel_version: the kernel package's name and version, for cache keys.
kernel_version() {
	local package
	package=$(kernel_package)
	echo "$package $(apt-cache policy "$package" | sed -n 's/ *Candidate: //p')"
}

# fetch_package PACKAGE DIR: unpacks the package below DIR, installing nothing.
fetch_package() {
	local package=$1 dir=$2 download
	log "downloading $package"
	download=$(mktemp -d "$dir/download.XXXXXX")
	(cd "$download" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2) ||
		die "apt-get download $package failed; run apt-get update and look at the machine's apt sources"
	dpkg-deb -x "$download"/*.deb "$dir"
	rm -rf "$download"
}

# busybox_file DIR: a static busybox, the machine's own or a downloaded one.
busybox_file() {
	if installed busybox-static; then
		echo /bin/busybox
		return
	fi
	fetch_package busybox-static "$1"
	echo "$1/bin/busybox"
}

# module_files BASE KERNEL MODULE...: the modules' files below BASE, each after what it depends on, each once.
module_files() {
	local base=$1 kernel=$2 module
	shift 2
	# One call a module: with several, modprobe prints what they share several times. A module that is built in prints none.
	for module in "$@"; do
		modprobe -d "$base" -S "$kernel" -D "$module"
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# pack_initrd DIR FILE: DIR as a compressed initramfs, owned by root whoever builds it.
pack_initrd() {
	(cd "$1" && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet | gzip -9 -n) >"$2"
}
