#!/bin/bash
# contract.sh: lists the rows of docs/contract-rows.txt that no test names in a
# comment like `// contract: N-07 N-08`. It fails only for an id that a test names
# and the list does not have.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$(dirname "$(realpath "$0")")")"

rows=docs/contract-rows.txt
named=$(git grep -h --untracked -E '(//|#) contract: ' -- '*_test.go' '*.txtar' test scripts/demo.sh |
	sed 's/.* contract: //' | grep -oE '\b[A-Z]-[0-9]{2}\b' | sort -u)

awk -v named="$named" '
	BEGIN { n = split(named, id, "\n"); for (i = 1; i <= n; i++) has[id[i]] = 1 }
	/^[A-Z]-[0-9][0-9] / {
		total++
		if ($1 in has) { shown++; delete has[$1] } else print
	}
	END {
		printf "%d of %d rows have a test\n", shown, total
		for (i in has) { print "a test names " i ", which is not in the list" > "/dev/stderr"; bad = 1 }
		exit bad
	}' $rows
