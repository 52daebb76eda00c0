package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	tendHopsEvery = 2 * time.Second
	hopIdle       = 60 // seconds; a hop unused for so long may go stale
	watchWait     = 200 * time.Millisecond

	neighbourValid = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE |
		netlink.NUD_PROBE | netlink.NUD_STALE | netlink.NUD_DELAY
	neighbourFixed = netlink.NUD_PERMANENT | netlink.NUD_NOARP
)

type neighbourKey struct {
	ifindex int
	addr    netip.Addr
}

// hopKeeper remembers what the last look at the next hops showed.
type hopKeeper struct {
	tended time.Time
}

// tendHops keeps the neighbours alive that only the fast path still talks to: the
// kernel sees no packet to them, so it would never ask whether they are there. It
// runs in the driver's namespace; d.mu is held.
func (d *Driver) tendHops() error {
	f := &d.fast
	if time.Since(f.hops.tended) < tendHopsEvery {
		return nil
	}
	f.hops.tended = time.Now()
	used, err := d.usedHops()
	if err != nil || len(used) == 0 {
		return err
	}
	list, err := dump(func() ([]netlink.Neigh, error) { return d.ns.nl.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	known := make(map[neighbourKey]*netlink.Neigh, len(list))
	for i := range list {
		if a, ok := netip.AddrFromSlice(list[i].IP); ok {
			known[neighbourKey{list[i].LinkIndex, a.Unmap()}] = &list[i]
		}
	}
	var errs []error
	for h, slot := range used {
		n := known[h.neighbour()]
		switch {
		case n == nil || n.State&neighbourValid == 0 || [6]byte(pad6(n.HardwareAddr)) != h.DMAC:
			errs = append(errs, d.removeHop(h, slot))
		case n.State == netlink.NUD_STALE:
			n.Flags, n.State, n.HardwareAddr = netlink.NTF_USE, netlink.NUD_NONE, nil
			errs = append(errs, d.ns.nl.NeighSet(n))
		}
	}
	return errors.Join(append(errs, d.freeHops())...)
}

func (h hopValue) neighbour() neighbourKey { return neighbourKey{int(h.Ifindex), narrow(h.Via)} }

// removeHop takes one next hop away: flows that are sent by it look for another.
func (d *Driver) removeHop(h hopValue, slot uint32) error {
	if err := d.coll.Maps["hop_slots"].Delete(h); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove next hop: %w", err)
	}
	if err := d.coll.Maps["hops"].Put(slot, hopSlot{}); err != nil {
		return fmt.Errorf("empty the slot of a next hop: %w", err)
	}
	return nil
}

// neighboursGone takes the next hops of neighbours away.
func (d *Driver) neighboursGone(gone []neighbourKey) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil || d.state == nil {
		return nil
	}
	all := map[hopValue]uint32{}
	var h hopValue
	var slot uint32
	it := d.coll.Maps["hop_slots"].Iterate()
	for it.Next(&h, &slot) {
		if slices.Contains(gone, h.neighbour()) {
			all[h] = slot
		}
	}
	errs := []error{it.Err()}
	for h, slot := range all {
		errs = append(errs, d.removeHop(h, slot))
	}
	return errors.Join(errs...)
}

func pad6(mac []byte) []byte {
	if len(mac) == 6 {
		return mac
	}
	return make([]byte, 6)
}

