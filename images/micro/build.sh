#!/bin/bash
# build.sh [--agent FILE] OUT.qcow2: the micro guest image, a FAT16 disk that SYSLINUX boots: the Debian cloud
# kernel and an initramfs with init/ as PID 1 and busybox. It needs no loop device, no mount and no root.
set -euo pipefail
shopt -s inherit_errexit

here=$(dirname "$(realpath "$0")")
# shellcheck source=../lib.sh
. "$here/../lib.sh"

# balloon: memory statistics for the hypervisor. isofs, nls_utf8: cidata. evdev before button: see init/power.go.
MODULES=(virtio_pci virtio_blk virtio_net virtio_rng virtio_balloon isofs nls_utf8 evdev button)
# reboot=t: the quickest reset under emulation. The rest saves boot time in a guest that runs its owner's code only.
CMDLINE='console=ttyS0 reboot=t panic=10 quiet mitigations=off init_on_alloc=0 nokaslr no_timer_check tsc=reliable random.trust_cpu=on audit=0 apparmor=0'

build_init() {
	(cd "$here/init" && CGO_ENABLED=0 GOOS=linux GOARCH=amd64 \
		go build -trimpath -buildvcs=false -tags nethttpomithttp2 -ldflags='-s -w' -o "$1" .)
}

# kernel_base DIR: where the kernel's files are: / when this machine has the package, else DIR after a download.
kernel_base() {
	if installed "$package" && [ -r "/boot/vmlinuz-$kernel" ] && [ -d "/lib/modules/$kernel" ]; then
		echo /
		return
	fi
	fetch_package "$package" "$1"
	depmod -b "$1" "$kernel"
	echo "$1"
}

# fill_initrd DIR: the tree that the guest's memory holds.
fill_initrd() {
	local root=$1 file applet
	mkdir -p "$root"/{bin,sbin,dev,proc,sys,run,tmp,etc,root,mnt,lib/modules}
	build_init "$root/init"
	cp "$busybox" "$root/bin/busybox"
	"$busybox" --list | while read -r applet; do
		[ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
	done
	install -m 755 "$here/udhcpc.sh" "$root/etc/udhcpc.sh"
	module_files "$base" "$kernel" "${MODULES[@]}" >"$work/modules"
	[ -s "$work/modules" ] || die "no kernel modules found for $kernel"
	while read -r file; do
		cp "$file" "$root/lib/modules/"
		basename "$file"
	done <"$work/modules" >"$root/lib/modules/order"
	[ -z "$agent" ] || install -m 755 "$agent" "$root/bin/outcrop-guest"
}

# make_disk FILE: the raw disk around the kernel and the initramfs.
make_disk() {
	local vmlinuz="$base/boot/vmlinuz-$kernel" bytes mib
	bytes=$(($(stat -Lc %s "$vmlinuz") + $(stat -c %s "$work/initrd")))
	mib=$((bytes / 1048576 + 8))
	[ "$mib" -ge 32 ] || mib=32 # mkfs.vfat warns of a FAT16 below
	truncate -s "${mib}M" "$1"
	mkfs.vfat -F 16 -n MICRO "$1" >/dev/null # init/machine.go knows the root disk by this label
	printf 'DEFAULT micro\nPROMPT 0\nTIMEOUT 0\nLABEL micro\n KERNEL /vmlinuz\n INITRD /initrd\n APPEND %s\n' "$CMDLINE" >"$work/syslinux.cfg"
	mcopy -i "$1" "$vmlinuz" ::/vmlinuz
	mcopy -i "$1" "$work/initrd" ::/initrd
	mcopy -i "$1" "$work/syslinux.cfg" ::/syslinux.cfg
	syslinux --install "$1"
}

agent=
if [ "${1:-}" = --agent ]; then
	agent=${2:?--agent needs a file}
	[ -r "$agent" ] || die "cannot read the agent $agent"
	shift 2
fi
[ $# = 1 ] || die "usage: build.sh [--agent FILE] OUT.qcow2"
out=$1
PATH=$PATH:/usr/sbin:/sbin
need go apt-get dpkg-deb cpio gzip modprobe depmod mkfs.vfat mcopy syslinux qemu-img

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$(kernel_package)
kernel=${package#linux-image-}
mkdir "$work/packages"
base=$(kernel_base "$work/packages")
busybox=$(busybox_file "$work/packages")
log "micro: kernel $kernel"
fill_initrd "$work/root"
pack_initrd "$work/root" "$work/initrd"
make_disk "$work/disk"
qemu-img convert -O qcow2 -c "$work/disk" "$out"
log "micro: $(($(stat -c %s "$out") / 1048576)) MiB"
