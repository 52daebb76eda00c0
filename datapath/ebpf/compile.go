package ebpf

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// state is a configuration in the programs' terms: the wanted content of every
// map, and the programs on devices.
type state struct {
	node      nodeValue
	vports    map[uint32]vportValue
	rates     map[uint32]rateValue // by slot and direction
	slots     map[uint32]uint32
	ports     map[uint32]portValue
	owns      map[ownKey]uint32
	peers     map[uint32]peerValue
	peerAddrs map[addrKey]peerRef
	tables    map[onpath.TableID]*wantedTable
	groups    map[uint32]groupValue
	weights   map[weightsKey]weightsValue
	paths     map[uint32]pathValue
	functions map[uint32]functionValue
	tenants   map[uint32]tenantLimits // by slot
	idle      map[uint16]onpath.Idle  // by the path's slot
	closed    map[uint16]bool         // likewise: nothing enters at the edge any more
	attach    map[attachment]bool
	fast      map[string]*fastUplink // by name
	uplinks   map[uint32]uplinkValue
	names     map[int]string // of the instances' devices, by ifindex
	// reclassifies: rules differ, so pending flows at the edge would not be found.
	reclassifies bool
	// fresh slots, whose counters begin at zero.
	freshVports, freshPaths []uint32
}

// compiler turns a configuration into a state.
type compiler struct {
	c     *onpath.DatapathConfig
	s     *slots
	now   *kernel // devices and addresses as they are
	st    *state
	old   map[uint32]pathValue
	mono  uint64 // ns, now
	peers map[string]uint32
	// linked are the functions in the dispatcher.
	linked map[onpath.VportID]*linked
}

func compile(c *onpath.DatapathConfig, s *slots, now *kernel, m *kernelMaps, fast map[string]*fastUplink, functions map[onpath.VportID]*linked) (*state, error) {
	k := &compiler{
		c: c, s: s, now: now, old: m.paths.now, mono: monotonic(), peers: map[string]uint32{}, linked: functions,
		st: &state{
			functions: map[uint32]functionValue{},
			vports:    map[uint32]vportValue{}, rates: map[uint32]rateValue{}, slots: map[uint32]uint32{}, ports: map[uint32]portValue{},
			owns: map[ownKey]uint32{}, peers: map[uint32]peerValue{}, peerAddrs: map[addrKey]peerRef{},
			tables: map[onpath.TableID]*wantedTable{}, groups: map[uint32]groupValue{},
			weights: map[weightsKey]weightsValue{}, paths: map[uint32]pathValue{},
			tenants: map[uint32]tenantLimits{}, idle: map[uint16]onpath.Idle{}, closed: map[uint16]bool{},
			fast: fast, uplinks: map[uint32]uplinkValue{}, attach: map[attachment]bool{},
			names: map[int]string{},
		},
	}
	for i := range c.Vports {
		if slot, ok := s.vports.of[c.Vports[i].ID]; ok && c.Vports[i].Tenant != "" {
			s.recoverTenant(c.Vports[i].Tenant, uint32(m.vports.now[slot].Tenant))
		}
	}
	for i := range c.Paths {
		if slot, ok := s.paths.of[c.Paths[i].ID]; ok {
			s.recoverTenant(c.Paths[i].Tenant, m.paths.now[slot].Tenant)
		}
	}
	for _, step := range []func() error{k.paths, k.allPeers, k.takeVportSlots, k.edge, k.vports, k.tenantLimits, k.groups, k.tables} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return k.st, nil
}

func (k *compiler) paths() error {
	for _, p := range k.c.Paths {
		slot, fresh, err := k.s.paths.take(p.ID)
		if err != nil {
			return err
		}
		if fresh {
			k.st.freshPaths = append(k.st.freshPaths, slot)
		}
		tenant, err := k.tenant(p.Tenant, tenantLimits{established: uint64(p.MaxFlows)})
		if err != nil {
			return err
		}
		k.st.idle[uint16(slot)] = p.Idle.OrDefault()
		v := pathValue{ID: uint32(p.ID), MTU: uint32(p.MTU), AdoptUntil: k.adoptUntil(&p, k.old[slot]), Tenant: tenant}
		if p.Strict {
			v.Flags |= pathStrict
		}
		if p.Cut {
			v.Flags |= pathCut
		}
		if p.Forward {
			v.Flags |= pathForward
		}
		if !p.Ended.IsZero() {
			v.Flags |= pathEnded
		}
		if p.Closed {
			v.Flags |= pathClosed
			k.st.closed[uint16(slot)] = true
		}
		k.st.paths[slot] = v
	}
	return nil
}

