// Package ratelimit is the rate limiter that comes with onpath: buckets for all packets,
// each flow, each source, or each circuit of a list.
package ratelimit

import (
	_ "embed" // for the object
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"

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
	Listed           uint32
	Circuits         uint32
	Lasts            uint64
}

// maxSources is the size of the table sources, but for what is exchanged.
const maxSources = 2048

// compile reads what the limiter is told.
func compile(config sdk.Config) (sdk.Write, error) {
	c := rateConfig{Prefix4: 32, Prefix6: 64, Directions: 3}
	burst := defaultBurst
	var listed []netip.Addr
	var circuits []circuit
	err := config.Read("rate limit", sdk.Readers{
		"rate":      c.rate,
		"burst":     sdk.Within(&burst, minBurst, time.Second, "write how long it may last at the rate, 20ms to 1s"),
		"per":       sdk.OneOf(&c.Per, "total", "flow", "source"),
		"prefix4":   sdk.UpTo(&c.Prefix4, 32),
		"prefix6":   sdk.UpTo(&c.Prefix6, 128),
		"above":     sdk.OneOf(&c.Mark, "drop", "mark"),
		"dscp":      sdk.UpTo(&c.DSCP, 63),
		"overhead":  sdk.UpTo(&c.Overhead, 256),
		"sources":   func(value string) (err error) { c.Listed = 1; listed, err = readSources(value); return err },
		"circuits":  func(value string) (err error) { c.Circuits = 1; circuits, err = readCircuits(value); return err },
		"direction": sdk.OneOf(&c.Directions, "", "forward", "reverse", "both"),
	})
	if err != nil {
		return nil, err
	}
	if c.Rate == 0 && c.Circuits == 0 {
		return nil, sdk.Missing("rate", "write rate: 100Mbit, or rate: 5000 packets, or files: {circuits: …}")
	}
	for _, name := range []string{"direction", "per", "prefix4", "prefix6", "sources"} {
		if _, told := config[name]; told && c.Rate == 0 {
			return nil, sdk.OnlyTogether(&onpath.Error{
				Code: onpath.CodeInvalid, Field: name, Message: "says nothing of circuits, and there is no rate for the others",
				Remedy: "leave " + name + " out, or write the rate of addresses of no circuit: rate: 100Mbit",
			})
		}
	}
	c.Lasts = uint64(burst.Milliseconds())
	c.Burst = max(uint64(float64(c.Rate)*burst.Seconds()), fullPackets)
	if c.Bits == 1 {
		c.Burst = max(c.Burst, fullPackets*fullPacket*8)
	}
	want := map[source]bool{}
	for _, a := range listed {
		want[c.cut(a)] = true
	}
	return func(tables sdk.Tables) error {
		if err := addSources(tables["sources"], want); err != nil {
			return err
		}
		if err := writeCircuits(tables["circuits"], circuits); err != nil {
			return err
		}
		if err := tables[sdk.ConfigTable].Put(uint32(0), c); err != nil {
			return err
		}
		return dropSources(tables["sources"], want)
	}, nil
}

// source is struct source.
type source [16]byte

// readSources reads addresses with commas; none are a list, too.
func readSources(value string) (list []netip.Addr, err error) {
	for item := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
		a, err := netip.ParseAddr(item)
		if err != nil || a.Zone() != "" {
			return nil, sdk.Invalid(item, "write addresses with commas, such as 192.0.2.7,2001:db8::7")
		}
		list = append(list, a.Unmap())
	}
	if len(list) > maxSources {
		return nil, sdk.Invalid(strconv.Itoa(len(list))+" addresses", "write at most "+strconv.Itoa(maxSources))
	}
	return list, nil
}

// cut is the address's prefix as the program looks it up.
func (c *rateConfig) cut(a netip.Addr) source {
	bits := int(c.Prefix6)
	if a.Is4() {
		bits = int(c.Prefix4)
	}
	p, _ := a.Prefix(bits)
	return p.Addr().As16()
}

func addSources(m *ebpf.Map, want map[source]bool) error {
	for s := range want {
		if err := m.Put(s, uint32(1)); err != nil {
			return fmt.Errorf("list a source: %w", err)
		}
	}
	return nil
}

// dropSources takes out what is listed no more.
func dropSources(m *ebpf.Map, want map[source]bool) error {
	var s source
	var v uint32
	var gone []source
	entries := m.Iterate()
	for entries.Next(&s, &v) {
		if !want[s] {
			gone = append(gone, s)
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read the list of sources: %w", err)
	}
	for _, s := range gone {
		if err := m.Delete(s); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("take a source out of the list: %w", err)
		}
	}
	return nil
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
