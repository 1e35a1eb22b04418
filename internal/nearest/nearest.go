// Package nearest finds the word that somebody most likely meant. It backs every
// "did you mean …?" of the project.
package nearest

import "strings"

// maxWord bounds the work for words from outside: no name of ours is longer.
const maxWord = 64

// Nearest returns the entry of known that is closest to word, or "" when none is
// close enough to be worth suggesting. Case, "-" and "_" do not count. Distance is
// Damerau-Levenshtein (insert, delete, replace, swap of neighbours); one edit is
// allowed in a short word, and one more for every three further characters. Of equally
// close entries the first wins, so the answer is stable.
func Nearest(word string, known []string) string {
	w := fold(word)
	if len(w) == 0 || len(w) > maxWord {
		return ""
	}
	best, bestDistance := "", cutoff(len(w))+1
	for _, k := range known {
		f := fold(k)
		if len(f) > maxWord || abs(len(f)-len(w)) >= bestDistance {
			continue
		}
		if d := distance(w, f); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// cutoff is the number of edits up to which a word of n characters is still a slip of
// the finger and not another word.
func cutoff(n int) int {
	return max(1, n/3)
}

var separators = strings.NewReplacer("-", "", "_", "")

// fold makes spellings that differ only in style equal: sub-net, sub_net, subNet.
func fold(s string) []rune {
	return []rune(strings.ToLower(separators.Replace(s)))
}

// distance is the restricted Damerau-Levenshtein distance, in three rows.
func distance(a, b []rune) int {
	older := make([]int, len(b)+1)
	old := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range old {
		old[j] = j
	}
	for i := range a {
		row[0] = i + 1
		for j := range b {
			replace := old[j]
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(replace, old[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], older[j-1]+1)
			}
		}
		older, old, row = old, row, older
	}
	return old[len(b)]
}

func abs(n int) int {
	return max(n, -n)
}