// tenantLimits adds the limits of those that have paths or instances here.
func (k *compiler) tenantLimits() error {
	for _, t := range k.c.Tenants {
		slot, known := k.s.tenants.of[t.Name]
		if l, here := k.st.tenants[slot]; known && here {
			l.begins = uint64(t.MaxNewFlows)
			k.st.tenants[slot] = l
		}
	}
	return nil
}

// tenant is a tenant's slot; its limits are the largest that are said.
func (k *compiler) tenant(name string, l tenantLimits) (uint32, error) {
	slot, _, err := k.s.tenants.take(name)
	if err != nil {
		return 0, err
	}
	old := k.st.tenants[slot]
	k.st.tenants[slot] = tenantLimits{caused: max(old.caused, l.caused), established: max(old.established, l.established)}
	return slot, nil
}

// adoptUntil is the end of adoption on the kernel's clock. One that is under way is never
// put off: what is left was counted when the plan was made.
func (k *compiler) adoptUntil(p *onpath.Path, old pathValue) uint64 {
	underWay := old.ID == uint32(p.ID) && old.AdoptUntil != 0
	switch {
	case p.Began.IsZero():
		return 0
	case k.c.Restored && underWay:
		return old.AdoptUntil
	case k.c.Restored || p.AdoptFor <= 0:
		return 0
	}
	until := k.mono + uint64(p.AdoptFor)
	if underWay && until+uint64(time.Second) > old.AdoptUntil { // messages take a while
		return old.AdoptUntil
	}
	return until
}

func (k *compiler) pathSlot(p onpath.PathID) uint16 { return uint16(k.s.paths.of[p]) }

func (k *compiler) allPeers() error {
	at := func(a netip.Addr) addrKey { return addrKey{wide(a.Unmap()), uint32(family(a.Unmap()))} }
	for _, p := range k.c.Peers {
		key := at(p.Address)
		slot, _, err := k.s.peers.take(key)
		if err != nil {
			return err
		}
		k.peers[p.Node] = slot
		k.st.peers[slot] = peerValue{Addr: key.Addr, Family: key.Family, Secret: p.Secret, Known: 1, MTU: inTunnel(p)}
		ref := peerRef{Secret: p.Secret, Slot: uint16(slot)}
		if p.Inside {
			ref.Flags = peerInside
		}
		k.st.peerAddrs[key] = ref
	}
	return nil
}

// inTunnel is how large an IP packet may be that a tunnel packet to a peer holds: less
// than that by outer IP, UDP, VXLAN and the inner Ethernet header. 0: nobody said.
func inTunnel(p onpath.Peer) uint32 {
	around := 20 + 8 + 8 + 14
	if p.Address.Unmap().Is6() {
		around = 40 + 8 + 8 + 14
	}
	return uint32(max(0, p.MTU-around))
}

// takeVportSlots comes before everything that refers to slots.
func (k *compiler) takeVportSlots() error {
	ids := make([]onpath.VportID, 0, len(k.c.Vports)+1)
	if k.c.Edge != nil {
		ids = append(ids, k.c.Edge.Vport)
	}
	for i := range k.c.Vports {
		ids = append(ids, k.c.Vports[i].ID)
	}
	for _, id := range ids {
		slot, fresh, err := k.s.vports.take(id)
		if err != nil {
			return err
		}
		k.st.slots[uint32(id)] = slot
		if fresh {
			k.st.freshVports = append(k.st.freshVports, slot)
		}
	}
	return nil
}

