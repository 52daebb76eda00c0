// Package timer is how the parts of the server wait: tests pass time instead.
package timer

import (
	"context"
	"time"
)

// After is how parts wait: a channel that gets the time once d has passed. time.After
// is one.
type After func(d time.Duration) <-chan time.Time

// Sleep waits for d, or until ctx ends, and returns ctx's error then.
func (after After) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-after(d):
		return nil
	}
}
