package demo

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"
)

// ProbeResult is what connecting to an address gave.
type ProbeResult struct {
	Address string        `json:"address"`
	Open    bool          `json:"open"`
	Median  time.Duration `json:"median"` // of TCP's handshake; 0 if never open
	Error   string        `json:"error,omitempty"`
}

// RunProbe connects count times and reports the median time of the handshake.
func RunProbe(ctx context.Context, address string, count int, timeout time.Duration) (ProbeResult, error) {
	if count < 1 {
		return ProbeResult{}, fmt.Errorf("probe: count must be at least 1")
	}
	res := ProbeResult{Address: address}
	var times []time.Duration
	for range count {
		t := time.Now()
		c, err := (&net.Dialer{Timeout: timeout}).DialContext(ctx, "tcp", address)
		if err != nil {
			res.Error = err.Error()
			break // what is closed once stays closed for a demonstration
		}
		times = append(times, time.Since(t))
		c.Close()
	}
	if len(times) > 0 {
		slices.Sort(times)
		res.Open, res.Median = true, times[len(times)/2]
	}
	return res, ctx.Err()
}
