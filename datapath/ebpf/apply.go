package ebpf

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// kernelMaps are the maps of the configuration.
type kernelMaps struct {
	nodes     *kmap[uint32, nodeValue]
	vports    *kmap[uint32, vportValue]
	rates     *kmap[uint32, rateValue]
	slots     *kmap[uint32, uint32]
	ports     *kmap[uint32, portValue]
	owns      *kmap[ownKey, uint32]
	locals    *kmap[addrKey, uint32]
	peers     *kmap[uint32, peerValue]
	peerAddrs *kmap[addrKey, peerRef]
	groups    *kmap[uint32, groupValue]
	functions *kmap[uint32, functionValue]
	weights   *kmap[weightsKey, weightsValue]
	paths     *kmap[uint32, pathValue]
	uplinks   *kmap[uint32, uplinkValue]
	fasts     *kmap[uint32, fastValue]
	punts     *kmap[uint32, puntValue]
	tenants   *ebpf.Map
	quotas    *ebpf.Map
	tables    *tableSpace
	prefilter *prefilter
}

func openMaps(c *ebpf.Collection, spec *ebpf.CollectionSpec) (*kernelMaps, error) {
	m := &kernelMaps{tenants: c.Maps["tenants"], quotas: c.Maps["quotas"]}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	m.nodes = opened[uint32, nodeValue](c, "nodes", note)
	m.vports = opened[uint32, vportValue](c, "vports", note)
	m.rates = opened[uint32, rateValue](c, "rates", note)
	m.slots = opened[uint32, uint32](c, "slots", note)
	m.ports = opened[uint32, portValue](c, "ports", note)
	m.owns = opened[ownKey, uint32](c, "owns", note)
	m.locals = opened[addrKey, uint32](c, "locals", note)
	m.peers = opened[uint32, peerValue](c, "peers", note)
	m.peerAddrs = opened[addrKey, peerRef](c, "peer_addrs", note)
	m.groups = opened[uint32, groupValue](c, "groups", note)
	m.uplinks = opened[uint32, uplinkValue](c, "uplinks", note)
	m.fasts = opened[uint32, fastValue](c, "fasts", note)
	m.punts = opened[uint32, puntValue](c, "punts", note)
	m.weights = opened[weightsKey, weightsValue](c, "weights", note)
	m.paths = opened[uint32, pathValue](c, "paths", note)
	m.functions = opened[uint32, functionValue](c, "functions", note)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var err error
	if m.prefilter, err = openPrefilter(c); err != nil {
		return nil, err
	}
	m.tables, err = openTables(c, spec)
	return m, err
}

func opened[K, V comparable](c *ebpf.Collection, name string, note func(error)) *kmap[K, V] {
	m, err := openMap[K, V](c, name)
	note(err)
	return m
}

// Apply implements onpath.Datapath.
func (d *Driver) Apply(ctx context.Context, c *onpath.DatapathConfig) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if err := c.Fits(); err != nil {
		return err
	}
	if err := supported(c); err != nil {
		return err
	}
	d.mu.Lock()
	s := d.succession
	d.mu.Unlock()
	s.awaitEntries(ctx) // without the lock
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.errClosed()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.coll == nil {
		if err := d.open(); err != nil {
			return err
		}
	}
	return d.ns.do(func() error { return d.apply(c) })
}

