#!/bin/sh
# What busybox udhcpc runs at each DHCP event, with the lease in its environment.
# shellcheck disable=SC2154 # the variables are udhcpc's
# The line "lease ..." on standard output tells init that the address is set.

case $1 in
deconfig)
	ip -4 addr flush dev "$interface"
	ip link set dev "$interface" up
	;;
bound | renew)
	[ -z "$mtu" ] || ip link set dev "$interface" mtu "$mtu"
	ip addr replace "$ip/${mask:-24}" dev "$interface"
	gateway=${router%% *}
	if [ -n "$staticroutes" ]; then # RFC 3442: when present, the router option is to be ignored
		gateway=
		# shellcheck disable=SC2086 # a list of pairs
		set -- $staticroutes
		while [ $# -ge 2 ]; do
			if [ "$2" = 0.0.0.0 ]; then
				ip route replace "$1" dev "$interface"
			else
				ip route replace "$1" via "$2" dev "$interface"
				[ "$1" != 0.0.0.0/0 ] || gateway=$2
			fi
			shift 2
		done
	elif [ -n "$gateway" ]; then
		ip route replace default via "$gateway" dev "$interface"
	fi
	for server in $dns; do echo "nameserver $server"; done >/etc/resolv.conf
	echo "lease address=$ip/${mask:-24} router=${gateway:-none}"
	;;
esac
