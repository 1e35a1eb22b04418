#!/bin/bash
# check.sh [--static]: what every change must pass: formatting, vet, staticcheck,
# shell scripts, then the tests with the race detector but without the slow ones
# (those with real VMs). --static leaves the tests out.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$(dirname "$(realpath "$0")")")"
export PATH=/usr/local/go/bin:$PATH

unformatted=$(git ls-files -z -c -o --exclude-standard '*.go' | xargs -0 gofmt -l)
[ -z "$unformatted" ] || {
	printf 'not formatted, run gofmt -w:\n%s\n' "$unformatted" >&2
	exit 1
}
go vet ./...
go tool staticcheck ./...
if command -v shellcheck >/dev/null; then
	git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck -x -P SCRIPTDIR
fi
[ "${1:-}" = --static ] || go test -race -short ./...
