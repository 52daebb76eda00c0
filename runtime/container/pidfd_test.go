package container

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestWatchPid: a process that ends, one that is gone, and the number 0 of a
// task that never got a process.
func TestWatchPid(t *testing.T) {
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w, err := watchPid(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.wait(ctx); err != nil {
		t.Error("a process that was killed:", err)
	}
	_ = c.Wait()
	for _, pid := range []int{c.Process.Pid, 0} {
		if _, err := watchPid(pid); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("watch process %d: %v, want %v", pid, err, os.ErrProcessDone)
		}
	}
}
