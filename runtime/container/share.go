package container

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// A group of cgroups that nobody changed weighs as much as one process of the
// machine: all instances together would get no more of busy CPUs than that.
const (
	sharesUnchanged = 1024 // cpu.shares, version 1
	weightUnchanged = 100  // cpu.weight, version 2
	weightMost      = 10000
)

// weighParent lets all instances together weigh as much as one process on each CPU.
// What an operator has set stays.
func weighParent() {
	for pattern, unchanged := range map[string]int{
		"/sys/fs/cgroup" + cgroupParent + "/cpu.weight":   weightUnchanged,
		"/sys/fs/cgroup/*" + cgroupParent + "/cpu.shares": sharesUnchanged,
	} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			if data, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(data)) == strconv.Itoa(unchanged) {
				weight := unchanged * runtime.NumCPU()
				if unchanged == weightUnchanged {
					weight = min(weight, weightMost)
				}
				_ = os.WriteFile(f, []byte(strconv.Itoa(weight)), 0) // where it may not be, it stays
			}
		}
	}
}
