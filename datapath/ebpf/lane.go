package ebpf

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// fitLanes gives each CPU its lines of lanes, all together as many as there may be
// entries: uplinks spread flows over CPUs. A line has room for two flows of IPv4 or
// one of IPv6. A flow without a lane costs a packet several waits for memory instead
// of one.
func fitLanes(spec *ebpf.CollectionSpec) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	v := spec.Variables["cpu_lines"]
	if v == nil {
		return fmt.Errorf("the compiled data path has no variable cpu_lines")
	}
	share := min(max(128, spec.Maps[flowsMap].MaxEntries/uint32(cpus)), maxLines)
	each := uint32(1) << (bits.Len32(share) - 1)
	spec.Maps["lanes"].MaxEntries = each * uint32(cpus)
	return v.Set(each)
}

// laneReader finds what the fast path counted of a flow and has not added to its
// entry yet.
type laneReader struct {
	memory *ebpf.Memory // as the programs see it
	cpus   uint32
	share  uint32 // lines of one CPU
}

func openLanes(m *ebpf.Map) (*laneReader, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count CPUs: %w", err)
	}
	memory, err := m.Memory()
	if err != nil {
		return nil, fmt.Errorf("map the lanes of the fast path: %w", err)
	}
	return &laneReader{memory, uint32(cpus), m.MaxEntries() / uint32(cpus)}, nil
}

// addTo completes an entry.
func (r *laneReader) addTo(e *onpath.FlowEntry, k *flowKey, v *flowValue, now uint64) {
	r.each(k, v, func(l *laneValue) {
		e.Packets += uint64(l.Packets)
		e.Bytes += l.Count & laneBytes
		e.Idle = min(e.Idle, onpath.Duration(idle(l.last(), now)))
	})
}

// rests is how long a flow was not used, by its entry and its lanes.
func (r *laneReader) rests(k *flowKey, v *flowValue, now uint64) time.Duration {
	rests := idle(v.seen(), now)
	r.each(k, v, func(l *laneValue) { rests = min(rests, idle(l.last(), now)) })
	return rests
}

// last is when the lane was used last, in seconds.
func (l *laneValue) last() uint32 { return (unthree(l.Since) + uint32(l.Age)) & seenMask }

// each gives the lanes of a flow that have counted something. Only entries that leave
// at the edge have lanes.
func (r *laneReader) each(k *flowKey, v *flowValue, yield func(*laneValue)) {
	if v.kind() != nextExit {
		return
	}
	n := nameOf(k)
	all := uint32(n.hash()) & (r.share - 1)
	places := [...]uint32{all, all ^ 1, all % nearLines}
	for cpu := range r.cpus {
		for i, at := range places {
			if slices.Contains(places[:i], at) {
				continue
			}
			for _, l := range r.line(cpu*r.share+at, &n) {
				if uint16(l.Count>>lanePath)%maxPaths == v.Path && l.Packets != 0 {
					yield(&l)
				}
			}
		}
	}
}

// line gives the flow's lanes of a line.
func (r *laneReader) line(at uint32, n *flowName) (found []laneValue) {
	var w wideLane
	b := unsafe.Slice((*byte)(unsafe.Pointer(&w)), unsafe.Sizeof(w)) // as C lays it out
	if _, err := r.memory.ReadAt(b, int64(at)*int64(len(b))); err != nil {
		return nil
	}
	if n.is4 {
		for _, l := range (*laneLine)(unsafe.Pointer(&w)).Lane {
			if l.Who == n.who && l.ID&^laneEpoch == n.id {
				found = append(found, l)
			}
		}
	} else if w.Lane.Who == n.who && w.Lane.ID&^laneEpoch == n.id && w.Source == n.source && w.Destination == n.destination {
		found = append(found, w.Lane)
	}
	return found
}

// flowName is a flow as lanes name it (bpf/lib/lane.h), in whatever epoch.
type flowName struct {
	is4         bool
	who, id     uint64
	source      uint64
	destination [2]uint64
}

func nameOf(k *flowKey) flowName {
	word := func(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
	half := func(b []byte) uint64 { return uint64(binary.LittleEndian.Uint32(b)) }
	n := flowName{is4: narrow(k.Src).Is4()}
	ports := uint64(binary.LittleEndian.Uint16(k.SPort[:])) | uint64(binary.LittleEndian.Uint16(k.DPort[:]))<<16
	n.id = ports | uint64(k.Proto)<<laneProto | uint64(k.Scope[0])<<laneScope
	if n.is4 {
		n.id |= lane4 << laneKind
		n.who = half(k.Src[12:]) | half(k.Dst[12:])<<32
		return n
	}
	n.id |= laneWide << laneKind
	n.who, n.source = word(k.Src[:8]), word(k.Src[8:])
	n.destination = [2]uint64{word(k.Dst[:8]), word(k.Dst[8:])}
	return n
}

func (n *flowName) hash() uint64 {
	h := laneMix(n.who, 0)
	if !n.is4 {
		h = laneMix(laneMix(laneMix(n.who, n.source), n.destination[0]), n.destination[1])
	}
	return laneMix(h, n.id&(1<<laneScope-1))
}

func laneMix(h, with uint64) uint64 {
	h = (h ^ with) * laneMultiplier
	return h ^ h>>32
}
