package container

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAdoptSilent: an instance whose shim does not answer is no instance that has
// ended, and its end is noticed all the same.
func TestAdoptSilent(t *testing.T) {
	opt := machine(t)
	d := open(t, opt)
	pid := startSpec(t, d, "silent", hostSpec(sleep), "").Pid()
	shim := parent(t, pid)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	again := func() error { return syscall.Kill(shim, syscall.SIGCONT) }
	t.Cleanup(func() { _ = again() })
	d = open(t, opt)
	defer d.Close()
	all, err := d.Adopt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := all["silent"]
	if p == nil || p.Pid() != pid {
		t.Fatalf("adopted %v; process %d lives", p, pid)
	}
	select {
	case <-p.Exited():
		t.Fatal("it is said to have ended")
	case <-time.After(time.Second):
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-time.After(time.Minute):
		t.Fatal("its end was not noticed")
	}
	if err := again(); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// parent of a process.
func parent(t *testing.T, pid int) (of int) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	if _, err := fmt.Sscanf(rest, "%1s %d", new(string), &of); err != nil || of <= 1 {
		t.Fatalf("parent of process %d in %q: %v", pid, data, err)
	}
	return of
}