func (d *Driver) apply(c *onpath.DatapathConfig) error {
	now, err := d.devicesFor(c)
	if err != nil {
		return err
	}
	if now.underlay == 0 || now.inside == 0 {
		c = c.WithoutPeers(now.lacks)
	}
	if err := d.link(c); err != nil {
		return err
	}
	d.checkPeers(c, now)
	want, err := compile(c, &d.slots, now, d.maps, d.checkUplinks(c, now), d.linked)
	if err != nil {
		return err
	}
	if err := d.maps.tables.prepare(want.tables); err != nil {
		return err
	}
	d.rereadExits()
	d.keepEnded(want)
	want.node.Capture, want.node.CaptureLength = d.capturing()
	want.node.Watch = d.watching()
	in := d.maps.nodes.now[0]
	want.node.Generation, want.node.Since = in.Generation, in.Since
	if now.punt != 0 { // before what leads there
		if err := d.applyPunt(c.Punt, now.punt, maySleep(c)); err != nil {
			return err
		}
	}
	if err := d.countAnew(d.state, want); err != nil {
		return err
	}
	if err := d.applyState(want); err != nil {
		err = errors.Join(err, d.maps.tables.remove(want.tables))
		if d.state != nil {
			err = errors.Join(err, d.applyState(d.state))
		}
		return err
	}
	if d.keepEnded(want) { // meanwhile
		if err := d.maps.vports.putAll(want.vports); err != nil {
			return err
		}
	}
	if now.punt == 0 {
		if err := d.applyPunt(nil, 0, false); err != nil {
			return err
		}
	}
	if lost := lostGroups(d.state, want); len(lost) > 0 {
		ctx := d.life
		d.done.Go(func() {
			if err := d.resetWaiting(ctx, want, lost); err != nil && ctx.Err() == nil {
				d.opts.Log.Warn("connections of a lost instance may wait until they speak", "error", err)
			}
		})
	}
	d.state = want
	return d.maps.prefilter.beginIfEmpty(d.coll.Maps[flowsMap])
}

// devicesFor reads the devices, and makes the tunnel's.
func (d *Driver) devicesFor(c *onpath.DatapathConfig) (*kernel, error) {
	now, err := look(d.ns.nl)
	if err != nil {
		return nil, err
	}
	if c.Punt != nil || maySleep(c) {
		if now.punt, err = needPunt(d.ns.nl); err != nil {
			return nil, err
		}
	}
	if len(c.Peers) > 0 && c.Underlay.Address.IsValid() {
		now.findUnderlay(c)
	}
	if now.underlay == 0 && now.inside == 0 {
		// The program stays on what there may be of a tunnel: without it the kernel
		// itself would take what comes there.
		now.tunnel = now.devices[tunnelDevice].index
	} else if err := now.needTunnel(d.ns.nl, tunnelPort(c.Underlay)); err != nil {
		return nil, err
	}
	d.tellUnderlay(c, !slices.ContainsFunc(c.Peers, now.lacks))
	if c.Edge == nil {
		return now, nil
	}
	for _, u := range c.Edge.Uplinks {
		if _, ok := now.devices[u.Device]; !ok {
			e := onpath.Errorf(onpath.CodeInvalid, "uplink %s: there is no device %s", u.Name, u.Device)
			e.Remedy = "name a device of this machine (ip link shows them)"
			return nil, e
		}
	}
	return now, nil
}

// tellUnderlay logs that peers count as lost because the underlay's address is not
// there, and the end of that.
func (d *Driver) tellUnderlay(c *onpath.DatapathConfig, there bool) {
	switch {
	case !there && !d.alone:
		d.opts.Log.Warn("no device has the underlay address, or the one inside WireGuard: other nodes' instances count as lost",
			"address", c.Underlay.Address, "inside", c.Inside)
	case d.alone && there:
		d.opts.Log.Info("the underlay address is there again", "address", c.Underlay.Address, "inside", c.Inside)
	}
	d.alone = !there
}

