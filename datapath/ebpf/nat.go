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
func sweepNAT(ctx context.Context, nats *ebpf.Map, flows flowTables, now uint64) error {
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
		for i := range got {
			k, v := keys[i], values[i]
			unused := idle(v.Seen, now)
			switch {
			case v.In != 0: // goes with the other direction's, or long after an older version evicted that
				if unused > time.Duration(onpath.MaxIdle) {
					aged = append(aged, k)
				}
			case unused > natSettles && !flows.have(reverseOf(&k)):
				aged = append(aged, k, repliesTo(&k, &v))
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
