#!/bin/bash
# demo.sh [micro|debian]: the whole way on real parts, on this machine, as root.
#
# A server and a node start in a folder of their own, an instance boots with
# user-data, is stopped, gets other user-data, and its next boot has that. What
# the guest got is what its own serial console says. Afterwards nothing is left,
# which is looked at, not assumed. It ends with "DEMO OK" and 0; otherwise it
# says where it stopped and shows the ends of the logs. OUTCROP_DEMO_KEEP=1 keeps
# the folder after a failure.
#
# It uses the libvirtd of this machine where one runs. Where none does, or where
# another Outcrop node has networks that must not be touched, everything happens
# in a network namespace with a libvirtd of its own.
set -Eeuo pipefail
shopt -s inherit_errexit

root=$(dirname "$(dirname "$(realpath "$0")")")
cd "$root"
image=${1:-micro}
case $image in
micro) shape=(--vcpus 1 --memory 128MiB) boot_limit=120 ;;
debian) shape=(--vcpus 2 --memory 1GiB) boot_limit=400 ;;
*)
	echo "usage: demo.sh [micro|debian]" >&2
	exit 2
	;;
esac

wait=(--wait --wait-timeout 180s)

# ---- what a person sees -------------------------------------------------------

begun=$(date +%s%3N) step='' step_begun=''

# since MILLISECONDS: the seconds from then to now, like 3.1.
since() {
	local ms=$(($(date +%s%3N) - $1))
	printf '%d.%d' $((ms / 1000)) $((ms % 1000 / 100))
}

close_step() {
	[ -z "$step" ] || printf '    (%s s)\n' "$(since "$step_begun")"
	step=''
}

step() {
	close_step
	step=$* step_begun=$(date +%s%3N)
	printf '==> %s\n' "$step"
}

