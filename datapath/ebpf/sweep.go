package ebpf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// sweepEvery is the time between two sweeps for aged entries. Entries are aged
// by a process only; without one, the table's own replacement of the least
// recently used is the backstop.
const sweepEvery = 5 * time.Second

// How long entries live unused: established TCP as RFC 5382 asks (REQ-5), UDP as
// RFC 4787 (REQ-5) at its recommended best, ICMP as RFC 5508 (REQ-2).
const (
	idleTCP       = 2*time.Hour + 4*time.Minute
	idleTCPClosed = 2 * time.Minute  // FIN seen
	idleTCPReset  = 10 * time.Second // RST seen
	idleTCPHalf   = 4 * time.Minute  // packets in one direction only
	idleUDP       = 5 * time.Minute
	idleICMP      = time.Minute
	idleOther     = 10 * time.Minute
)

func (d *Driver) sweepLoop(ctx context.Context, flows, nats *ebpf.Map) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now := monotonic()
			err := errors.Join(d.sweep(ctx, flows, now), sweepNAT(ctx, nats, flows, now))
			if err != nil && ctx.Err() == nil {
				d.opts.Log.Warn("flow entries could not be aged", "error", err)
			}
		}
	}
}

// sweep removes what was not used for too long, and counts anew what is held
// against each tenant's quota.
func (d *Driver) sweep(ctx context.Context, flows *ebpf.Map, now uint64) error {
	held := map[uint32]uint64{} // by vport
	var aged []flowKey
	err := eachFlow(ctx, flows, func(k *flowKey, v *flowValue) bool {
		if idle(v.seen(), now) > lifetime(k, v, flows) {
			aged = append(aged, *k)
		} else if v.Flags&flowEmitted != 0 {
			held[unthree(k.Scope)]++
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, k := range aged {
		if err := flows.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove aged flow entry: %w", err)
		}
	}
	return d.recount(held)
}

// lifetime is how long an entry may stay unused.
func lifetime(k *flowKey, v *flowValue, flows *ebpf.Map) time.Duration {
	switch k.Proto {
	case 6:
		switch {
		case v.Flags&flowRST != 0:
			return idleTCPReset
		case v.Flags&flowFIN != 0:
			return idleTCPClosed
		case oneWay(k, v, flows):
			return idleTCPHalf
		}
		return idleTCP
	case 17, 136:
		return idleUDP
	case 1, 58:
		return idleICMP
	}
	return idleOther
}

// oneWay tells whether one direction of a flow was never used here. It is asked
// only of entries that were idle for a while.
func oneWay(k *flowKey, v *flowValue, flows *ebpf.Map) bool {
	if v.packets() == 0 {
		return true
	}
	back := *k
	back.Src, back.Dst, back.SPort, back.DPort = k.Dst, k.Src, k.DPort, k.SPort
	var other flowValue
	if flows.Lookup(back, &other) != nil {
		return false // a bridged instance's other side, or gone
	}
	return other.packets() == 0
}

// recount corrects the counts of the quotas, which the programs only raise.
func (d *Driver) recount(held map[uint32]uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil
	}
	of := map[uint32]uint64{} // by tenant
	for _, v := range d.maps.vports.now {
		of[uint32(v.Tenant)] += held[v.ID]
	}
	for _, slot := range d.slots.tenants.of {
		var t tenantValue
		if err := d.maps.tenants.Lookup(slot, &t); err != nil {
			return fmt.Errorf("read quota: %w", err)
		}
		if t.Flows == of[slot] {
			continue
		}
		t.Flows = of[slot]
		if err := d.maps.tenants.Put(slot, t); err != nil {
			return fmt.Errorf("write quota: %w", err)
		}
	}
	return nil
}
