package fault

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWakeAt: a process that has stopped itself goes on in time, and again if it is stopped
// after that.
func TestWakeAt(t *testing.T) {
	const span, child = 300 * time.Millisecond, "ONPATH_TEST_STOPS"
	if os.Getenv(child) == "" { // what starts the tests may not bear that they are stopped
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestWakeAt$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	began := time.Now()
	cancel, err := wakeAt(began.Add(span))
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	for _, least := range []time.Duration{span, span + time.Second} {
		if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(began.Add(least))) // it may be stopped here
		if late := time.Since(began); late < least || late > least+20*time.Second {
			t.Errorf("it went on after %s, must be %s", late, least)
		}
	}
}
