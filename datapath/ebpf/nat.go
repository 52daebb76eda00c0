package ebpf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// natSettles is how long a translation without a flow entry may stay: its flow
// may just be written.
const natSettles = 10 * time.Second

// sweepNAT removes the translations whose flows have aged, and with them gives
// their ports back.
func sweepNAT(ctx context.Context, nats *ebpf.Map, flows flowTables, clock func() uint64) error {
	var aged []flowKey
	keys, values, cursor := make([]flowKey, batch), make([]natValue, batch), new(ebpf.MapBatchCursor)
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		got, err := nats.BatchLookup(cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read translations: %w", err)
		}
		more = err == nil
		now := clock()
		for i := range got {
			k, v := keys[i], values[i]
			unused := idle(v.Seen, now)
			switch {
			case v.In != 0: // goes with the other direction's, or long after an older version evicted that
				if unused > time.Duration(onpath.MaxIdle) {
					aged = append(aged, k)
				}
			case unused > natSettles:
				if err := removeTranslation(nats, flows, &k, &v, now); err != nil {
					return err
				}
			}
		}
	}
	for _, k := range aged {
		if err := nats.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove aged translation: %w", err)
		}
	}
	return nil
}

// removeTranslation removes both halves of a translation whose flow has aged. Since the half
// out was read with many others, a program may have given its port to another flow, or a
// packet may have met it: so it is read again, and the half in goes only with that one,
// which one alone can remove (take_over in bpf/lib/nat.h).
func removeTranslation(nats *ebpf.Map, flows flowTables, k *flowKey, v *natValue, now uint64) error {
	if flows.have(reverseOf(k)) {
		return nil
	}
	var still natValue
	err := nats.Lookup(k, &still)
	if err == nil && (still.Addr != v.Addr || still.Port != v.Port || idle(still.Seen, now) <= natSettles) {
		return nil
	}
	if err == nil {
		err = nats.Delete(k)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err == nil {
		if err = nats.Delete(repliesTo(k, v)); errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("remove aged translation: %w", err)
	}
	return nil
}

func (t flowTables) have(k flowKey) bool {
	var v flowValue
	return slices.ContainsFunc(t, func(m *ebpf.Map) bool { return m.Lookup(k, &v) == nil })
}

func reverseOf(k *flowKey) flowKey {
	r := *k
	r.Src, r.Dst, r.SPort, r.DPort = k.Dst, k.Src, k.DPort, k.SPort
	return r
}

// repliesTo is the key of the replies to what k is translated to.
func repliesTo(k *flowKey, v *natValue) flowKey {
	r := reverseOf(k)
	r.Dst, r.DPort = v.Addr, v.Port
	if k.Proto == 1 || k.Proto == 58 { // the echo identifier stands in both
		r.SPort = v.Port
	}
	return r
}
