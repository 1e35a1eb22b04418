#!/bin/sh
# essential.sh ROOT: before the kernel package is unpacked, so that its initramfs is quick to make (it is replaced later).
set -eu

mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/etc/modprobe.d"
printf 'MODULES=list\nCOMPRESS=gzip\nFSTYPE=ext4\n' >"$1/etc/initramfs-tools/conf.d/cloud"
printf 'virtio_pci\nvirtio_blk\n' >"$1/etc/initramfs-tools/modules"
# Emulated processors announce features whose drivers only cost time here.
printf 'blacklist kvm_amd\nblacklist kvm_intel\nblacklist powernow_k8\n' >"$1/etc/modprobe.d/cloud.conf"
