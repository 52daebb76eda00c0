package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// The fast path sends by next hops that tc found (bpf/lib/hop.h). What a flow's
// entry says of its next hop holds in one epoch; the driver begins a new one
// whenever routes, neighbours, devices or the configuration change, and then each
// flow's next packet takes the ordinary way and finds out anew. A lease ends the
// trust in epochs soon after the driver has: without it each flow finds out once
// a second.
const (
	epochs     = 255                    // 0: no hop is known
	epochRest  = 100 * time.Millisecond // between two; entry.h relies on it
	leaseEvery = 500 * time.Millisecond
	checkEvery = time.Second
	secondMask = 1<<24 - 1
)

// leaseTime is how long a lease lasts; a variable for tests.
var leaseTime = 3 * time.Second

// fastUplink is an uplink as the fast path sees it.
type fastUplink struct {
	uplink onpath.Uplink
	dev    device
	ability
}

// fastState is the driver's knowledge of the fast path, guarded by Driver.mu.
type fastState struct {
	value   fastValue // as it stands in the kernel
	next    uint32    // epoch that is, or is to begin
	begun   bool      // it has held
	resting bool      // no epoch holds: the last one ended too recently
	began   time.Time // of the last epoch
	checked time.Time
	uplinks map[string]*fastUplink // by name
	denied  map[string]string      // why the kernel refused to attach, by name
	hops    hopKeeper
}

// uplinkSlot is where an uplink stands in the fast path's maps.
func uplinkSlot(ifindex int) uint32 { return uint32(ifindex) % maxUplinks }

// checkUplinks finds out what the fast path can do with the uplinks.
func (d *Driver) checkUplinks(c *onpath.DatapathConfig, now *kernel) map[string]*fastUplink {
	out := map[string]*fastUplink{}
	if c.Edge == nil {
		return out
	}
	slots := map[uint32]string{}
	for _, u := range c.Edge.Uplinks {
		f := &fastUplink{uplink: u, dev: now.devices[u.Device]}
		f.ability = d.ability(&f.uplink, f.dev)
		p := uplinkSlot(f.dev.index)
		if other, taken := slots[p]; taken && f.receives {
			f.ability = ability{why: fmt.Sprintf("its slot in the fast path is taken by uplink %s", other)}
		}
		if f.receives {
			slots[p] = u.Name
		}
		out[u.Name] = f
	}
	return out
}

func (f *fastUplink) portFlags() uint16 {
	var flags uint16
	if f.sends {
		flags |= portCarries
	}
	if f.frags {
		flags |= portFrags
	}
	return flags
}

// attachFast attaches the fast path where it can work. What stands in its way is
// told, but is no error: tc does it all.
func (d *Driver) attachFast(want *state) error {
	denied := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(want.fast)) {
		f := want.fast[name]
		a := attachment{hookFast, f.dev.index}
		if !f.receives {
			continue
		}
		if err := d.att.attach(a); err != nil {
			denied[name] = whyNot(f.uplink.Device, err)
			if d.fast.denied[name] == "" {
				d.opts.Log.Warn("the fast path is not on an uplink", "uplink", name, "why", denied[name], "error", err)
			}
			continue
		}
		want.attach[a] = true
	}
	d.fast.uplinks, d.fast.denied = want.fast, denied
	for p, u := range want.uplinks {
		u.Fast = d.fast.value
		want.uplinks[p] = u
	}
	if err := d.maps.uplinks.putAll(want.uplinks); err != nil {
		return err
	}
	return d.maps.uplinks.retain(want.uplinks)
}

// whyNot puts the kernel's refusal into words.
func whyNot(device string, err error) string {
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Sprintf("another XDP program is on %s; ip link show dev %s names it", device, device)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Sprintf("the driver of %s has no XDP", device)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		return fmt.Sprintf("the driver of %s refuses XDP as the device is set up now (MTU, LRO or number of queues); the kernel's log says what it minds", device)
	}
	return fmt.Sprintf("the kernel refuses XDP on %s: %v", device, err)
}

// newEpoch makes all that is known about next hops void. d.mu is held.
func (d *Driver) newEpoch() error {
	f := &d.fast
	if f.begun || f.next == 0 {
		f.next, f.begun = f.next%epochs+1, false
	}
	f.resting = time.Since(f.began) < epochRest
	return d.writeFast()
}

