package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pinProcess binds a process, its descendants and all their threads to a CPU.
func pinProcess(pid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	for _, p := range append(descendants(pid), pid) {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p))
		if err != nil {
			return err
		}
		for _, t := range tasks {
			id, _ := strconv.Atoi(filepath.Base(t))
			if err := unix.SchedSetaffinity(id, &set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("pin process %d to CPU %d: %w", p, cpu, err)
			}
		}
	}
	return nil
}

// descendants are the children of a process, and theirs.
func descendants(pid int) (list []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, s := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(s); err == nil {
				list = append(append(list, child), descendants(child)...)
			}
		}
	}
	return list
}

// processorTime is the CPU time that all threads of processes have had.
func processorTime(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, t := range tasks {
			b, err := os.ReadFile(t)
			if err != nil {
				continue // the thread has ended
			}
			n, _ := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
			sum += time.Duration(n)
		}
	}
	return sum
}
