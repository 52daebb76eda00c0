package ebpf

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
)

func init() {
	read := sync.OnceValues(readObject)
	readObject = func() (*ebpf.CollectionSpec, error) {
		spec, err := read()
		return spec.Copy(), err
	}
}

// SetSmallTable sets the size of a table from which on it is a forest, and gives
// the one before.
func SetSmallTable(n int) int {
	was := smallTable
	smallTable = n
	return was
}

// SetSweep sets how often all entries are looked at, and gives what it was.
func SetSweep(every time.Duration) time.Duration {
	was := sweepEvery
	sweepEvery = every
	return was
}

// SetLastOnes sets how long a node without uplinks waits for packets in instances that
// go, and gives what it was.
func SetLastOnes(d time.Duration) time.Duration {
	was := lastOnes
	lastOnes = d
	return was
}

// SetRefreshAlways lets data paths that are opened from now on refresh a flow's entries at
// its next hop with each packet, and gives what it was.
func SetRefreshAlways(always bool) bool {
	was := refreshAlways
	refreshAlways = always
	return was
}

// Run runs the program of devices on a frame that comes in at one of them. It
// must be called in the driver's namespace.
func (d *Driver) Run(frame []byte, ifindex int) (verdict int32, err error) {
	ctx := skb{Ifindex: uint32(ifindex), IngressIfindex: uint32(ifindex)}
	v, err := d.coll.Programs[program].Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: ctx})
	return int32(v), err
}

// Place tells where a table is; it changes when the table is written anew.
func (d *Driver) Place(id onpath.TableID) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.maps.tables.placed[id].where
}

// Forests counts the forests in the kernel.
func (d *Driver) Forests() (n int) {
	for slot := range uint32(200) { // look-ups are slow on older kernels
		var m *ebpf.Map
		if d.coll.Maps["forests"].Lookup(slot, &m) == nil {
			m.Close()
			n++
		}
	}
	return n
}

// Orphan leaves a forest to which nothing points, as a process does that dies
// before it switched.
func (d *Driver) Orphan(slot uint32) error {
	spec := d.maps.tables.inner.Copy()
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return err
	}
	defer m.Close()
	d.maps.tables.rows[slot].Planted = spec.MaxEntries
	return d.maps.tables.forests.Put(slot, m)
}

// Program is what is attached.
func (d *Driver) Program() *ebpf.Program { return d.coll.Programs[program] }

// FastProgram is what is attached to XDP of uplinks.
func (d *Driver) FastProgram() *ebpf.Program { return d.coll.Programs[fastProgram] }

// TunnelDevice is the device that carries the tunnels.
func (d *Driver) TunnelDevice() string { return tunnelDevice }

// SetProgramMaps sets how many maps of their own the functions of one dispatcher may
// bring, and gives what undoes that.
func SetProgramMaps(n int) (undo func()) {
	was := maxProgramMaps
	shared, err := dispatcherMaps()
	if err != nil {
		panic(err)
	}
	maxProgramMaps = shared + n
	return func() { maxProgramMaps = was }
}

// Shards counts the dispatchers that functions are linked in.
func (d *Driver) Shards() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.shards {
		if len(b.list) > 0 {
			n++
		}
	}
	return n
}

// Devices are those that the programs take for the tunnel's and the underlay's, by index.
func (d *Driver) Devices() (tunnel, underlay uint32, err error) {
	var n nodeValue
	err = d.coll.Maps["nodes"].Lookup(uint32(0), &n)
	return n.TunnelIfindex, n.UnderlayIfindex, err
}

// On lists the hooks of a device that the program is at.
func (d *Driver) On(ifindex int) (hooks []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for a, l := range d.att.links {
		if a.ifindex == ifindex && a.holds(l) {
			hooks = append(hooks, string(a.hook))
		}
	}
	if d.att.noTCX {
		a := attachment{hookIngress, ifindex}
		filters, err := d.ns.nl.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}, a.parent())
		if err == nil && slices.ContainsFunc(filters, func(f netlink.Filter) bool { b, ok := f.(*netlink.BpfFilter); return ok && b.Name == a.filter() }) {
			hooks = append(hooks, string(hookIngress))
		}
	}
	slices.Sort(hooks)
	return hooks
}

// Links counts the pinned links, and says whether the programs at tc have some: older
// kernels have filters.
func (d *Driver) Links() (n int, tcx bool) { return len(d.att.links), !d.att.noTCX }

// SetAddressBuffer sets the room for the kernel's messages of addresses, and how often
// these are looked at in any case, and gives what undoes that.
func SetAddressBuffer(bytes int, every time.Duration) (undo func()) {
	was, wasEvery := addressBuffer, refreshEvery
	addressBuffer, refreshEvery = bytes, every
	return func() { addressBuffer, refreshEvery = was, wasEvery }
}

// Locked does something while the driver's loops wait.
func (d *Driver) Locked(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
}

