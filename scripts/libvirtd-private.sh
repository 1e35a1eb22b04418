#!/bin/bash
# A libvirtd of its own, for tests and demos: it sees private /run/libvirt,
# /var/lib/libvirt, /var/log/libvirt, /var/cache/libvirt and /etc/libvirt (bind
# mounts in a mount namespace), so it disturbs no other libvirtd on the machine
# and needs no systemd. Every other path is the machine's own. Needs root.
#
#   libvirtd-private.sh start DIR   start virtlogd and libvirtd; prints the URI
#   libvirtd-private.sh stop DIR    end its VMs and both daemons
#   libvirtd-private.sh restart DIR restart libvirtd alone; VMs live on
#   libvirtd-private.sh uri DIR     print the URI
#
# It runs in the network namespace of the caller (ip netns exec NAME …), which is
# where the taps of its VMs have to be. LIBVIRT_CGROUPS=1 lets it put VMs into
# cgroups, below "machine" as every libvirtd does; VM names must differ then.
#
# DIR must be short (a unix socket path has at most 107 bytes), owned by root
# and traversable by the user libvirt-qemu, who runs QEMU.
set -euo pipefail

die() { echo "libvirtd-private: $*" >&2; exit 1; }
[ $# -eq 2 ] || die "usage: $0 start|stop|restart|uri DIR"
verb=$1 dir=$(realpath -m "$2")
socket=$dir/run/libvirt-sock
uri="qemu:///system?socket=$socket"
seed=/var/cache/outcrop/libvirt-capabilities # probing QEMU takes 8 s; its answer is kept here

configure() {
	mkdir -p "$dir"/{run,lib,log,cache,etc}
	chmod 0711 "$dir" "$dir"/{run,lib,log,cache}
	cp -an /etc/libvirt/. "$dir/etc/"
	rm -f "$dir"/etc/qemu/networks/autostart/*
	install -d -m 0750 -o libvirt-qemu "$dir/lib/qemu"
	cp -a "$seed/." "$dir/cache/" 2>/dev/null || cp -a /var/cache/libvirt/. "$dir/cache/" 2>/dev/null || true
	# A /dev/kvm that is closed to QEMU's user, as in some containers, makes libvirt
	# probe QEMU anew before each start (13 s), so it is hidden by a mount; libvirt
	# cannot give a QEMU its own /dev over that.
	local namespaces='[ "mount" ]'
	if [ -e /dev/kvm ] && ! setpriv --reuid libvirt-qemu --regid kvm --init-groups test -w /dev/kvm; then
		install -m 0000 /dev/null "$dir/no-kvm"
		namespaces='[ ]'
	fi
	# The cgroup tree is shared with the machine's own libvirtd, so it is left
	# alone, and without AppArmor or SELinux there is no security driver to use.
	local cgroups='[ ]'
	[ -z "${LIBVIRT_CGROUPS:-}" ] || cgroups='[ "cpu", "cpuacct", "cpuset", "memory", "blkio", "devices" ]'
	cat >"$dir/etc/qemu.conf" <<-CONF
		cgroup_controllers = $cgroups
		namespaces = $namespaces
		security_driver = "none"
		stdio_handler = "logd"
	CONF
	cat >"$dir/etc/libvirtd.conf" <<-CONF
		host_uuid = "$(cat /proc/sys/kernel/random/uuid)"
		auth_unix_rw = "none"
		unix_sock_rw_perms = "0700"
		log_outputs = "2:file:/var/log/libvirt/libvirtd.log"
	CONF
}

# enter runs a command with the private directories in place.
enter() {
	mkdir -p /run/libvirt
	# shellcheck disable=SC2016 # the inner bash expands
	unshare --mount --propagation private bash -ec '
		dir=$1; shift
		mount --bind "$dir/run" /run/libvirt
		for d in lib log cache; do mount --bind "$dir/$d" "/var/$d/libvirt"; done
		mount --bind "$dir/etc" /etc/libvirt
		[ ! -e "$dir/no-kvm" ] || mount --bind "$dir/no-kvm" /dev/kvm
		exec "$@"' enter "$dir" "$@"
}

running() { [ -s "$dir/run/$1.pid" ] && kill -0 "$(cat "$dir/run/$1.pid")" 2>/dev/null; }

await() { # await SECONDS COMMAND...: until the command succeeds
	local n=$(($1 * 20))
	shift
	until "$@"; do
		[ $((n -= 1)) -gt 0 ] || return 1
		sleep 0.05
	done
}

answers() { [ -S "$socket" ] && virsh -q -c "$uri" version >/dev/null 2>&1; }

launch() { # launch DAEMON
	running "$1" || enter "$1" -d -p "/run/libvirt/$1.pid"
}

start() {
	for tool in virtlogd libvirtd virsh qemu-system-x86_64 unshare; do
		command -v $tool >/dev/null || die "$tool is missing: apt install libvirt-daemon-system libvirt-clients qemu-system-x86"
	done
	[ "$(id -u)" = 0 ] || die "needs root"
	[ ${#socket} -le 107 ] || die "$socket is too long for a unix socket: choose a shorter DIR"
	running libvirtd || configure
	mkdir -p /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
	launch virtlogd
	launch libvirtd
	await 60 answers || die "libvirtd does not answer; see $dir/log/libvirtd.log"
	if [ ! -d "$seed" ]; then
		virsh -q -c "$uri" domcapabilities >/dev/null
		install -d -m 0700 /var/cache/outcrop
		cp -a "$dir/cache" "$seed.$$"
		mv -T "$seed.$$" "$seed" 2>/dev/null || rm -rf "$seed.$$" # another one was quicker
	fi
	echo "$uri"
}

halt() { # halt DAEMON
	running "$1" || return 0
	local pid
	pid=$(cat "$dir/run/$1.pid")
	kill "$pid"
	await 20 eval "! kill -0 $pid 2>/dev/null" || kill -9 "$pid"
	rm -f "$dir/run/$1.pid"
}

stop() {
	if running libvirtd; then
		virsh -q -c "$uri" list --name | while read -r domain; do
			[ -z "$domain" ] || virsh -q -c "$uri" destroy "$domain" || true
		done
	fi
	halt libvirtd
	halt virtlogd
	rmdir /sys/fs/cgroup/machine /sys/fs/cgroup/*/machine 2>/dev/null || true # if they are empty
}

case $verb in
start) start ;;
stop) stop ;;
restart) halt libvirtd; launch libvirtd; await 60 answers || die "libvirtd does not answer" ;;
uri) echo "$uri" ;;
*) die "unknown verb $verb" ;;
esac
