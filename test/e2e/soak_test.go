package e2e

import (
	"os"
	"testing"
	"time"
)

// soak is how long a test of endurance lasts: ONPATH_SOAK (a duration; 1, as `make
// soak` sets it, means ten minutes), or short.
func soak(t *testing.T, short time.Duration) time.Duration {
	t.Helper()
	s := os.Getenv("ONPATH_SOAK")
	switch s {
	case "":
		return short
	case "1":
		return 10 * time.Minute
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("ONPATH_SOAK=%q is no duration: write 10m", s)
	}
	return d
}

// promised holds a time against a bound that is one for a machine that has nothing else to do.
func promised(t *testing.T, what string, took, bound time.Duration) {
	t.Helper()
	t.Run("bound", func(t *testing.T) {
		idle(t)
		if took > bound {
			t.Errorf("%s took %s; %s are allowed", what, took, bound)
		}
	})
}

// idle leaves a test of bounds in milliseconds, whose functions are programs that
// wait for a CPU themselves, to the long tests: those have the machine to
// themselves.
func idle(t *testing.T) {
	t.Helper()
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; these bounds are those of a machine that does nothing else")
	}
}
