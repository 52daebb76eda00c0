package engine

import "time"

// quota allows so many a second, and as many at once.
type quota struct {
	rate  float64 // a second
	have  float64
	since time.Time
}

func newQuota(rate float64) quota { return quota{rate: rate, have: rate} }

// take takes n, if there are n.
func (q *quota) take(n float64, now time.Time) bool {
	q.have = min(q.rate, q.have+now.Sub(q.since).Seconds()*q.rate)
	q.since = now
	if q.have < n {
		return false
	}
	q.have -= n
	return true
}
