#!/bin/sh
# Installs the Outcrop guest agent: sh -s -- CODE, as root, in the instance. CODE is
# the one-time code of enable-agent. The agent talks to the metadata address only,
# and removes itself when it is disabled.
set -eu

code=${1:-}
imds=${OUTCROP_METADATA_URL:-http://169.254.169.254}
program=/usr/local/sbin/outcrop-guest
state=/var/lib/outcrop-guest
unit=/etc/systemd/system/outcrop-guest.service

fail() {
	echo "outcrop-guest: $*" >&2
	exit 1
}

[ -n "$code" ] || fail "the one-time code is missing; take the whole command that enable-agent gave"
[ "$(id -u)" = 0 ] || fail "run it as root"
command -v curl >/dev/null || fail "curl is needed"

token=$(curl -sSf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$imds/latest/api/token")
mkdir -p "${program%/*}"
curl -sSf -H "X-aws-ec2-metadata-token: $token" -o "$program.new" "$imds/latest/outcrop/agent/binary"
chmod 755 "$program.new"
mv "$program.new" "$program"
mkdir -p "$state"
chmod 700 "$state"
(umask 077 && printf '%s\n' "$code" >"$state/code.new" && mv "$state/code.new" "$state/code")

if [ -d /run/systemd/system ]; then
	systemctl disable --now outcrop-guest.timer >/dev/null 2>&1 || true # of an image's dormant agent
	cat >"$unit" <<UNIT
[Unit]
Description=Outcrop guest agent

[Service]
ExecStart=$program --activation install-command --metadata-url $imds
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
UNIT
	systemctl daemon-reload
	systemctl enable outcrop-guest.service >/dev/null 2>&1
	systemctl restart outcrop-guest.service
else
	(while [ -x "$program" ] && ! "$program" --activation install-command --metadata-url "$imds"; do sleep 5; done) >/dev/null 2>&1 </dev/null &
fi
echo "outcrop-guest: installed"
