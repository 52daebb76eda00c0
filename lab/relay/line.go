// Package relay moves Ethernet frames between pairs of network devices, as a
// link of a given rate, delay, jitter and loss would: it is the lab's link on
// kernels without netem.
//
// Frames come and go through packet sockets with virtio-net headers, so that a
// frame that the kernel has not yet cut into segments passes as one; rate,
// queue and loss still count segments.
package relay

import (
	"math/rand/v2"
	"time"
)

// Shape is what one direction does to frames.
type Shape struct {
	Rate   int64         `json:"rate"`   // bit/s of Ethernet frames with their 14-byte header; 0: unlimited
	Delay  time.Duration `json:"delay"`  // one way
	Jitter time.Duration `json:"jitter"` // even in ± Jitter; frames keep their order
	Loss   float64       `json:"loss"`   // probability for each segment
	Queue  int64         `json:"queue"`  // bytes that may wait for Rate
	Seed   uint64        `json:"seed"`
}

// maxBurst is for how long a line is busy with one frame that it hands on at
// once; a longer unsegmented frame is cut.
const maxBurst = int64(time.Millisecond)

// line decides what becomes of frames. It has no clock: times are nanoseconds
// of any one clock, given by the caller, and never go back by more than the
// clock's own noise.
type line struct {
	Shape
	random   *rand.Rand
	free     int64                  // when the last accepted segment has been sent
	previous int64                  // the last departure; frames keep their order
	extra    func(sent int64) int64 // nil: none
	Counters
}

// Counters of one direction, in segments.
type Counters struct {
	Packets uint64 `json:"packets"` // handed on
	Bytes   uint64 `json:"bytes"`   // of Packets, as on the wire
	Lost    uint64 `json:"lost"`    // by Loss
	Full    uint64 `json:"full"`    // by Queue, or by more in flight than the relay holds
	Missed  uint64 `json:"missed"`  // that the kernel dropped before the relay saw them
	Refused uint64 `json:"refused"` // that the kernel did not take from the relay
}

func newLine(s Shape) *line {
	return &line{Shape: s, random: rand.New(rand.NewPCG(s.Seed, 0x6f6e70617468))}
}

// part is a run of segments of one frame that leave together.
type part struct {
	first, end int   // segments [first, end)
	depart     int64 // ns
}

// admit decides about a frame of segments, whose sizes on the wire size gives,
// that arrived at the given time. It appends what is to be sent to parts.
func (l *line) admit(arrival int64, segments int, size func(i int) int, parts []part) []part {
	open := false // the last element of parts can grow
	var began int64
	for i := range segments {
		if l.Loss > 0 && l.random.Float64() < l.Loss {
			l.Lost++
			open = false
			continue
		}
		n := size(i)
		if !l.transmit(arrival, n) {
			l.Full++
			open = false
			continue
		}
		l.Packets++
		l.Bytes += uint64(n)
		sent := max(arrival, l.free)
		if open && l.Rate > 0 && sent-began > maxBurst {
			open = false
		}
		if !open {
			parts = append(parts, part{first: i})
			began, open = sent, true
		}
		p := &parts[len(parts)-1]
		p.end, p.depart = i+1, sent
	}
	return parts
}

// transmit puts n bytes on the line unless too much waits for it already.
func (l *line) transmit(arrival int64, n int) bool {
	if l.Rate == 0 {
		return true
	}
	start := max(l.free, arrival)
	if waiting := (start - arrival) / 1000 * l.Rate / 8_000_000; waiting > l.Queue {
		return false
	}
	// The remainder of the division is lost: below 1 ns a frame, under 0.01 %
	// at 1 Gbit/s.
	l.free = start + int64(n)*8*int64(time.Second)/l.Rate
	return true
}

// departure is when a part that has been sent at the given time arrives.
func (l *line) departure(sent int64) int64 {
	at := sent + int64(l.Delay)
	if l.extra != nil {
		at += l.extra(sent)
	}
	if l.Jitter > 0 {
		at += l.random.Int64N(2*int64(l.Jitter)+1) - int64(l.Jitter)
	}
	l.previous = max(l.previous, at)
	return l.previous
}
