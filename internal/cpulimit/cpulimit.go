// Package cpulimit says in the words of control groups what an instance may use of the CPU,
// alike for all kinds of functions.
package cpulimit

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/onpath/onpath"
)

// Periods over which use is counted, µs: the kernel's default, and its longest, for an instance
// for which packets wait: it may use at once what it may use in a second.
const (
	period  = 100_000
	awaited = 1_000_000
	least   = 1000 // that the kernel takes, of either
)

// Of is a limit; nil for none.
func Of(c onpath.CPU, packetsWait bool) *specs.LinuxCPU {
	if c <= 0 {
		return nil
	}
	over := uint64(period)
	if packetsWait {
		over = awaited
	}
	quota := max(int64(c)*int64(over)/1000, least)
	shares := max(uint64(c)*1024/1000, 2)
	return &specs.LinuxCPU{Quota: &quota, Period: &over, Shares: &shares}
}