// Own tells whether an address is among the node's own.
func (d *Driver) Own(a netip.Addr) bool {
	var what uint32
	return d.coll.Maps["locals"].Lookup(addrKey{wide(a), uint32(family(a))}, &what) == nil
}

// CountFlows has all entries counted now, as a round does, but removes none.
func (d *Driver) CountFlows() error {
	d.mu.Lock()
	if d.closed || d.coll == nil {
		d.mu.Unlock()
		return nil
	}
	s, err := d.sweepOf(nil, 0)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	defer s.close()
	for s.at = range s.tables {
		err := eachFlow(d.life, s.tables[s.at], func(k *flowKey, v *flowValue) bool { s.tally(k, v); return true })
		if err != nil {
			return err
		}
	}
	return d.recount(s)
}

// ForgetStations has all stations of a bridge forgotten, as a flood of addresses does.
func (d *Driver) ForgetStations() error {
	m := d.coll.Maps["stations"]
	k := make([]byte, m.KeySize())
	for m.NextKey(nil, &k) == nil {
		if err := m.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// FillFlows writes n entries that leave at the edge, as flows of IPv4 that have passed an
// instance do; one in a thousand is for packets of the vport.
func (d *Driver) FillFlows(n int, of onpath.VportID) error {
	keys, values := make([]flowKey, n), make([]flowValue, n)
	now := three(uint32(monotonic() / uint64(time.Second)))
	for i := range n {
		src := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		keys[i] = flowKey{Scope: three[uint32](9), Proto: 17, Src: wide(src), Dst: wide(netip.MustParseAddr("10.9.0.2")), DPort: [2]byte{0, 53}}
		if i%1000 == 0 {
			keys[i].Scope = three(of)
		}
		values[i] = flowValue{Kind: nextExit, Flags: flowAtEdge, Path: 1, Packets: 5, Seen: now}
	}
	_, err := d.coll.Maps[flowsMap].BatchUpdate(keys, values, nil)
	return err
}

// SetLease sets how long the fast path trusts a driver that does not renew its word, and
// gives what it was.
func SetLease(d time.Duration) time.Duration {
	was := leaseTime
	leaseTime = d
	return was
}

// FastRests reports whether the fast path knows no hops for a moment, after a change.
func (d *Driver) FastRests() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fast.resting
}

// ExchangeRow writes the row of a group for what comes from the edge as it would be with
// its first two members exchanged.
func (d *Driver) ExchangeRow(g onpath.GroupID) error {
	k := weightsKey{Group: uint32(g)}
	var w weightsValue
	m := d.coll.Maps["weights"]
	if err := m.Lookup(k, &w); err != nil {
		return err
	}
	w[0], w[1] = w[1], w[0]
	return m.Put(k, w)
}

// SetNATPorts sets how many ports there are for translations, and how many of these are for
// all tenants, and gives what they were.
func SetNATPorts(all, lent uint32) [2]uint32 {
	was := [2]uint32{natRange.count, natShared.count}
	natRange.count, natShared.count = all, lent
	return was
}

// AgeTranslations makes all translations that much older.
func (d *Driver) AgeTranslations(seconds uint32) {
	m := d.coll.Maps[natsMap]
	var keys []flowKey
	var values []natValue
	var k flowKey
	var v natValue
	for it := m.Iterate(); it.Next(&k, &v); {
		v.Seen = v.Seen&^seenMask | (v.Seen-seconds)&seenMask
		keys, values = append(keys, k), append(values, v)
	}
	for i := range keys {
		m.Update(keys[i], values[i], ebpf.UpdateExist)
	}
}

// FlowTableSize is how many established entries there is capacity for.
func (d *Driver) FlowTableSize() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return int(d.coll.Maps[flowsMap].MaxEntries())
}

// Prefilter reports whether the prefilter is on, and whether the byte of an address is set.
func (d *Driver) Prefilter(a netip.Addr) (on, set bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.maps.prefilter
	return c.isDone(), c.cells[cellOf(wide(a))] != 0
}

// ClearPrefilter turns the prefilter off and clears its bytes.
func (d *Driver) ClearPrefilter() {
	d.mu.Lock()
	defer d.mu.Unlock()
	atomic.StoreUint32(d.maps.prefilter.complete, 0)
	clear(d.maps.prefilter.cells)
}

// PutEntry writes an entry at the edge, as another version may have left it.
func (d *Driver) PutEntry(t onpath.Tuple) error {
	k := flowKey{Scope: three(d.maps.nodes.now[0].Edge), Src: wide(t.Src), Dst: wide(t.Dst), Proto: t.Protocol}
	binary.BigEndian.PutUint16(k.SPort[:], t.SrcPort)
	binary.BigEndian.PutUint16(k.DPort[:], t.DstPort)
	return d.coll.Maps[flowsMap].Put(k, flowValue{Kind: nextPass, Packets: 9, Seen: three(uint32(monotonic() / uint64(time.Second)))})
}