func (k *compiler) edge() error {
	n := &k.st.node
	n.TunnelIfindex = uint32(k.now.tunnel)
	n.TunnelPort = uint32(tunnelPort(k.c.Underlay))
	n.UnderlayIfindex = uint32(k.now.underlay)
	n.UnderlayFamily = 4
	if a := k.c.Underlay.Address; a.IsValid() {
		n.UnderlayFamily = uint32(family(a.Unmap()))
	}
	if k.now.tunnel != 0 {
		k.st.attach[attachment{hookIngress, k.now.tunnel}] = true
		k.st.ports[uint32(k.now.tunnel)] = k.gatewayAddress(portValue{})
	}
	if k.now.underlay != 0 {
		k.st.attach[attachment{hookIngress, k.now.underlay}] = true
	}
	if k.now.inside != 0 {
		k.st.attach[attachment{hookInside, k.now.inside}] = true
	}
	e := k.c.Edge
	if e == nil {
		return nil
	}
	slot := k.st.slots[uint32(e.Vport)]
	n.Edge, n.EdgeSlot, n.EdgeTable = uint32(e.Vport), slot, uint32(e.Table)
	k.st.vports[slot] = vportValue{ID: uint32(e.Vport), Kind: vportEdge, State: stateUp}
	for i, p := range e.NAT {
		a, m := masked(p)
		n.NAT[i] = natPrefix{Addr: a, Mask: m, Family: uint32(family(p.Addr()))}
	}
	n.NATCount = uint32(len(e.NAT))
	for _, u := range e.Uplinks {
		k.uplink(u, portValue{Vport: uint32(e.Vport), Slot: uint16(slot), Kind: portUplink})
	}
	return nil
}

func (k *compiler) uplink(u onpath.Uplink, v portValue) {
	n, dev := &k.st.node, k.now.devices[u.Device]
	v.MAC = dev.mac
	hook := hookIngress
	switch u.Attach {
	case onpath.AttachHost:
		v.Attach = attachHost
		n.HostIfindex = uint32(dev.index)
		k.st.attach[attachment{hookEgress, dev.index}] = true
	case onpath.AttachTap:
		v.Attach = attachTap
		hook = hookPromiscuous
	case onpath.AttachBridge:
		v.Attach = attachBridge
		n.Bridged = 1
		other := k.otherSide(u)
		v.Opposite = uint32(other.index)
		if dev.master == 0 || dev.master != other.master {
			v.Flags |= portWire // no bridge of the kernel joins the two
			hook = hookPromiscuous
		}
	default:
		v.Attach = attachRouter
		if u.Attach == onpath.AttachArm {
			v.Attach = attachArm
		}
		if n.UplinkIfindex == 0 {
			n.UplinkIfindex = uint32(dev.index)
		}
		if i := slices.Index(n.Routers[:], 0); i >= 0 {
			n.Routers[i] = uint32(dev.index)
		}
	}
	if f := k.st.fast[u.Name]; f != nil {
		v.Flags |= f.portFlags()
		if f.receives {
			k.st.uplinks[uplinkSlot(dev.index)] = uplinkValue{
				Ifindex: uint32(dev.index), Edge: v.Vport, EdgeSlot: uint32(v.Slot), TunnelPort: n.TunnelPort, MAC: dev.mac,
			}
		}
	}
	k.st.ports[uint32(dev.index)] = ownAddress(v, dev)
	delete(k.st.attach, attachment{hookIngress, dev.index}) // the underlay may use the device too
	k.st.attach[attachment{hook, dev.index}] = true
}

// otherSide is the device of a bridge's other uplink.
func (k *compiler) otherSide(u onpath.Uplink) device {
	for _, o := range k.c.Edge.Uplinks {
		if o.Attach == onpath.AttachBridge && o.Side != u.Side {
			return k.now.devices[o.Device]
		}
	}
	return device{}
}

// ownAddress gives a port the first addresses of its device.
func ownAddress(v portValue, dev device) portValue {
	if dev.addr4.IsValid() {
		v.Addr4 = dev.addr4.As4()
	}
	if dev.addr6.IsValid() {
		v.Addr6 = dev.addr6.As16()
	}
	return v
}

// gatewayAddress gives a port without addresses of its own those of the first
// uplink, or the underlay's, or the one that instances know it by: the source of ICMP errors sent there.
func (k *compiler) gatewayAddress(v portValue) portValue {
	var sources []device
	if e := k.c.Edge; e != nil {
		for _, u := range e.Uplinks {
			sources = append(sources, k.now.devices[u.Device])
		}
	}
	sources = append(sources, k.now.underlayDevice)
	v.Addr4, v.Addr6 = instancesGateway4, instancesGateway6
	for _, s := range slices.Backward(sources) {
		v = ownAddress(v, s)
	}
	return v
}

// What instances have as their gateway, if the node has no other address.
var (
	instancesGateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1}).As4()
	instancesGateway6 = netip.MustParseAddr("fe80::1").As16()
)

