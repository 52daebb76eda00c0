package container

import (
	"context"
	"os"
	"strconv"
	"syscall"
	"time"
)

// A program that has just begun may not have set its handler yet: so long after its
// beginning it is waited for.
const (
	heedWithin = time.Second
	heedEvery  = 20 * time.Millisecond
)

// heeds reports whether the process would hear of the signal. The kernel throws away
// what the first process of a PID namespace has neither a handler for nor ignores
// nor blocks, and its sender learns nothing of that (pid_namespaces(7)). A process
// that cannot be read counts as one that would.
func heeds(pid int, sig syscall.Signal) bool {
	status := procStatus(strconv.Itoa(pid))
	var masks uint64
	for _, name := range []string{"SigCgt", "SigIgn", "SigBlk"} {
		m, err := strconv.ParseUint(status[name], 16, 64)
		if err != nil {
			return true
		}
		masks |= m
	}
	return masks&(1<<(sig-1)) != 0
}

// executable is what a process runs; a runtime's own becomes the container's.
func executable(pid int) string {
	exe, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe") // empty: it has ended
	return exe
}

// awaitHeed waits until the process would hear of the signal, and reports whether
// it does: not if it goes without a handler for as long as limit.
func (p *process) awaitHeed(ctx context.Context, sig syscall.Signal, limit time.Duration) bool {
	until := time.After(min(limit, heedWithin-time.Since(p.begun)))
	for {
		if pid := p.Pid(); pid == 0 || heeds(pid, sig) {
			return true
		}
		select {
		case <-time.After(heedEvery):
		case <-p.done:
			return true
		case <-until:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
