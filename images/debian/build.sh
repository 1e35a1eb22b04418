#!/bin/bash
# build.sh [--agent FILE] OUT.qcow2: a Debian 12 cloud image with cloud-init, from the packages of the machine's own apt sources.
# The disk is put together in files (mke2fs -d, a GRUB core image in the MBR gap): no loop device, no mount.
set -euo pipefail
shopt -s inherit_errexit

here=$(dirname "$(realpath "$0")")
# shellcheck source=../lib.sh
. "$here/../lib.sh"

SUITE=bookworm
MIB=1536 # of the disk; growpart and resizefs fill a larger volume at the first boot
LABEL=cloudimg-root
PACKAGES=(
	linux-image-cloud-amd64 systemd-sysv udev dbus kmod procps
	cloud-init cloud-guest-utils openssh-server sudo qemu-guest-agent
	ifupdown isc-dhcp-client iproute2 iputils-ping netbase ca-certificates curl
	e2fsprogs fdisk
)
# From quiet on: boot time under emulation, in a guest that runs its owner's code only.
CMDLINE="root=LABEL=$LABEL rw console=tty0 console=ttyS0,115200 quiet mitigations=off init_on_alloc=0 nokaslr no_timer_check tsc=reliable random.trust_cpu=on audit=0 apparmor=0 selinux=0 systemd.show_status=0"

# apt_sources: the machine's own Debian sources, as one-line entries.
apt_sources() {
	apt-get indextargets --format "\$(ORIGIN) \$(REPO_URI) \$(RELEASE) \$(COMPONENT)" 'Created-By: Packages' |
		awk -v suite="$SUITE" '$1 == "Debian" && $4 == "main" && index($3, suite) == 1 && !seen[$0]++ { print "deb", $2, $3, $4 }'
}

# apt_options: what the machine's apt needs to reach its sources: proxies, certificates, dates.
apt_options() {
	apt-config dump --no-empty --format '%F "%v";%n' |
		grep -E '^Acquire::(http|https|ftp|Check-|Max-|Retries|ForceIPv)' || true
}

# bootstrap DIR: the root file system. It is cut to what a server needs before customize.sh tunes it.
bootstrap() {
	apt_sources >"$work/debian.list"
	grep -q " $SUITE main" "$work/debian.list" || die "this machine's apt sources hold no Debian $SUITE main; add them and run apt-get update"
	apt_options >"$work/apt.conf"
	local include path excludes=()
	include=$(IFS=,; echo "${PACKAGES[*]}")
	for path in man doc locale info; do
		excludes+=(--dpkgopt="path-exclude=/usr/share/$path/*")
	done
	mmdebstrap --quiet --mode=root --variant=minbase --format=directory \
		--aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' --aptopt="$work/apt.conf" \
		"${excludes[@]}" \
		--essential-hook="$here/essential.sh \"\$1\"" --customize-hook="$here/customize.sh \"\$1\"" \
		--include="$include" "$SUITE" "$1" "$work/debian.list" >&2
}

# small_initrd ROOT: replaces initramfs-tools' 13 MB by busybox and two modules; ext4 is built in. It halves the boot.
small_initrd() {
	local root=$1 dir=$work/initrd file
	mkdir -p "$dir"/{bin,dev,proc,sys,root,modules}
	cp "$busybox" "$dir/bin/busybox"
	install -m 755 "$here/initrd-init.sh" "$dir/init"
	depmod -b "$root" "$kernel"
	module_files "$root" "$kernel" virtio_pci virtio_blk >"$work/modules"
	[ -s "$work/modules" ] || die "no kernel modules found for $kernel"
	while read -r file; do
		cp "$file" "$dir/modules/"
		basename "$file"
	done <"$work/modules" >"$dir/modules/order"
	pack_initrd "$dir" "$root/boot/initrd.img-$kernel"
}

# add_agent ROOT: the guest agent, dormant. The timer starts it again and again; it ends at once while it is not enabled.
add_agent() {
	install -m 755 "$agent" "$1/usr/sbin/outcrop-guest"
	install -m 644 "$here"/outcrop-guest.{service,timer} "$1/etc/systemd/system/"
	mkdir -p "$1/etc/systemd/system/timers.target.wants"
	ln -s ../outcrop-guest.timer "$1/etc/systemd/system/timers.target.wants/outcrop-guest.timer"
}

grub_config() {
	cat <<-GRUB
		set timeout=0
		linux /boot/vmlinuz-$kernel $CMDLINE
		initrd /boot/initrd.img-$kernel
		boot
	GRUB
}

# make_disk ROOT FILE: an MBR disk with one ext4 partition at 1 MiB and GRUB in the gap before it.
make_disk() {
	local root=$1 disk=$2
	truncate -s "${MIB}M" "$disk"
	printf 'label: dos\nstart=2048, size=%d, type=83, bootable\n' $((MIB * 2048 - 2048)) | sfdisk -q "$disk"
	mke2fs -q -F -t ext4 -L "$LABEL" -m 1 -E offset=1048576,lazy_itable_init=0,root_owner=0:0 -d "$root" "$disk" $(((MIB - 1) * 1024))k
	echo 'configfile (hd0,msdos1)/boot/grub/grub.cfg' >"$work/early.cfg"
	grub-mkimage -O i386-pc -c "$work/early.cfg" -p '(hd0,msdos1)/boot/grub' -o "$work/core.img" \
		biosdisk part_msdos ext2 normal configfile linux boot
	dd if=/usr/lib/grub/i386-pc/boot.img of="$disk" bs=440 count=1 conv=notrunc status=none # up to the partition table
	dd if="$work/core.img" of="$disk" bs=512 seek=1 conv=notrunc status=none
}

agent=
if [ "${1:-}" = --agent ]; then
	agent=${2:?--agent needs a file}
	[ -r "$agent" ] || die "cannot read the agent $agent"
	shift 2
fi
[ $# = 1 ] || die "usage: build.sh [--agent FILE] OUT.qcow2"
out=$1
[ "$(id -u)" = 0 ] || die "the debian image needs root: its files belong to many users"
PATH=$PATH:/usr/sbin:/sbin
need apt-get mmdebstrap cpio gzip modprobe depmod sfdisk mke2fs grub-mkimage qemu-img

work=$(mktemp -d)
chmod 755 "$work" # apt's own user reads below it
trap 'rm -rf "$work"' EXIT
mkdir "$work/packages"
busybox=$(busybox_file "$work/packages")
log "debian: installing $SUITE"
bootstrap "$work/root"
kernel=$(basename "$work"/root/boot/vmlinuz-*)
kernel=${kernel#vmlinuz-}
log "debian: kernel $kernel"
[ -z "$agent" ] || add_agent "$work/root"
small_initrd "$work/root"
mkdir -p "$work/root/boot/grub"
grub_config >"$work/root/boot/grub/grub.cfg"
make_disk "$work/root" "$work/disk"
qemu-img convert -O qcow2 -c -o compression_type=zstd "$work/disk" "$out"
log "debian: $(($(stat -c %s "$out") / 1048576)) MiB"
