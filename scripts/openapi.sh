#!/bin/bash
# openapi.sh [FILE]: takes the OpenAPI document from a server of its own, and
# lints it. It needs bin/outcrop and, once, npm. FILE keeps the document.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$(dirname "$(realpath "$0")")")"

work=$(mktemp -d)
pid=''
finish() {
	[ -z "$pid" ] || kill "$pid" 2>/dev/null || true
	wait
	rm -rf "$work"
}
trap finish EXIT

bin/outcrop server --data "$work/server" --listen 127.0.0.1:0 >"$work/log" 2>&1 </dev/null &
pid=$!
for _ in $(seq 150); do
	url=$(sed -n 's/.* msg=listening url=\([^ ]*\).*/\1/p' "$work/log")
	if [ -n "$url" ] || ! kill -0 "$pid" 2>/dev/null; then break; fi
	sleep 0.2
done
[ -n "$url" ] || {
	cat "$work/log" >&2
	exit 1
}
bin/outcrop openapi --yaml --url "$url" >"$work/outcrop.yaml"
[ -z "${1:-}" ] || cp "$work/outcrop.yaml" "$1"

lint=test/openapi
[ -x $lint/node_modules/.bin/redocly ] || npm ci --prefix $lint --silent --no-audit --no-fund
REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true \
	$lint/node_modules/.bin/redocly lint --config $lint/redocly.yaml "$work/outcrop.yaml"