func (k *compiler) vports() error {
	keys := map[onpath.VportID]uint32{}
	for i := range k.c.Groups {
		for _, m := range k.c.Groups[i].Members {
			keys[m.Vport] = m.Key
		}
	}
	for i := range k.c.Vports {
		p := &k.c.Vports[i]
		slot := k.st.slots[uint32(p.ID)]
		v := vportValue{ID: uint32(p.ID), State: stateNumber(p.State), Key: keys[p.ID]}
		if p.Kind == onpath.VportRemote {
			v.Kind, v.Peer = vportRemote, uint16(k.peers[p.Peer])
			if p.Away {
				v.Flags |= flagAway
			}
			if p.Backup != 0 {
				k.st.node.Gateways = [2]uint32{min(uint32(p.ID), uint32(p.Backup)), max(uint32(p.ID), uint32(p.Backup))}
			}
		} else if p.Kind == onpath.VportFunction {
			if err := k.function(p, slot, &v); err != nil {
				return err
			}
		} else if err := k.instance(p, slot, &v); err != nil {
			return err
		} else {
			k.rates(p, slot)
		}
		if p.Asleep && v.Ifindex != 0 {
			k.asleep(p, slot, &v)
		}
		k.st.vports[slot] = v
	}
	return nil
}

// function gives a function's vport its slot; one that is not linked is closed.
func (k *compiler) function(p *onpath.Vport, slot uint32, v *vportValue) error {
	v.Kind = vportFunction
	tenant, err := k.tenant(p.Tenant, tenantLimits{})
	if err != nil {
		return err
	}
	v.Tenant = uint16(tenant)
	l := k.linked[p.ID]
	if l == nil || l.slot == 0 {
		v.State = stateClosed
		return nil
	}
	v.Ifindex = l.slot
	f := functionValue{Vport: uint32(p.ID), Slot: uint16(slot), Needs: uint16(l.object.Needs), Shard: uint8(l.shard), Tenant: v.Tenant}
	if l.object.Redirects {
		f.Redirects, f.Element = 1, elementOf(k.c, p.ID)
	}
	if v.State != stateClosed {
		f.Open = 1
	}
	k.st.functions[l.slot] = f
	return nil
}

// elementOf is the place, from 1, of a function's instance in its chains, or 0 if
// it is not the same in all.
func elementOf(c *onpath.DatapathConfig, v onpath.VportID) uint8 {
	var at uint8
	for i := range c.Groups {
		g := &c.Groups[i]
		if !slices.ContainsFunc(g.Members, func(m onpath.Member) bool { return m.Vport == v }) {
			continue
		}
		element := uint8(g.ID>>1&31) + 1
		if at != 0 && at != element {
			return 0
		}
		at = element
	}
	return at
}

func stateNumber(s onpath.VportState) uint8 {
	switch s {
	case onpath.VportUp:
		return stateUp
	case onpath.VportDraining:
		return stateDraining
	}
	return stateClosed
}

func (k *compiler) instance(p *onpath.Vport, slot uint32, v *vportValue) error {
	v.Kind = vportInstance
	other := p.Other
	if other == 0 {
		other = p.ID
	}
	v.Other = uint32(other)
	v.Entry, v.Emit = uint32(p.Entry), uint32(p.Emit)
	v.DMAC, v.SMAC = mac(p.MAC), mac(p.HostMAC)
	if p.Attach == onpath.Bridged {
		v.DMAC = mac(onpath.HostMAC(other))
	}
	if p.Mirror {
		v.Flags |= flagMirror
	}
	if p.Routes {
		v.Flags |= flagRoutes
	}
	if p.Tells {
		v.Flags |= flagChainTag
	}
	tenant, err := k.tenant(p.Tenant, tenantLimits{caused: uint64(p.MaxFlows)})
	if err != nil {
		return err
	}
	v.Tenant = uint16(tenant)
	for _, a := range p.Own {
		k.st.owns[ownKey{Vport: uint32(p.ID), Addr: wide(a.Unmap()), Family: family(a.Unmap())}] = 1
	}
	dev, ok := k.now.devices[onpath.DeviceName(p.ID)]
	if !ok {
		if v.State == stateClosed {
			return nil // its device may be on its way
		}
		e := onpath.Errorf(onpath.CodeUnavailable, "vport %d of instance %s has no device %s", p.ID, p.Instance, onpath.DeviceName(p.ID))
		e.Remedy = "make the instance's interfaces before the configuration names them as open"
		return e
	}
	v.Ifindex = uint32(dev.index)
	if dev.direct {
		v.Flags |= flagPeer
	}
	k.st.ports[v.Ifindex] = k.gatewayAddress(portValue{Vport: uint32(p.ID), Slot: uint16(slot), Kind: portInstance, MAC: dev.mac})
	k.st.attach[attachment{hookIngress, dev.index}] = true
	k.st.names[dev.index] = onpath.DeviceName(p.ID)
	return nil
}

