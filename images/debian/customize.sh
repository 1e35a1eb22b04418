#!/bin/sh
# customize.sh ROOT: makes the installed packages an image: no trace of the machine that built it, and no boot-time
# work that a guest of one owner does not need.
set -eu
root=$1
here=$(dirname "$(realpath "$0")")

echo 'LABEL=cloudimg-root / ext4 defaults 0 0' >"$root/etc/fstab"
install -m 644 "$here/cloud.cfg" "$root/etc/cloud/cloud.cfg.d/90_outcrop.cfg"
mkdir -p "$root/etc/selinux"
echo 'SELINUX=disabled' >"$root/etc/selinux/config" # or systemd complains of a missing policy

# The bootstrap leaves the builder's name, resolver and apt settings behind; each instance makes its own identity.
: >"$root/etc/machine-id"
rm -f "$root/etc/resolv.conf" "$root/etc/hostname" "$root"/etc/ssh/ssh_host_*
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap"
mv "$root"/etc/apt/sources.list.d/*debian.list "$root/etc/apt/sources.list"

for unit in \
	apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
	systemd-pstore.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount sys-fs-fuse-connections.mount \
	sys-kernel-debug.mount sys-kernel-tracing.mount dev-hugepages.mount systemd-update-utmp.service \
	systemd-update-utmp-runlevel.service getty@tty1.service grub-common.service ldconfig.service \
	systemd-hwdb-update.service systemd-journal-catalog-update.service systemd-update-done.service cryptsetup.target \
	veritysetup.target integritysetup.target systemd-ask-password-console.path systemd-ask-password-wall.path; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
touch "$root/etc/.updated" "$root/var/.updated" # what the masked update units would note