say() { printf '    %s\n' "$*"; }
# shellcheck disable=SC1003 # $a\ ends the last line
show() { sed 's/\r$//; s/^/    | /; $a\'; } # what another program printed
die() {
	problem=$*
	exit 1
}

# await SECONDS WHAT COMMAND...: until the command succeeds.
await() {
	local seconds=$1 what=$2 end=$((SECONDS + $1))
	shift 2
	until "$@"; do
		((SECONDS < end)) || die "$what did not happen within $seconds s"
		alive
		sleep 0.2
	done
}

# ---- the end, whatever came before --------------------------------------------

work='' problem='' server_pid='' node_pid='' uri='' private='' instance='' netns='' forward=''
watched=() devices=() # pids and network devices that must be gone at the end

inside=() # what puts a command into the network namespace
outcrop() { "${inside[@]}" bin/outcrop "$@"; }

running() { [ -n "$1" ] && kill -0 "$1" 2>/dev/null; }

# alive fails where a process has ended that should be there.
alive() {
	[ -z "$server_pid" ] || running "$server_pid" || die "the server has ended"
	[ -z "$node_pid" ] || running "$node_pid" || die "the node agent has ended"
}

# end_process PID: asks, waits, insists.
end_process() {
	running "$1" || return 0
	kill "$1" 2>/dev/null || true
	for _ in $(seq 100); do
		running "$1" || return 0
		sleep 0.1
	done
	kill -9 "$1" 2>/dev/null || true
}

# domains are the VMs that the node of this demo made, by the folder of their disks.
domains() {
	local name
	for name in $(virsh -q -c "$uri" list --all --name); do
		! virsh -q -c "$uri" domblklist "$name" 2>/dev/null | grep -qF "$work/" || echo "$name"
	done
}

# routers is where the node keeps its routers: see internal/cli/agent.go.
routers() { echo "/run/outcrop/$(printf %s "$work/node" | sha256sum | cut -c 1-8)"; }

remove_routers() {
	local dir router
	dir=$(routers)
	for router in "$dir"/routers/*; do
		[ ! -e "$router" ] || umount -l "$router" || true
	done
	rm -rf "$dir"
	rmdir /run/outcrop 2>/dev/null || true
}

# remove_rules undoes what a node leaves in the machine's own network namespace.
remove_rules() {
	local family
	for family in bridge inet; do
		nft delete table "$family" outcrop 2>/dev/null || true
	done
	echo "$forward" >/proc/sys/net/ipv4/ip_forward
}

stop_all() {
	local name device
	[ -z "$node_pid" ] || end_process "$node_pid"
	[ -z "$server_pid" ] || end_process "$server_pid"
	node_pid='' server_pid=''
	if [ -n "$uri" ]; then
		for name in $(domains); do
			virsh -q -c "$uri" destroy "$name" >/dev/null 2>&1 || true
			virsh -q -c "$uri" undefine "$name" >/dev/null 2>&1 || true
		done
	fi
	for device in "${devices[@]}"; do
		"${inside[@]}" ip link delete "$device" 2>/dev/null || true
	done
	[ -z "$work" ] || remove_routers
	[ -z "$forward" ] || remove_rules
	[ -z "$private" ] || scripts/libvirtd-private.sh stop "$private" || true
	[ -z "$netns" ] || ip netns delete "$netns" || true
	uri='' private='' netns='' forward='' inside=()
}

tails() {
	local log
	for log in node server libvirt/log/libvirtd; do
		[ -s "$work/$log.log" ] || continue
		echo "--- the end of $log.log"
		tail -n 25 "$work/$log.log"
	done
	for log in "$work"/node/instances/*/console.log; do
		[ -s "$log" ] || continue
		echo "--- the end of the guest's console"
		tail -n 25 "$log" | tr -d '\r'
	done
}

finish() {
	local status=$?
	trap '' INT TERM HUP ERR
	trap - EXIT
	set +e
	if [ $status -ne 0 ]; then
		{
			echo
			echo "DEMO FAILED after $(since "$begun") s, in the step: ${step:-start}"
			echo "    ${problem:-see above}"
			[ -z "$work" ] || tails
		} >&2
	fi
	stop_all
	if [ $status -ne 0 ] && [ -n "${OUTCROP_DEMO_KEEP:-}" ]; then
		echo "kept: $work" >&2
	elif [ -n "$work" ]; then
		rm -rf "$work"
	fi
	exit $status
}
trap finish EXIT
trap 'problem="interrupted"; exit 130' INT TERM HUP
trap 'problem=${problem:-"${BASH_SOURCE[0]##*/}:$LINENO: $BASH_COMMAND"}' ERR

# ---- the parts ----------------------------------------------------------------

start_libvirtd() {
	if ! compgen -G '/sys/class/net/oc[tbrx]*' >/dev/null && timeout 10 virsh -q -c qemu:///system version >/dev/null 2>&1; then
		uri=qemu:///system forward=$(cat /proc/sys/net/ipv4/ip_forward)
		say "this machine's own: $uri"
		return
	fi
	netns=${work##*/}
	ip netns add "$netns"
	ip -n "$netns" link set lo up
	inside=(nsenter "--net=/run/netns/$netns")
	private=$work/libvirt
	uri=$("${inside[@]}" scripts/libvirtd-private.sh start "$private")
	watched+=("$(cat "$private/run/libvirtd.pid")" "$(cat "$private/run/virtlogd.pid")")
	say "one of its own, in the network namespace $netns: $uri"
}

# start_server lets the system choose a port, so that nothing else can be in the way.
start_server() {
	setsid "${inside[@]}" bin/outcrop server --data "$work/server" --listen 127.0.0.1:0 >"$work/server.log" 2>&1 </dev/null &
	server_pid=$! watched+=($!)
	await 30 "the start of the server" grep -q ' msg=listening ' "$work/server.log"
	OUTCROP_URL=$(sed -n 's/.* msg=listening url=\([^ ]*\).*/\1/p' "$work/server.log")
	OUTCROP_TOKEN=$(cat "$work/server/operator.token")
	export OUTCROP_URL OUTCROP_TOKEN
	say "$OUTCROP_URL"
}

start_node() {
	(umask 077 && outcrop token create --role node --node demo >"$work/node.token")
	setsid "${inside[@]}" bin/outcrop node --server "$OUTCROP_URL" --token-file "$work/node.token" --id demo \
		--data "$work/node" --libvirt "$uri" >"$work/node.log" 2>&1 </dev/null &
	node_pid=$! watched+=($!)
	await 60 "the node's first heartbeat" node_is_ready
	outcrop node list | show
}

node_is_ready() { outcrop node list 2>/dev/null | grep -q ' ready '; }

# note_devices remembers the devices of the instance's network: its taps, and what
# the subnet that they are in has beside them.
note_devices() {
	local tap bridge
	for tap in $(virsh -q -c "$uri" domiflist "outcrop-$instance" | awk '$1 != "-" { print $1 }'); do
		bridge=$("${inside[@]}" ip -o link show "$tap" | sed -n 's/.* master \(ocb[^ ]*\).*/\1/p')
		devices+=("$tap" "$bridge" "ocr${bridge#ocb}" "ocx${bridge#ocb}")
	done
}

devices_are_gone() {
	local device
	for device in "${devices[@]}"; do
		! "${inside[@]}" ip link show "$device" >/dev/null 2>&1 || return 1
	done
}

console() { outcrop instance console "$instance" | tr -d '\r'; }
console_has() { console 2>/dev/null | grep -qF -- "$1"; }

sha256() { sha256sum "$1" | cut -d ' ' -f 1; }

# prove FILE LAST: the guest says that it got exactly the bytes of FILE. LAST is
# what it prints when it is done with them.
prove() {
	local sum
	sum=$(sha256 "$1")
	say "sent: $(stat -c %s "$1") bytes, sha256 $sum"
	await "$boot_limit" "the guest's word that it has this user-data" console_has "sha256=$sum"
	await "$boot_limit" "\"$2\" on the guest's console" console_has "$2"
	[ "$image" != micro ] || await 100 "its metadata service's word" console_has "imds user-data bytes=$(stat -c %s "$1") sha256=$sum"
	say "the guest's own console:"
	console | grep -aE "$proof_lines" | tail -n "$3" | show
}

# put FILE: replaces the user-data as the contract's document does, with curl. It
# prints the status; the body goes to $work/answer.
put() {
	"${inside[@]}" curl --silent --show-error --output "$work/answer" --write-out '%{http_code}' \
		--request PUT \
		--url "$OUTCROP_URL/v1/projects/default/compute/instances/$instance/user-data" \
		--header "Authorization: Bearer $OUTCROP_TOKEN" \
		--header 'Content-Type: text/plain' \
		--data-binary "@$1"
}

# expect STATUS TEXT: what the last put answered.
expect() {
	if [ "$status" != "$1" ] || ! grep -qF "$2" "$work/answer"; then
		die "the answer is $status $(cat "$work/answer"), not $1 with $2"
	fi
}

user_data_micro() {
	proof_lines='outcrop-micro: (instance-id|net|user-data|imds user-data|script|ready)|^hello'
	last1='script end status=0' last2='hello again' lines=8
	cat >"$work/first" <<-'END'
		#!/bin/sh
		echo "hello from the first user-data, on Linux $(uname -r)"
	END
	cat >"$work/second" <<-'END'
		#!/bin/sh
		echo "hello again, from the user-data that came while this machine was off"
	END
}

# On the second boot the instance is the same, so cloud-init runs what is for each
# boot (bootcmd), not what is for each instance (runcmd), as on EC2.
user_data_debian() {
	proof_lines='demo: '
	last1='demo: runcmd of the first' last2='demo: bootcmd of the second' lines=3
	cat >"$work/first" <<-'END'
		#cloud-config
		bootcmd:
		  - |
		    exec >/dev/ttyS0
		    echo "demo: bootcmd of the first user-data"
		    echo "demo: cloud-init has user-data sha256=$(sha256sum </var/lib/cloud/instance/user-data.txt | cut -c 1-64)"
		runcmd:
		  - |
		    echo "demo: runcmd of the first user-data, by $(cloud-init --version)" >/dev/ttyS0
	END
	sed -e 's/first/second/' "$work/first" >"$work/second"
}

# ---- the demo -----------------------------------------------------------------

[ "$(id -u)" = 0 ] || die "it needs root: for libvirt, and to install packages"
export PATH=/usr/local/go/bin:$PATH

step "install what is missing"
scripts/deps.sh demo

step "build"
make --no-print-directory build 2> >(sed '/^go: downloading /d' >&2)
say "$(bin/outcrop version)"

step "build the $image image (kept in images/cache)"
disk=$(images/build.sh "$image")
say "$disk, $(($(stat -c %s "$disk") >> 20)) MiB"

# QEMU's user must get through, and a unix socket's path must be short.
work=$(mktemp -d /var/tmp/outcrop-demo.XXXXXX)
chmod 0711 "$work"
export HOME=$work # no context file of this machine's has a say
"user_data_$image"

step "start libvirtd"
start_libvirtd

step "start the server"
start_server

step "start the node"
start_node

step "import the image"
outcrop image import --name "$image" "$disk" 2>/dev/null | show

step "create an instance with user-data"
outcrop instance create --name demo --image "$image" "${shape[@]}" --user-data "$work/first" "${wait[@]}" 2>&1 | show
instance=$(outcrop instance list -q)
prove "$work/first" "$last1" "$lines"
note_devices

step "PUT user-data while it runs: refused"
before=$(outcrop instance user-data get-hash "$instance")
status=$(put "$work/second")
expect 409 INVALID_STATE
[ "$(outcrop instance user-data get-hash "$instance")" = "$before" ] || die "the refused PUT changed the user-data"
say "409"
show <"$work/answer"

step "stop it"
outcrop instance stop "$instance" "${wait[@]}" 2>&1 | show

step "PUT user-data while it is stopped"
cat <<END | show
curl --request PUT \\
  --url $OUTCROP_URL/v1/projects/default/compute/instances/$instance/user-data \\
  --header 'Authorization: Bearer <token>' \\
  --header 'Content-Type: text/plain' \\
  --data-binary @second
END
status=$(put "$work/second")
expect 200 "sha256:$(sha256 "$work/second")"
say "200, userDataHash sha256:$(sha256 "$work/second")"

step "start it"
outcrop instance start "$instance" "${wait[@]}" 2>&1 | show
prove "$work/second" "$last2" "$lines"

step "terminate it"
outcrop instance terminate "$instance" "${wait[@]}" 2>&1 | show

step "look for what is left"
await 60 "the removal of ${devices[*]:-nothing}" devices_are_gone
[ -z "$(domains)" ] || die "a domain is left: $(domains)"
left=$(find "$work/node/instances" -mindepth 1)
[ -z "$left" ] || die "files of the instance are left: $left"
[ -z "$(ls "$(routers)/routers" 2>/dev/null)" ] || die "routers are left in $(routers)"
outcrop image delete -q "$image" >/dev/null
stop_all
for pid in "${watched[@]}"; do
	! running "$pid" || die "process $pid is left: $(tr '\0' ' ' <"/proc/$pid/cmdline")"
done
! grep -F "$work" /proc/mounts || die "mounts are left"
left=$(grep -alsF "$work" /proc/[0-9]*/cmdline || true)
[ -z "$left" ] || die "processes are left: $left"
rm -rf "$work"
say "no domain, no device, no file, no process"

close_step
printf 'DEMO OK (%s s)\n' "$(since "$begun")"
