package traffic

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/onpath/onpath/internal/netnsrun"
)

// Sink counts and drops the frames of sources at a device. Other frames pass.
type Sink struct {
	coll *ebpf.Collection
	link link.Link
	cpus int
}

// NewSink puts a sink on a device.
func NewSink(ns, dev string) (*Sink, error) {
	c, err := load()
	if err != nil {
		return nil, err
	}
	index, err := indexOf(ns, dev)
	if err != nil {
		c.Close()
		return nil, err
	}
	s := &Sink{coll: c, cpus: ebpf.MustPossibleCPU()}
	err = netnsrun.Do(ns, func() error {
		s.link, err = link.AttachXDP(link.XDPOptions{Program: c.Programs["sink"], Interface: index, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("put the sink on %s: %w", dev, err)
	}
	return s, nil
}

// Close takes the sink away.
func (s *Sink) Close() error {
	err := s.link.Close()
	s.coll.Close()
	return err
}

// Reset begins to count anew.
func (s *Sink) Reset() error {
	if err := s.coll.Maps["seen"].Put(uint32(0), make([]seenValue, s.cpus)); err != nil {
		return fmt.Errorf("reset the sink: %w", err)
	}
	return nil
}

// Packets is how many have come.
func (s *Sink) Packets() (uint64, error) {
	all, err := s.read()
	return all.Packets, err
}

func (s *Sink) read() (all seenValue, err error) {
	var each []seenValue
	if err := s.coll.Maps["seen"].Lookup(uint32(0), &each); err != nil {
		return all, fmt.Errorf("read the sink: %w", err)
	}
	for _, v := range each {
		all.Packets += v.Packets
		all.Bytes += v.Bytes
		for i, n := range v.Delays {
			all.Delays[i] += n
		}
	}
	return all, nil
}

// Delays are the delays of stamped frames, from the source's program to the
// sink's, counted in classes of three percent's width.
type Delays struct {
	counts [classes]uint64
	total  uint64
}

// Delays gives those of the frames since the last Reset.
func (s *Sink) Delays() (*Delays, error) {
	all, err := s.read()
	if err != nil {
		return nil, err
	}
	d := &Delays{counts: all.Delays}
	for _, n := range d.counts {
		d.total += n
	}
	return d, nil
}

// Count is how many delays were measured.
func (d *Delays) Count() uint64 { return d.total }

// Quantile is the delay that the share q of frames did not exceed.
func (d *Delays) Quantile(q float64) time.Duration {
	want := uint64(q*float64(d.total) + 0.5)
	var sum uint64
	for c, n := range d.counts {
		sum += n
		if sum >= want && n > 0 {
			return time.Duration((bound(c) + bound(c+1)) / 2)
		}
	}
	return 0
}

// bound is the smallest delay of a class, ns.
func bound(c int) uint64 {
	group, rest := c>>classBits, uint64(c&(1<<classBits-1))
	if group == 0 {
		return 2 * rest
	}
	return 2 * (1<<classBits + rest) << (group - 1)
}
