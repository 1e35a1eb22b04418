#!/bin/bash
# test.sh [GO TEST FLAG]...: the whole suite. As root nothing may be left out for
# want of a tool: what is missing is installed first, VMs and databases are real.
# Without root it does what it can.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$(dirname "$(realpath "$0")")")"
export PATH=/usr/local/go/bin:$PATH

if [ "$(id -u)" = 0 ]; then
	scripts/deps.sh test
	export OUTCROP_REQUIRE_REAL=1
else
	echo "test: not root: tests of VMs and networks are left out" >&2
fi
foreign=internal/httpsig/testdata/foreign # another implementation of signatures
[ -d $foreign/node_modules ] || ! command -v npm >/dev/null || npm ci --prefix $foreign --silent --no-audit --no-fund

exec go test -count=1 -timeout 30m "$@" ./...
