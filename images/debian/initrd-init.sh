#!/bin/busybox sh
# shellcheck shell=dash
# /init of the initramfs: loads the disk's drivers, finds the root file system by its label, hands over.
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
for module in $($b cat /modules/order); do $b insmod "/modules/$module"; done

tries=0
until root=$($b findfs LABEL=cloudimg-root 2>/dev/null); do
	tries=$((tries + 1))
	if [ $tries = 200 ]; then
		echo "initramfs: no file system is labelled cloudimg-root; is the root volume a virtio disk?"
		exec $b sh
	fi
	$b usleep 50000
done
$b mount -t ext4 -o rw "$root" /root || exec $b sh
for dir in dev proc sys; do $b mount --move /$dir /root/$dir; done
exec $b switch_root /root /lib/systemd/systemd
