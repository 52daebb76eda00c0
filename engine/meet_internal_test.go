package engine

import (
	"io"
	"log/slog"
	"testing"
	"time"
)

// Between two batches of packets come events for a millisecond, and the one that is under way
// then, however many wait; and none is lost.
func TestEventsHoldUpPacketsForAMillisecond(t *testing.T) {
	e, err := New(slog.New(slog.NewTextHandler(io.Discard, nil)), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer e.closeAll()
	const waiting, each = 40, 400 * time.Microsecond
	met, longest := 0, 0
	for range waiting {
		err := e.post(t.Context(), func() {
			met++
			for begin := time.Now(); time.Since(begin) < each; { // as a module that computes
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	batches := 0
	for ; met < waiting; batches++ {
		before := met
		e.meet()
		longest = max(longest, met-before)
	}
	if most := int(meetFor/each) + 1; longest > most || batches < waiting/most {
		t.Errorf("%d events between two batches, of %d in all %d times, must be %d at most", longest, waiting, batches, most)
	}
}
