package ebpf

import (
	"math/bits"
	"os"

	"golang.org/x/sys/unix"
)

// Sizes of the tables of flows, in entries; a connection has two at the edge and two at each
// instance that it passes on this node. Entries take 152 bytes, from the start.
const (
	fewestFlows = 1 << 17 // unless Options say so; also where several nodes share a machine
	maxFlows    = 1 << 24

	fewestPending = 1 << 14
	mostPending   = 1 << 17
	flowsShare    = 64 // the table of established flows takes this part of the memory
	flowBytes     = 152
)

// defaultFlows is the size of the table of established flows where nobody says another: by
// the machine's memory, but for data paths in a network namespace of their own, as in a lab.
func defaultFlows() int {
	own, err := os.Readlink("/proc/self/ns/net")
	machine, err2 := os.Readlink("/proc/1/ns/net")
	if err != nil || err2 != nil || own != machine {
		return fewestFlows
	}
	return MachineFlows()
}

// MachineFlows is the default of Options.Flows for a node that has this machine to itself,
// in entries.
func MachineFlows() int {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return fewestFlows
	}
	return flowsFor(uint64(si.Totalram) * uint64(si.Unit))
}

// flowsFor is the largest power of two that memory, in bytes, has room for.
func flowsFor(memory uint64) int {
	n := memory / flowsShare / flowBytes
	return min(max(1<<(bits.Len64(n|1)-1), fewestFlows), maxFlows)
}

// pendingFor is the size of a tenant's table of flows that begin beside a table of so many
// established ones, on a machine with so many CPUs.
func pendingFor(flows uint32, cpus int) int {
	return max(min(max(int(flows)/16, fewestPending), mostPending), perCPU*cpus)
}

// pendingWithin is the size of one more tenant's table, of as many entries as size if the
// tables of others, which have taken so many, leave twice that of most; else half of what
// they leave, and never fewer than least. So many tenants do not take all memory.
func pendingWithin(size, taken, most, least uint32) uint32 {
	left := (most - min(most, taken)) / 2
	return max(min(size, 1<<bits.Len32(left)>>1), min(size, least))
}

// tableSize is the size that a table is made with: a power of two, so that it has
// no more buckets than entries.
func tableSize(n, otherwise int) uint32 {
	if n == 0 {
		n = otherwise
	}
	return 1 << bits.Len32(uint32(n-1))
}
