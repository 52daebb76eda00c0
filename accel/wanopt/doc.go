// Package wanopt is the two ends of a WAN optimiser: each takes TCP connections over and has
// its partner open them on the other side. Between the two the bytes are cut into chunks
// where their content says so; a chunk that both ends have already goes by its name, and
// everything is compressed.
package wanopt