// supported refuses uplinks that do not fit together.
func supported(c *onpath.DatapathConfig) error {
	if c.Edge == nil {
		return nil
	}
	sides, hosts := map[onpath.Side]int{}, 0
	for _, u := range c.Edge.Uplinks {
		switch u.Attach {
		case onpath.AttachRouter, onpath.AttachArm, onpath.AttachTap:
		case onpath.AttachBridge:
			sides[u.Side]++
		case onpath.AttachHost:
			hosts++
		default:
			return onpath.Errorf(onpath.CodeUnsupported, "uplink %s: attach: %s is not supported by this version", u.Name, u.Attach)
		}
	}
	if n := len(sides); n != 0 && (n != 2 || sides[onpath.SideAccess] != 1 || sides[onpath.SideCore] != 1) {
		e := onpath.Errorf(onpath.CodeInvalid, "a bridge has two uplinks, one on each side")
		e.Remedy = "write two uplinks with attach: bridge, one with side: core and one with side: access"
		return e
	}
	if hosts > 1 {
		e := onpath.Errorf(onpath.CodeUnsupported,
			"%d uplinks have attach: host; the data path knows one device by which packets reach this machine", hosts)
		e.Remedy = "name the device of the default route, and no other"
		return e
	}
	return nil
}

// applyState makes the maps what want says: first everything that is new, from what
// is pointed at to what points, the classifiers and the programs on uplinks last;
// then what is gone, the other way round. No packet meets half a chain.
func (d *Driver) applyState(want *state) error {
	before, opens := d.maps.tables.writes, d.maps.opensBypassed(want)
	steps := []func(*state) error{
		d.addTargets, d.addTables, d.switchOver, d.attachAll,
		func(*state) error { return d.succession.end(d.life, d.coll.Maps[flowsMap]) },
		d.drainEnded, d.detach, d.endPaths, d.leaveFunctions, d.dropTargets,
		func(*state) error { return d.maps.tables.settle() },
		func(*state) error { return forgetPast(d.opts.dir()) },
	}
	for _, step := range steps {
		if err := step(want); err != nil {
			return err
		}
	}
	d.giveUpSlots(want)
	if err := errors.Join(d.giveUpTenants(want), d.maps.beginGeneration(opens || before != d.maps.tables.writes, &d.round)); err != nil {
		return err
	}
	return d.newEpoch()
}

func (d *Driver) addTargets(want *state) error {
	m := d.maps
	return firstError(
		func() error { return d.clearCounters(want) },
		func() error { return d.putTenants(want.tenants) },
		func() error {
			if want.node.NATCount == 0 {
				return nil
			}
			return reservePorts(d.ns, d.opts.dir())
		},
		func() error { return m.peers.putAll(want.peers) },
		func() error { return m.peerAddrs.putAll(want.peerAddrs) },
		func() error { return m.paths.putAll(want.paths) },
		func() error { return m.functions.putAll(want.functions) },
		func() error { return m.rates.putAll(want.rates) },
		func() error { return m.vports.putAll(want.vports) },
		func() error { return m.slots.putAll(want.slots) },
		func() error {
			for own := range want.owns {
				m.prefilter.addAddress(own.Addr)
			}
			return m.owns.putAll(want.owns)
		},
		func() error { return m.ports.putAll(want.ports) },
	)
}

func (d *Driver) addTables(want *state) error {
	m := d.maps
	want.reclassifies = d.reclassifies(want)
	if err := m.tables.plant(want.tables); err != nil {
		return err
	}
	for id, t := range want.tables {
		if !isClassifier(id) {
			if err := m.tables.put(id, t); err != nil {
				return err
			}
		}
	}
	if err := m.weights.putAll(want.weights); err != nil {
		return err
	}
	if err := m.groups.putAll(want.groups); err != nil {
		return err
	}
	if err := d.establishPending(want); err != nil {
		return err
	}
	for id, t := range want.tables {
		if isClassifier(id) {
			if d.state == nil || !m.tables.has(id, t.sum) {
				m.prefilter.addRules(t)
			}
			if err := m.tables.put(id, t); err != nil {
				return err
			}
		}
	}
	if err := m.nodes.put(0, want.node); err != nil {
		return err
	}
	return d.establishPending(want)
}

func isClassifier(id onpath.TableID) bool {
	return id <= onpath.ClassifierTable(onpath.TierTenant)
}

