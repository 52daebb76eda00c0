// Package ratelimit is the rate limiter that comes with onpath: buckets for all packets,
// each flow or each source.
package ratelimit

import (
	_ "embed" // for the object
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/sdk"
)

//go:generate make -C ../../bpf functions

//go:embed ratelimit.o
var object []byte

// Function is the rate limiter.
var Function = sdk.Function{Name: "ratelimit", Object: object, Compile: compile}

// Bounds of ratelimit.bpf.c: what keeps its arithmetic
// within 64 bits, and what its clock, which ticks some hundred times a second,
// needs.
const (
	maxRate      = 100_000_000_000        // units a second
	defaultBurst = 200 * time.Millisecond // TCP does not send again sooner
	minBurst     = 20 * time.Millisecond
	fullPackets  = 10   // a burst is never less
	fullPacket   = 1538 // bytes on an Ethernet wire
)

// rateConfig is struct onpath_config of the limiter.
type rateConfig struct {
	Rate, Burst      uint64
	Bits, Per        uint32
	Prefix4, Prefix6 uint32
	Mark, DSCP       uint32
	Overhead         uint32
	Directions       uint32
}

// compile reads what the limiter is told.
func compile(config sdk.Config) (sdk.Write, error) {
	c := rateConfig{Prefix4: 32, Prefix6: 64, Directions: 3}
	burst := defaultBurst
	err := config.Read("rate limit", sdk.Readers{
		"rate":      c.rate,
		"burst":     sdk.Within(&burst, minBurst, time.Second, "write how long it may last at the rate, 20ms to 1s"),
		"per":       sdk.OneOf(&c.Per, "total", "flow", "source"),
		"prefix4":   sdk.UpTo(&c.Prefix4, 32),
		"prefix6":   sdk.UpTo(&c.Prefix6, 128),
		"above":     sdk.OneOf(&c.Mark, "drop", "mark"),
		"dscp":      sdk.UpTo(&c.DSCP, 63),
		"overhead":  sdk.UpTo(&c.Overhead, 256),
		"direction": sdk.OneOf(&c.Directions, "", "forward", "reverse", "both"),
	})
	if err != nil {
		return nil, err
	}
	if c.Rate == 0 {
		return nil, sdk.Missing("rate", "write rate: 100Mbit, or rate: 5000 packets")
	}
	c.Burst = max(uint64(float64(c.Rate)*burst.Seconds()), fullPackets)
	if c.Bits == 1 {
		c.Burst = max(c.Burst, fullPackets*fullPacket*8)
	}
	return func(tables sdk.Tables) error { return tables[sdk.ConfigTable].Put(uint32(0), c) }, nil
}

// rate reads 100Mbit, or 5000 packets (5000pps).
func (c *rateConfig) rate(value string) error {
	value = strings.TrimSpace(value)
	words, packets := strings.CutSuffix(value, "pps")
	if !packets {
		words, packets = strings.CutSuffix(value, "packets")
	}
	if packets {
		n, err := strconv.ParseUint(strings.TrimSpace(words), 10, 64)
		if err != nil || n == 0 || n > maxRate {
			return sdk.Invalid(value, "write a number of packets a second")
		}
		c.Rate, c.Bits = n, 0
		return nil
	}
	var r onpath.Rate
	if err := r.UnmarshalText([]byte(value)); err != nil || r <= 0 || r > maxRate {
		return sdk.Invalid(value, "write 100Mbit, up to 100Gbit, or 5000 packets")
	}
	c.Rate, c.Bits = uint64(r), 1
	return nil
}