func mac(s string) [6]byte {
	var out [6]byte
	if m, err := net.ParseMAC(s); err == nil {
		copy(out[:], m)
	}
	return out
}

func (k *compiler) groups() error {
	for i := range k.c.Groups {
		g := &k.c.Groups[i]
		v := groupValue{
			ID: uint32(g.ID), Path: uint32(g.Path), PathSlot: k.pathSlot(g.Path),
			Then: uint32(g.Then), Back: uint32(g.Back), Count: uint32(len(g.Members)),
		}
		if g.Reverse {
			v.Flags |= groupReverse
		}
		if g.Mode == onpath.ModeMirror {
			v.Flags |= groupMirror
		}
		if g.Lost == onpath.LostReset {
			v.Flags |= groupReset
		}
		if g.None == onpath.NoneBypass || g.Mode == onpath.ModeMirror {
			v.Flags |= groupBypass
		}
		if g.Mode != onpath.ModeMirror && slices.ContainsFunc(g.Members, k.isFunction) {
			v.Flags |= groupInline
		}
		switch g.Together {
		case onpath.TogetherSource:
			v.Flags |= groupSource
		case onpath.TogetherHosts:
			v.Flags |= groupHosts
		}
		for j, m := range g.Members {
			v.Members[j] = memberValue{
				Vport: uint32(m.Vport), Key: m.Key, Weight: m.Weight, Slot: uint16(k.s.vports.of[m.Vport]),
			}
		}
		for _, row := range g.Weights {
			v.Flags |= groupRows
			var w weightsValue
			for j, m := range g.Members { // a row that another list has is known by the keys
				w[j] = row.Weights[j] | m.Key<<rowKey
			}
			k.st.weights[weightsKey{v.ID, row.From}] = w
		}
		k.st.groups[v.ID] = v
	}
	return nil
}

// isFunction reports whether a member is a function of this node.
func (k *compiler) isFunction(m onpath.Member) bool {
	return k.st.vports[k.st.slots[uint32(m.Vport)]].Kind == vportFunction
}

func (k *compiler) tables() error {
	for i := range k.c.Tables {
		t := &k.c.Tables[i]
		w, err := k.plainTable(t)
		if err != nil {
			return err
		}
		k.st.tables[t.ID] = w
	}
	return k.mirrorsFit()
}

// mirrorsFit refuses more mirrors in a row than a flow entry holds.
func (k *compiler) mirrorsFit() error {
	for _, g := range k.st.groups {
		for n, next := 0, g; next.Flags&groupMirror != 0; n++ {
			if n == maxMirrors {
				path, _, _ := onpath.GroupID(g.ID).Split()
				e := onpath.Errorf(onpath.CodeUnsupported, "path %d has more than %d mirrors in a row", path, maxMirrors)
				e.Remedy = "put an inline element between them, or fewer mirrors"
				return e
			}
			then := k.st.tables[onpath.TableID(next.Then)]
			if then == nil || len(then.rules) == 0 || then.rules[0].Action != actGroup {
				break
			}
			next = k.st.groups[then.rules[0].Arg]
		}
	}
	return nil
}

func reasonNumber(r onpath.DropReason) uint32 {
	if i := slices.Index(onpath.DropReasons, r); i >= 0 {
		return uint32(i) + 1
	}
	return reasonNumber(onpath.DropPolicy)
}

func tunnelPort(u onpath.Underlay) uint16 {
	if u.Port != 0 {
		return u.Port
	}
	return onpath.DefaultTunnelPort
}

// localAddresses is the map of the node's own addresses.
func localAddresses(k *kernel) map[addrKey]uint32 {
	out := map[addrKey]uint32{}
	note := func(addrs []netip.Addr, what uint32) {
		for _, a := range addrs {
			a = a.Unmap().WithZone("")
			out[addrKey{wide(a), uint32(family(a))}] = what
		}
	}
	note(k.broadcasts, localBroadcast)
	note(k.addrs, localAddress) // a /32 may be both
	return out
}
