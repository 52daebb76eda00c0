//go:build !race

package relay

// raced: the race detector's runtime cannot take rights from all threads.
const raced = false
