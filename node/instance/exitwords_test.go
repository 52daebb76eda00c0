package instance

import (
	"testing"
	"time"
)

// How a process ended is told in words, also where nobody knows how.
func TestExitWords(t *testing.T) {
	for code, want := range map[int]string{
		0: "exited with code 0", 3: "exited with code 3", 137: "killed by signal 9 (SIGKILL)", -1: "ended with an unknown exit code",
	} {
		if got := exitWords(code); got != want {
			t.Errorf("%d: %q, want %q", code, got, want)
		}
	}
}

// How long a process ran is told so roughly that one which ends again and again
// has one event with a count.
func TestRanFor(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "within 1s", 999 * time.Millisecond: "within 1s", time.Second: "within 10s", 59 * time.Second: "within 1m",
		time.Minute: "after 1m", 59*time.Minute + 59*time.Second: "after 59m", 50 * time.Hour: "after 50h",
	} {
		if got := ranFor(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
