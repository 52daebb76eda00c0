package ebpf

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/inline"
)

// Bounds of functions/ebpf-ratelimit/ratelimit.bpf.c: what keeps its arithmetic
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

// compileRatelimit reads rate, burst, per, prefix4, prefix6, above, dscp, overhead
// and direction.
func compileRatelimit(_ *inline.Object, config map[string]string) (write, error) {
	c := rateConfig{Prefix4: 32, Prefix6: 64, Directions: 3}
	burst := defaultBurst
	for _, name := range slices.Sorted(maps.Keys(config)) {
		value := strings.TrimSpace(config[name])
		var err error
		switch name {
		case "rate":
			err = c.rate(value)
		case "burst":
			if burst, err = time.ParseDuration(value); err != nil || burst < minBurst || burst > time.Second {
				err = invalidValue(name, value, "write how long it may last at the rate, 20ms to 1s")
			}
		case "per":
			c.Per, err = oneOf(name, value, "total", "flow", "source")
		case "prefix4":
			c.Prefix4, err = small(name, value, 32)
		case "prefix6":
			c.Prefix6, err = small(name, value, 128)
		case "above":
			c.Mark, err = oneOf(name, value, "drop", "mark")
		case "dscp":
			c.DSCP, err = small(name, value, 63)
		case "overhead":
			c.Overhead, err = small(name, value, 256)
		case "direction":
			c.Directions, err = oneOf(name, value, "", "forward", "reverse", "both")
		default:
			e := onpath.Errorf(onpath.CodeInvalid, "the rate limit cannot be told %q", name)
			e.Remedy = "it can be told above, burst, direction, dscp, overhead, per, prefix4, prefix6, rate"
			err = e
		}
		if err != nil {
			return nil, err
		}
	}
	if c.Rate == 0 {
		e := onpath.Errorf(onpath.CodeInvalid, "rate: is missing")
		e.Remedy = "write rate: 100Mbit, or rate: 5000 packets"
		return nil, together{e}
	}
	c.Burst = max(uint64(float64(c.Rate)*burst.Seconds()), fullPackets)
	if c.Bits == 1 {
		c.Burst = max(c.Burst, fullPackets*fullPacket*8)
	}
	return func(tables map[string]*ebpf.Map) error { return tables[inline.ConfigTable].Put(uint32(0), c) }, nil
}

// rate reads 100Mbit, or 5000 packets (5000pps).
func (c *rateConfig) rate(value string) error {
	words, packets := strings.CutSuffix(value, "pps")
	if !packets {
		words, packets = strings.CutSuffix(value, "packets")
	}
	if packets {
		n, err := strconv.ParseUint(strings.TrimSpace(words), 10, 64)
		if err != nil || n == 0 || n > maxRate {
			return invalidValue("rate", value, "write a number of packets a second")
		}
		c.Rate, c.Bits = n, 0
		return nil
	}
	var r onpath.Rate
	if err := r.UnmarshalText([]byte(value)); err != nil || r <= 0 || r > maxRate {
		return invalidValue("rate", value, "write 100Mbit, up to 100Gbit, or 5000 packets")
	}
	c.Rate, c.Bits = uint64(r), 1
	return nil
}

func invalidValue(name, value, remedy string) error {
	e := onpath.Errorf(onpath.CodeInvalid, "%s: %q is not understood", name, value)
	e.Remedy = remedy
	return e
}

// oneOf gives the place of a word in a list.
func oneOf(name, value string, words ...string) (uint32, error) {
	i := slices.Index(words, value)
	if i < 0 || value == "" {
		return 0, invalidValue(name, value, "write one of "+strings.TrimPrefix(strings.Join(words, ", "), ", "))
	}
	return uint32(i), nil
}

func small(name, value string, most uint32) (uint32, error) {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || n > uint64(most) {
		return 0, invalidValue(name, value, "write a number up to "+strconv.Itoa(int(most)))
	}
	return uint32(n), nil
}
