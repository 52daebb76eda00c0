package wire

import "time"

// MetricValue is a value that an application reports of itself.
type MetricValue struct {
	Value float64 `json:"value"`
	// Time is when it was so; absent: now.
	Time time.Time `json:"time,omitzero" required:"false"`
}
