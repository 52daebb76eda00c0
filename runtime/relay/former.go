package relay

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
)

// former divides what a process of an earlier version takes, which keeps no accounts: each
// instance has the same part of what it took since the last time.
type former struct {
	mu      sync.Mutex
	settled time.Duration
	cpu     map[string]time.Duration // by instance
}

// begin begins with a process. What it took before, an earlier agent has divided.
func (f *former) begin(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settled, _ = processorTime(pid)
	f.cpu = map[string]time.Duration{}
}

func (f *former) usage(id string, pid int, instances []string) (onpath.Usage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cpu == nil || !slices.Contains(instances, id) {
		return onpath.Usage{}, fmt.Errorf("the relays' process does not know instance %s", id)
	}
	now, err := processorTime(pid)
	if err != nil {
		return onpath.Usage{}, onpath.Errorf(onpath.CodeNotFound, "the relays' process has ended")
	}
	n := len(instances)
	part := (now - f.settled) / time.Duration(n)
	for _, x := range instances {
		f.cpu[x] += part
	}
	f.settled += part * time.Duration(n)
	return onpath.Usage{CPU: f.cpu[id], Memory: onpath.Size(resident(pid) / int64(n))}, nil
}

// processorTime is what a process has taken of processors, by the kernel's account.
func processorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0, fmt.Errorf("the kernel's account of process %d cannot be read", pid)
	}
	user, err := strconv.ParseInt(f[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(f[12], 10, 64)
	const tick = time.Second / 100 // USER_HZ
	return time.Duration(user+system) * tick, err
}
