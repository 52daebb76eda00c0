package publish

import "time"

// now is the time by which crowds are counted, and lines are dated.
func now() time.Time { return time.Now() }

// every rings again and again.
func every(d time.Duration) *time.Ticker { return time.NewTicker(d) }
