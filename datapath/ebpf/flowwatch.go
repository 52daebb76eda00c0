package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// watched is a slot of the map watches; the zero value is a free one.
type watched struct {
	used  bool
	tuple onpath.Tuple
	until time.Time
}

// watching is what the programs are told: whether there is anything to watch.
func (d *Driver) watching() uint32 {
	for _, w := range d.watches {
		if w.used {
			return 1
		}
	}
	return 0
}

// Watch implements onpath.Datapath.
func (d *Driver) Watch(ctx context.Context, s onpath.WatchSpec) ([]onpath.FlowCounters, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.errClosed()
	}
	if d.coll == nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "nothing is applied on this node")
	}
	now := time.Now()
	if err := d.unwatch(now); err != nil {
		return nil, err
	}
	until := now.Add(s.Lease())
	slots := make([]int, len(s.Tuples))
	for i, t := range s.Tuples {
		var err error
		if slots[i], err = d.watchTuple(t, until); err != nil {
			return nil, err
		}
	}
	if err := d.tellWatch(); err != nil {
		return nil, err
	}
	if len(slots) > 0 && !d.closing {
		d.closing = true
		life := d.life
		d.done.Go(func() { d.endWatches(life) })
	}
	return d.readWatches(ctx, slots)
}

// watchTuple gives the slot of a tuple, a new one if it has none.
func (d *Driver) watchTuple(t onpath.Tuple, until time.Time) (int, error) {
	free := -1
	for i := range d.watches {
		switch w := &d.watches[i]; {
		case w.used && w.tuple == t:
			if until.After(w.until) {
				w.until = until
			}
			return i, nil
		case !w.used && free < 0:
			free = i
		}
	}
	if free < 0 {
		e := onpath.Errorf(onpath.CodeConflict, "%d flows are watched on this node already", maxWatches)
		e.Remedy = "end another watch, or wait until it ends by itself"
		return 0, e
	}
	v := watchValue{Src: wide(t.Src), Dst: wide(t.Dst), Proto: t.Protocol, Used: 1}
	binary.BigEndian.PutUint16(v.SPort[:], t.SrcPort)
	binary.BigEndian.PutUint16(v.DPort[:], t.DstPort)
	if err := d.coll.Maps["watches"].Put(uint32(free), v); err != nil {
		return 0, fmt.Errorf("watch a flow: %w", err)
	}
	d.watches[free] = watched{true, t, until}
	return free, nil
}

// unwatch ends the watches whose time is over, and forgets what they counted.
func (d *Driver) unwatch(now time.Time) error {
	for i := range d.watches {
		if !d.watches[i].used || now.Before(d.watches[i].until) {
			continue
		}
		d.watches[i] = watched{}
		if err := d.coll.Maps["watches"].Put(uint32(i), watchValue{}); err != nil {
			return fmt.Errorf("end the watch of a flow: %w", err)
		}
		var gone []watchKey
		err := eachWatch(d.coll.Maps["watch_stats"], func(k watchKey, _ []watchCounters) {
			if k.Watch == uint32(i) {
				gone = append(gone, k)
			}
		})
		if err != nil {
			return err
		}
		for _, k := range gone {
			_ = d.coll.Maps["watch_stats"].Delete(k) // counted anew if it stays: the slot is free
		}
	}
	return nil
}

// forgetWatches ends those that an earlier process left. d.mu is held.
func (d *Driver) forgetWatches() error {
	d.closing = false
	for i := range d.watches {
		d.watches[i] = watched{used: true}
	}
	return d.unwatch(time.Now())
}

// tellWatch switches the counting on or off in the programs.
func (d *Driver) tellWatch() error {
	n := d.maps.nodes.now[0]
	n.Watch = d.watching()
	return errors.Join(d.maps.nodes.put(0, n), d.writeFast())
}

// watchPause is how often watches are looked at that may have ended.
const watchPause = 500 * time.Millisecond

// endWatches ends watches that nobody has asked for again, until none is left.
func (d *Driver) endWatches(life context.Context) {
	for {
		select {
		case <-life.Done():
			return
		case <-time.After(watchPause):
		}
		if d.endedWatches(life) {
			return
		}
	}
}

func (d *Driver) endedWatches(life context.Context) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.coll == nil || life.Err() != nil {
		return true
	}
	err := d.unwatch(time.Now())
	if err == nil {
		err = d.tellWatch()
	}
	if err != nil {
		d.opts.Log.Warn("packets are counted for a watch that has ended", "error", err)
	}
	d.closing = d.watching() != 0
	return !d.closing
}

func eachWatch(m *ebpf.Map, do func(watchKey, []watchCounters)) error {
	var k watchKey
	var v []watchCounters
	it := m.Iterate()
	for it.Next(&k, &v) {
		do(k, v)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read the counters of watched flows: %w", err)
	}
	return nil
}

// readWatches reads what was counted for slots.
func (d *Driver) readWatches(ctx context.Context, slots []int) ([]onpath.FlowCounters, error) {
	out := make([]onpath.FlowCounters, len(slots))
	of := map[uint32][]int{}
	for i, s := range slots {
		out[i] = onpath.FlowCounters{Tuple: d.watches[s].tuple, Vports: map[onpath.VportID]onpath.VportCounters{}}
		of[uint32(s)] = append(of[uint32(s)], i)
	}
	err := eachWatch(d.coll.Maps["watch_stats"], func(k watchKey, perCPU []watchCounters) {
		for _, i := range of[k.Watch] {
			v := out[i].Vports[onpath.VportID(k.Vport)]
			addWatch(&v, k.What, perCPU)
			out[i].Vports[onpath.VportID(k.Vport)] = v
		}
	})
	if err != nil {
		return nil, err
	}
	return out, ctx.Err()
}

func addWatch(v *onpath.VportCounters, what uint32, perCPU []watchCounters) {
	for _, c := range perCPU {
		switch {
		case what == watchIn:
			v.In.Packets += c.Packets
			v.In.Bytes += c.Bytes
		case what == watchOut:
			v.Out.Packets += c.Packets
			v.Out.Bytes += c.Bytes
		case what > watchDrop && int(what-watchDrop) <= len(onpath.DropReasons) && c.Packets > 0:
			if v.Dropped == nil {
				v.Dropped = map[onpath.DropReason]uint64{}
			}
			v.Dropped[onpath.DropReasons[what-watchDrop-1]] += c.Packets
		}
	}
}
