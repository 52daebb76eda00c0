package ebpf

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// fitLanes gives each CPU its lanes, all together as many as there may be entries:
// uplinks spread flows over CPUs. A flow without a lane costs a packet several waits
// for memory instead of one.
func fitLanes(spec *ebpf.CollectionSpec) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	v := spec.Variables["cpu_lanes"]
	if v == nil {
		return fmt.Errorf("the compiled data path has no variable cpu_lanes")
	}
	share := min(max(64, spec.Maps[flowsMap].MaxEntries/2/uint32(cpus)), maxLanes)
	each := uint32(1) << (bits.Len32(share) - 1)
	spec.Maps["lanes"].MaxEntries = each * uint32(cpus)
	return v.Set(each)
}

// laneReader finds what the fast path counted of a flow and has not added to its
// entry yet.
type laneReader struct {
	memory *ebpf.Memory // as the programs see it
	cpus   uint32
	each   uint32 // sets of lanes of one CPU
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

// addTo completes an entry that leaves at the edge.
func (r *laneReader) addTo(e *onpath.FlowEntry, k *flowKey, v *flowValue, now uint64) {
	if e.Kind != onpath.NextExit {
		return
	}
	far := uint32(laneHash(k)) & (r.each - 1)
	for cpu := range r.cpus {
		r.addSet(cpu*r.each+far, e, k, v, now)
		if far >= nearLanes {
			r.addSet(cpu*r.each+far%nearLanes, e, k, v, now)
		}
	}
}

func (r *laneReader) addSet(at uint32, e *onpath.FlowEntry, k *flowKey, v *flowValue, now uint64) {
	var set lanesValue
	b := unsafe.Slice((*byte)(unsafe.Pointer(&set)), unsafe.Sizeof(set)) // as C lays it out
	if _, err := r.memory.ReadAt(b, int64(at)*int64(len(b))); err != nil {
		return
	}
	for i := range set.Lane {
		l := &set.Lane[i]
		if l.Key != *k || l.Path != v.Path || l.Packets == 0 {
			continue
		}
		e.Packets += uint64(l.Packets)
		e.Bytes += l.Bytes
		e.Idle = min(e.Idle, onpath.Duration(idle(l.Last, now)))
	}
}

// laneHash is the hash of bpf/lib/fast.h.
func laneHash(k *flowKey) uint64 {
	word := func(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
	var h uint64
	if a := narrow(k.Src); a.Is4() {
		h = laneMix(uint64(binary.LittleEndian.Uint32(k.Src[12:])), uint64(binary.LittleEndian.Uint32(k.Dst[12:]))<<32)
	} else {
		h = laneMix(laneMix(laneMix(word(k.Src[:8]), word(k.Src[8:])), word(k.Dst[:8])), word(k.Dst[8:]))
	}
	ports := uint64(binary.LittleEndian.Uint16(k.SPort[:])) | uint64(binary.LittleEndian.Uint16(k.DPort[:]))<<16
	return laneMix(h, ports|uint64(k.Proto)<<32)
}

func laneMix(h, with uint64) uint64 {
	h = (h ^ with) * laneMultiplier
	return h ^ h>>32
}
