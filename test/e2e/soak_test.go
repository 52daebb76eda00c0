package e2e

import (
	"os"
	"testing"
	"time"
)

// soak is how long a test of endurance lasts: ONPATH_SOAK (a duration), or short.
func soak(t *testing.T, short time.Duration) time.Duration {
	t.Helper()
	s := os.Getenv("ONPATH_SOAK")
	if s == "" {
		return short
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("ONPATH_SOAK=%q is no duration: write 10m", s)
	}
	return d
}