// switchOver ends the time of an older version's maps: the new ones are complete.
func (d *Driver) switchOver(*state) error {
	if !d.succession.waits() {
		return nil
	}
	if err := d.succession.takeEntries(d.life, d.coll.Maps[flowsMap]); err != nil {
		return err
	}
	return d.succession.turn()
}

// attachAll puts the program on uplinks last: by then all others are ready.
func (d *Driver) attachAll(want *state) error {
	for _, uplinks := range []bool{false, true} {
		for a := range want.attach {
			if (want.ports[uint32(a.ifindex)].Kind == portUplink) != uplinks {
				continue
			}
			if a.hook == hookFast {
				continue // attachFast's
			}
			if err := d.ready(a.ifindex, want.names[a.ifindex]); err != nil {
				return err
			}
			if err := d.att.attach(a); err != nil {
				return err
			}
		}
	}
	return d.attachFast(want)
}

func (d *Driver) detach(want *state) error { return d.att.retain(want.attach) }

// ready lets route look-ups begin at an instance's device, for exit: last.
func (d *Driver) ready(ifindex int, name string) error {
	if name == "" || d.readied[ifindex] {
		return nil
	}
	d.readied[ifindex] = true
	return forwarding(name)
}

func (d *Driver) dropTables(want *state) error {
	if err := d.maps.tables.retain(want.tables); err != nil {
		return err
	}
	if err := d.maps.groups.retain(want.groups); err != nil {
		return err
	}
	return d.maps.weights.retain(want.weights)
}

func (d *Driver) dropTargets(want *state) error {
	m := d.maps
	return firstError(
		func() error { return m.ports.retain(want.ports) },
		func() error { return m.owns.retain(want.owns) },
		func() error { return m.slots.retain(want.slots) },
		func() error { return m.rates.retain(want.rates) },
		func() error { return m.vports.retain(want.vports) },
		func() error { return m.functions.retain(want.functions) },
		func() error { return d.unlink(want.functions) },
		func() error { return m.peerAddrs.retain(want.peerAddrs) },
		func() error { return m.peers.retain(want.peers) },
	)
}

// giveUpSlots frees the slots of what is no longer configured.
func (d *Driver) giveUpSlots(want *state) {
	d.slots.vports.retain(func(id onpath.VportID) bool { _, ok := want.slots[uint32(id)]; return ok })
	d.slots.peers.retain(func(a addrKey) bool { _, ok := want.peerAddrs[a]; return ok })
	d.slots.paths.retain(func(p onpath.PathID) bool { return want.paths[d.slots.paths.of[p]].ID == uint32(p) })
}

// clearCounters sets the counters of newly given slots to zero.
func (d *Driver) clearCounters(want *state) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	for _, slot := range want.freshVports {
		if err := d.coll.Maps["vport_stats"].Put(slot, make([]vportCounters, cpus)); err != nil {
			return fmt.Errorf("clear counters: %w", err)
		}
		if slot != want.node.EdgeSlot {
			continue
		}
		for p := range uint32(maxUplinks) {
			if err := d.coll.Maps["uplink_stats"].Put(p, make([]uplinkCounters, cpus)); err != nil {
				return fmt.Errorf("clear counters: %w", err)
			}
		}
	}
	for _, slot := range want.freshPaths {
		if err := d.coll.Maps["path_stats"].Put(slot, make([]pathCounters, cpus)); err != nil {
			return fmt.Errorf("clear counters: %w", err)
		}
	}
	want.freshVports, want.freshPaths = nil, nil
	return nil
}

// clearTenant sets a tenant's counters to zero.
func (d *Driver) clearTenant(slot uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	if err := d.coll.Maps["tenant_stats"].Put(slot, make([]tenantCounters, cpus)); err != nil {
		return fmt.Errorf("clear counters of a tenant: %w", err)
	}
	return nil
}

func firstError(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
