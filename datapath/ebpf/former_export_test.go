package ebpf

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// emptyAtFormer are maps whose contents a former program does without: it forwards
// established flows, which need no tables.
var emptyAtFormer = []string{"scratch", "frags", "watches", "watch_stats", "table_ids", "tables", "rules", "captures", "buckets", formerFlows}

// BecomeFormer closes the driver and leaves all as an older version would have,
// whose compiled programs are given: the programs on the devices, the pinned maps
// in its layouts, and the flows learnt so far in them.
func (d *Driver) BecomeFormer(object []byte) error {
	entries := map[formerKey]formerFlow{}
	d.mu.Lock()
	r, edge, tables := newReader(d.maps, nil), d.maps.nodes.now[0].Edge, flowTables{d.coll.Maps[flowsMap]}
	attached, noTCX := slices.Collect(maps.Keys(d.state.attach)), d.att.noTCX
	for _, m := range d.pending.of {
		tables = append(tables, m)
	}
	err := tables.each(d.life, func(k *flowKey, v *flowValue) bool {
		entries[formerOf(k)] = formerValue(v, r, edge)
		return true
	})
	d.mu.Unlock()
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	c, err := formerMaps(object, d.opts.dir(), entries)
	if err != nil {
		return err
	}
	defer c.Close()
	ns, err := currentNamespace()
	if err != nil {
		return err
	}
	defer ns.close()
	as := &attachments{ns: ns, prog: c.Programs[program]}
	for _, a := range attached {
		file := filepath.Join(d.opts.dir(), a.file())
		switch {
		case a.hook == hookFast:
			err = os.Remove(file) // it had none
		case noTCX:
			err = as.attachFilter(a)
		default:
			err = updateLink(file, as.prog)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func updateLink(file string, p *ebpf.Program) error {
	l, err := link.LoadPinnedLink(file, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Update(p)
}

// formerMaps pins the maps of the former programs in the place of today's, with
// what is in these.
func formerMaps(object []byte, dir string, entries map[formerKey]formerFlow) (*ebpf.Collection, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	for name, s := range spec.Maps {
		old, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if err != nil || slices.Contains(emptyAtFormer, name) {
			continue
		}
		now, known := specLayout(s)
		was, both := pinnedLayout(old, now)
		if !known || !both {
			return c, fmt.Errorf("the layouts of map %s are not known", name)
		}
		complete := func(_, key, _ []byte) { narrowKey(now.key, key) }
		if name == natsMap {
			complete = func(_, key, value []byte) { narrowNAT(now.key, key, value) }
		} else if name == "nodes" {
			complete = func(_, _, value []byte) { narrowNode(now.value, value) }
		}
		if err := errors.Join(fill(c.Maps[name], old, now, was, complete), old.Close()); err != nil {
			return c, err
		}
	}
	for k, v := range entries {
		if err := c.Maps[formerFlows].Put(k, v); err != nil {
			return c, err
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return c, err
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), "link-") {
			err = errors.Join(err, os.Remove(filepath.Join(dir, f.Name())))
		}
	}
	for name, m := range c.Maps {
		if name[0] != '.' && !slices.Contains(transient, name) {
			err = errors.Join(err, m.Pin(filepath.Join(dir, name)))
		}
	}
	return c, err
}

// narrowNAT is the contrary of formerNAT.
func narrowNAT(former layout, key, value []byte) {
	f := uint8(6)
	for _, a := range [][]byte{key[4:20], key[20:36], value[:16]} {
		if ip := netip.AddrFrom16([16]byte(a)); ip.Is4In6() {
			b := formerAddress(ip.Unmap())
			copy(a, b[:])
			f = family4
		}
	}
	key[former.fields[".family"].at/8] = f
}

// narrowKey puts an IPv4 address where the former programs look for it.
func narrowKey(former layout, key []byte) {
	at, ok := former.fields[".addr"]
	if !ok {
		return
	}
	a := key[at.at/8 : at.at/8+16]
	if ip := netip.AddrFrom16([16]byte(a)); ip.Is4In6() {
		b := formerAddress(ip.Unmap())
		copy(a, b[:])
	}
}

// narrowNode puts the IPv4 prefixes whose sources are translated where the former
// programs look for them.
func narrowNode(former layout, value []byte) {
	for i := range maxNAT {
		family, addr := former.fields[fmt.Sprintf(".nat[%d].family", i)], former.fields[fmt.Sprintf(".nat[%d].addr", i)]
		mask := former.fields[fmt.Sprintf(".nat[%d].mask", i)]
		if value[family.at/8] != family4 {
			continue
		}
		for _, at := range []uint32{addr.at / 8, mask.at / 8} {
			b := value[at : at+16]
			copy(b, b[12:])
			clear(b[4:])
		}
	}
}

func formerOf(k *flowKey) formerKey {
	src, dst := narrow(k.Src), narrow(k.Dst)
	return formerKey{Scope: unthree(k.Scope), Src: formerAddress(src), Dst: formerAddress(dst), SPort: k.SPort, DPort: k.DPort,
		Proto: k.Proto, Family: family(src)}
}

func formerAddress(a netip.Addr) (b [16]byte) {
	copy(b[:], a.AsSlice())
	return b
}

func formerValue(v *flowValue, r *reader, edge uint32) formerFlow {
	f := formerFlow{
		Kind: v.kind(), Flags: v.Flags &^ flowAtEdge, Slot: v.Slot, Next: unthree(v.Next), Context: unthree(v.Context),
		Group: r.group(v), Entry: v.Entry, Path: r.paths[v.Path], Seen: v.seen(), PathSlot: v.Path,
		Packets: v.packets(), Bytes: v.bytes(),
	}
	if v.Flags&flowAtEdge != 0 {
		f.Ack, f.Entry = v.Entry, 0
		if v.Kind&edgeHere == 0 {
			f.Entry = edge
		}
	}
	return f
}

// Succeeds tells whether an older version goes on until Apply.
func (d *Driver) Succeeds() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.succession != nil
}

// Pinned are the names of what is pinned.
func (d *Driver) Pinned() (names []string, err error) {
	files, err := os.ReadDir(d.opts.dir())
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names, err
}
