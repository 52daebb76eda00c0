package onpath

import "strings"

// Nearest is the word of words that word was most likely meant to be, or "" if
// none is near. Error messages use it to ask "did you mean".
func Nearest(word string, words []string) string {
	if len(word) > 64 {
		return "" // no word of ours is that long; keeps hostile input cheap
	}
	word = strings.ToLower(word)
	best, least := "", len(word)/3+2 // one typing error in a short word, more in a long one
	for _, w := range words {
		if d := editDistance(word, strings.ToLower(w)); d < least {
			best, least = w, d
		}
	}
	if best == "" && len(word) >= 3 {
		for _, w := range words {
			if strings.HasPrefix(strings.ToLower(w), word) {
				return w
			}
		}
	}
	return best
}

// editDistance counts insertions, deletions, changes and swaps of neighbours
// (optimal string alignment).
func editDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
