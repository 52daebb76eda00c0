package ebpf

// SetSmallTable sets the size of a table from which on it is a forest, and gives
// the one before.
func SetSmallTable(n int) int {
	was := smallTable
	smallTable = n
	return was
}