// usedHops are the next hops that flows were sent by lately, and their slots.
func (d *Driver) usedHops() (map[hopValue]uint32, error) {
	now := uint32(monotonic()/uint64(time.Second)) & secondMask
	out := map[hopValue]uint32{}
	var h hopValue
	var slot uint32
	it := d.coll.Maps["hop_slots"].Iterate()
	for it.Next(&h, &slot) {
		var p hopSlot
		if err := d.coll.Maps["hops"].Lookup(slot, &p); err != nil {
			return nil, fmt.Errorf("read next hop: %w", err)
		}
		if (now-p.Used)&secondMask <= hopIdle {
			out[h] = slot
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read next hops: %w", err)
	}
	return out, nil
}

// freeHops gives all slots back before they run out. No epoch holds meanwhile.
func (d *Driver) freeHops() error {
	var taken uint32
	if err := d.coll.Maps["hops_taken"].Lookup(uint32(0), &taken); err != nil {
		return fmt.Errorf("count next hops: %w", err)
	}
	if taken < maxHops*3/4 {
		return nil
	}
	if err := d.newEpoch(); err != nil {
		return err
	}
	d.fast.resting, d.fast.began = true, time.Now()
	if err := d.writeFast(); err != nil {
		return err
	}
	time.Sleep(grace)
	var keys []hopValue
	var h hopValue
	var slot uint32
	it := d.coll.Maps["hop_slots"].Iterate()
	for it.Next(&h, &slot) {
		keys = append(keys, h)
	}
	for _, h := range keys {
		if err := d.coll.Maps["hop_slots"].Delete(h); err != nil {
			return fmt.Errorf("give back next hop: %w", err)
		}
	}
	return errors.Join(it.Err(), d.coll.Maps["hops_taken"].Put(uint32(0), uint32(0)))
}

// watchRoutes begins a new epoch whenever what next hops depend on changes, until
// ctx ends.
func (d *Driver) watchRoutes(ctx context.Context) error {
	var s *nl.NetlinkSocket
	err := d.ns.do(func() (err error) {
		s, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
			unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch routes: %w", err)
	}
	wait := unix.NsecToTimeval(int64(watchWait))
	if err := errors.Join(s.SetReceiveTimeout(&wait), s.SetReceiveBufferSize(1<<20, true)); err != nil {
		s.Close()
		return fmt.Errorf("watch routes: %w", err)
	}
	d.done.Go(func() {
		defer s.Close()
		w := routeWatch{macs: map[neighbourKey][6]byte{}, links: map[int]linkState{}}
		for ctx.Err() == nil {
			var err error
			changed, gone := w.changed(s)
			switch {
			case changed:
				err = d.routesChanged()
			case len(gone) > 0:
				err = d.neighboursGone(gone)
			}
			if err != nil && ctx.Err() == nil {
				d.opts.Log.Warn("the fast path may send by old routes for a moment", "error", err)
			}
		}
	})
	return nil
}

func (d *Driver) routesChanged() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil || d.state == nil {
		return nil
	}
	return d.newEpoch()
}

// routeWatch tells changes that matter from the kernel's chatter.
type routeWatch struct {
	macs  map[neighbourKey][6]byte
	links map[int]linkState
}

type linkState struct {
	up     bool
	oper   netlink.LinkOperState
	mtu    int
	master int
	mac    string
}

// changed waits for messages and tells whether any next hop may be another now, or else
// which neighbours are gone.
func (w *routeWatch) changed(s *nl.NetlinkSocket) (changed bool, gone []neighbourKey) {
	msgs, _, err := s.Receive()
	if err != nil {
		// Nothing came in time, or more than fits: then something was lost.
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR), nil
	}
	for i := range msgs {
		m := &msgs[i]
		switch m.Header.Type {
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWRULE, unix.RTM_DELRULE:
			changed = true
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			h := unix.NlMsghdr(m.Header)
			l, err := netlink.LinkDeserialize(&h, m.Data)
			changed = changed || err != nil || w.link(l, m.Header.Type == unix.RTM_DELLINK)
		case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
			n, err := netlink.NeighDeserialize(m.Data)
			if err != nil {
				changed = true
				continue
			}
			moved, lost := w.neighbour(n, m.Header.Type == unix.RTM_DELNEIGH)
			changed, gone = changed || moved, append(gone, lost...)
		}
	}
	return changed, gone
}

func (w *routeWatch) link(l netlink.Link, gone bool) bool {
	a := l.Attrs()
	if gone {
		delete(w.links, a.Index)
		return true
	}
	now := linkState{a.Flags&unix.IFF_UP != 0, a.OperState, a.MTU, a.MasterIndex, a.HardwareAddr.String()}
	was, known := w.links[a.Index]
	w.links[a.Index] = now
	return !known || was != now
}

// neighbour is told of one that came, moved to another MAC, or went: flows may go by it
// only if it was valid before.
func (w *routeWatch) neighbour(n *netlink.Neigh, gone bool) (moved bool, lost []neighbourKey) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return false, nil
	}
	k := neighbourKey{n.LinkIndex, addr.Unmap()}
	was, known := w.macs[k]
	if gone || n.State&neighbourValid == 0 {
		delete(w.macs, k)
		if n.State != netlink.NUD_INCOMPLETE || known {
			lost = append(lost, k)
		}
		return false, lost
	}
	now := [6]byte(pad6(n.HardwareAddr))
	w.macs[k] = now
	return known && was != now, nil
}