// writeFast tells the programs the epoch and the lease. d.mu is held.
func (d *Driver) writeFast() error {
	f := &d.fast
	v := fastValue{Lease: uint32((monotonic()+uint64(leaseTime))/uint64(time.Second)) & secondMask}
	node := d.maps.nodes.now[0]
	seen := node.Capture != 0 && node.Capture == node.Edge || node.Watch != 0 // tc sees to it
	if !f.resting && !seen && len(d.maps.uplinks.now) > 0 {
		v.Epoch = f.next
	}
	if v.Epoch != 0 && v.Epoch != f.value.Epoch {
		f.began, f.begun = time.Now(), true
	}
	f.value = v
	errs := []error{d.maps.fasts.put(0, v)}
	for p, u := range d.maps.uplinks.now {
		u.Fast = v
		errs = append(errs, d.maps.uplinks.put(p, u))
	}
	return errors.Join(errs...)
}

// fastLoop renews the lease, ends rests, and watches what the devices can do.
func (d *Driver) fastLoop(ctx context.Context) {
	tick := time.NewTicker(epochRest)
	defer tick.Stop()
	var leased time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			due := now.Sub(leased) >= leaseEvery
			if due {
				leased = now
			}
			if err := d.tendFast(due); err != nil && ctx.Err() == nil {
				d.opts.Log.Warn("the fast path may pause", "error", err)
			}
		}
	}
}

func (d *Driver) tendFast(lease bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil || d.state == nil {
		return nil // what a process before us left keeps its last lease until Apply
	}
	f := &d.fast
	var err error
	if time.Since(f.checked) >= checkEvery && len(f.uplinks) > 0 {
		f.checked = time.Now()
		err = d.ns.do(func() error { return errors.Join(d.checkUplinksAgain(), d.tendHops()) })
	}
	if len(d.state.vports) > 0 {
		err = errors.Join(err, d.ns.do(d.checkPeersAgain))
	}
	if f.resting && time.Since(f.began) >= epochRest {
		f.resting = false
		lease = true
	}
	if lease {
		err = errors.Join(err, d.writeFast())
	}
	return err
}

// checkUplinksAgain notices devices that can do more or less than before: a peer's
// offloads, a queueing discipline, another's XDP program that is gone.
func (d *Driver) checkUplinksAgain() error {
	changed := false
	var errs []error
	for name, f := range d.fast.uplinks {
		a := d.ability(&f.uplink, f.dev)
		if d.fast.denied[name] != "" && a.receives && d.freeXDP(f.dev.index) {
			delete(d.fast.denied, name)
			errs = append(errs, d.attachFast(d.state))
		}
		if a == f.ability {
			continue
		}
		if f.why != a.why {
			d.opts.Log.Info("the fast path's use of an uplink changes", "uplink", name, "sends", a.sends, "why", a.why)
		}
		a.receives = f.receives
		f.ability, changed = a, true
		v := d.state.ports[uint32(f.dev.index)]
		v.Flags = v.Flags&^(portCarries|portFrags) | f.portFlags()
		d.state.ports[uint32(f.dev.index)] = v
		errs = append(errs, d.maps.ports.put(uint32(f.dev.index), v))
	}
	if changed {
		errs = append(errs, d.newEpoch())
	}
	return errors.Join(errs...)
}

// freeXDP tells whether no program is on a device's XDP.
func (d *Driver) freeXDP(ifindex int) bool {
	l, err := d.ns.nl.LinkByIndex(ifindex)
	return err == nil && (l.Attrs().Xdp == nil || !l.Attrs().Xdp.Attached)
}

// Uplinks tells where the fast path is, and why not elsewhere.
func (d *Driver) Uplinks() (map[string]onpath.UplinkCounters, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.coll == nil {
		return nil, nil
	}
	return d.uplinkCounters()
}

// uplinkCounters reads the fast path's counters. d.mu is held.
func (d *Driver) uplinkCounters() (map[string]onpath.UplinkCounters, error) {
	if len(d.fast.uplinks) == 0 {
		return nil, nil
	}
	out := map[string]onpath.UplinkCounters{}
	for name, f := range d.fast.uplinks {
		c := onpath.UplinkCounters{Fast: d.att.links[attachment{hookFast, f.dev.index}] != nil, Why: f.why}
		if why := d.fast.denied[name]; why != "" {
			c.Why = why
		}
		n, err := d.readUplink(uplinkSlot(f.dev.index))
		if err != nil {
			return nil, fmt.Errorf("read counters of uplink %s: %w", name, err)
		}
		c.Carried, c.Ran, c.PassedOn = n.Ran, n.Ran, n.PassedOn
		out[name] = c
	}
	return out, nil
}

// readUplink sums up the counters of a slot. They belong to it, not to the
// device: what an earlier uplink carried still counts for the edge.
func (d *Driver) readUplink(p uint32) (sum uplinkCounters, err error) {
	var perCPU []uplinkCounters
	if err := d.coll.Maps["uplink_stats"].Lookup(p, &perCPU); err != nil {
		return sum, err
	}
	for _, n := range perCPU {
		sum.PassedOn += n.PassedOn
		sum.Ran += n.Ran
	}
	return sum, nil
}
