package ebpf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Where flows are to meet one instance (Group.Together), the programs note which instance the
// first flow chose, and lead new flows there. A round over all entries keeps these notes true: a
// note says where the established flows are, whichever node or direction chose, and goes some
// time after the last of them.

// affinityStays is how long a note stays that no established flow bears out: one may begin.
const affinityStays = time.Minute

// affinityOf tells what a round needs of a group whose flows stay together.
type affinityOf struct {
	flags uint16
	keys  map[uint32]uint32 // of members, by vport
}

// affinityRound is where the flows are that a round has met.
type affinityRound struct {
	groups map[uint32]affinityOf
	noted  map[affinityKey]affinityValue // as the round began
	met    map[affinityKey]uint32        // keys of members; the noted one if a flow is there
	stays  time.Duration                 // affinityStays, or 0 in a table that fills
	most   int                           // of met, beside what is noted: there is room for so many notes
}

// newAffinityRound begins a round; nil if no group's flows stay together.
func newAffinityRound(groups map[uint32]groupValue, m *ebpf.Map) (*affinityRound, error) {
	a := &affinityRound{groups: map[uint32]affinityOf{}, noted: map[affinityKey]affinityValue{}, met: map[affinityKey]uint32{},
		most: int(m.MaxEntries())}
	for id, g := range groups {
		if g.Flags&(groupSource|groupHosts) == 0 || g.Flags&groupMirror != 0 {
			continue
		}
		of := affinityOf{g.Flags, map[uint32]uint32{}}
		for _, x := range g.Members[:g.Count] {
			of.keys[x.Vport] = x.Key
		}
		a.groups[id] = of
	}
	if len(a.groups) == 0 {
		return nil, nil
	}
	keys, values, cursor := make([]affinityKey, batch), make([]affinityValue, batch), new(ebpf.MapBatchCursor)
	for {
		n, err := m.BatchLookup(cursor, keys, values, nil)
		for i := range n {
			a.noted[keys[i]] = values[i]
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			if a.stays = affinityStays; len(a.noted) > a.most/2 {
				a.stays = 0 // so there is room for what the flows say that live
			}
			return a, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read where flows stay together: %w", err)
		}
	}
}

// meet takes note of an established entry.
func (a *affinityRound) meet(r *reader, k *flowKey, v *flowValue) {
	if a == nil || v.kind() != nextVport {
		return
	}
	id := r.group(v)
	of, ok := a.groups[id]
	if !ok {
		return
	}
	member, ok := of.keys[unthree(v.Next)]
	if !ok {
		return
	}
	key := affinityKey{Hash: hashTogether(k, of.flags), Group: id &^ 1}
	was, noted := a.noted[key]
	if _, other := a.met[key]; noted && (!other || was.Member == member) || !other && len(a.met) < a.most {
		a.met[key] = member
	}
}

// end makes the notes say what the round has met, and removes old ones of nobody's.
func (a *affinityRound) end(ctx context.Context, m *ebpf.Map, now uint64) error {
	if a == nil {
		return nil
	}
	for k, v := range a.noted {
		if _, ok := a.met[k]; ok || idle(v.Seen, now) < a.stays {
			continue
		}
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove where flows stayed together: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	for k, member := range a.met {
		if a.noted[k].Member == member {
			continue
		}
		err := m.Put(k, affinityValue{Member: member, Seen: uint32(now/uint64(time.Second)) & seenMask})
		if errors.Is(err, unix.E2BIG) {
			return nil // hashing alone decides where there is no room
		}
		if err != nil {
			return fmt.Errorf("write where flows stay together: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// hashTogether is what the programs call hash_tuple, for a group whose flows stay together.
func hashTogether(k *flowKey, flags uint16) uint64 {
	from, to := k.Src, k.Dst
	if flags&groupReverse != 0 {
		from, to = to, from
	}
	switch {
	case flags&groupSource != 0:
		to = addr16{}
	case bytes.Compare(from[:], to[:]) > 0:
		from, to = to, from
	}
	h := uint64(0)
	for _, a := range []addr16{from, to} {
		h = mix(h, binary.LittleEndian.Uint64(a[:8]))
		h = mix(h, binary.LittleEndian.Uint64(a[8:]))
	}
	return mix(h, 0)
}

// mix is the programs' function of that name.
func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}
