// Package doctor says what a machine has and lacks for onpath, in about two
// seconds and without changing anything: what must be tried is tried in a
// network namespace that vanishes with the thread that made it.
package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Status is how a check ended.
type Status string

// The statuses.
const (
	OK   Status = "ok"
	Warn Status = "warn" // onpath works, less well or not for everything
	Lack Status = "lack" // onpath does not work here
)

// Result is what one check found.
type Result struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`           // what is there
	Remedy string `json:"remedy,omitempty"` // what to do about it
}

// Check finds one thing out.
type Check func(ctx context.Context, m Machine) []Result

// Machine is where files of the machine are read; tests give a folder of their
// own.
type Machine struct {
	Root string // "" or "/": this machine
	// Data is where state will be kept.
	Data string
}

// Checks are the ones of this package, in the order of their results.
func Checks() []Check {
	return []Check{kernel, privileges, btf, bpffs, namespaceFeatures, cgroups, forwarding, tunnelQueues, limits, memory, disk}
}

// limit is how long one check may take.
const limit = 1800 * time.Millisecond

// Run runs all checks at once and returns their results in order. A check that
// takes too long is a warning.
func Run(ctx context.Context, m Machine, checks []Check) []Result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	all := make([][]Result, len(checks))
	var wait sync.WaitGroup
	for i, c := range checks {
		wait.Go(func() {
			done := make(chan []Result, 1)
			go func() { done <- c(ctx, m) }()
			select {
			case all[i] = <-done:
			case <-ctx.Done():
				all[i] = []Result{{Name: fmt.Sprintf("check %d", i+1), Status: Warn, Detail: "gave no answer in time"}}
			}
		})
	}
	wait.Wait()
	var list []Result
	for _, rs := range all {
		list = append(list, rs...)
	}
	return list
}

// Worst is the worst status of a list.
func Worst(list []Result) Status {
	worst := OK
	for _, r := range list {
		if r.Status == Lack || worst == OK {
			worst = r.Status
		}
		if worst == Lack {
			break
		}
	}
	return worst
}
