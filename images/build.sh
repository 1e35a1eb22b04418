#!/bin/bash
# build.sh [--deps] micro|debian [--agent FILE]: builds a guest image unless the cache has it, and prints its path.
# The cache key covers the recipe, the kernel package and the agent, so the path names the content and may be relied
# upon: a cached image never changes. The cache is images/cache, or $OUTCROP_IMAGE_CACHE.
set -euo pipefail
shopt -s inherit_errexit

here=$(dirname "$(realpath "$0")")
# shellcheck source=lib.sh
. "$here/lib.sh"

usage() { die "usage: build.sh [--deps] micro|debian [--agent FILE]"; }

packages() {
	case $1 in
	micro) echo busybox-static cpio gzip kmod dosfstools mtools syslinux qemu-utils ;;
	debian) echo busybox-static cpio gzip kmod mmdebstrap fdisk e2fsprogs grub-common grub-pc-bin qemu-utils ;;
	esac
}

# cache_key KIND AGENT: changes with everything that the image is made of.
cache_key() {
	{
		(cd "$here" && find lib.sh "$1" -type f ! -name '*_test.go' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
		kernel_version
		[ "$1" != micro ] || go env GOVERSION
		[ -z "$2" ] || sha256sum <"$2"
	} | sha256sum | cut -c 1-16
}

deps=false
if [ "${1:-}" = --deps ]; then
	deps=true
	shift
fi
kind=${1:-}
agent=
case "$#:$kind:${2:-}" in
1:micro: | 1:debian:) ;;
3:micro:--agent | 3:debian:--agent) agent=$(realpath -e "$3") || die "cannot read the agent $3" ;;
*) usage ;;
esac

if $deps; then
	# shellcheck disable=SC2046 # a list
	install_packages $(packages "$kind")
fi
[ "$kind" != micro ] || need go
refresh_lists

cache=${OUTCROP_IMAGE_CACHE:-$here/cache}
mkdir -p "$cache"
cache=$(realpath "$cache")
image=$cache/$kind-$(cache_key "$kind" "$agent").qcow2

exec 9>"$cache/$kind.lock"
flock 9 # one build of a kind at a time; who waited finds the image made
if [ ! -e "$image" ]; then
	part=$image.part
	trap 'rm -f "$part"' EXIT
	"$here/$kind/build.sh" ${agent:+--agent "$agent"} "$part" >&2 9>&-
	mv "$part" "$image"
fi
echo "$image"
