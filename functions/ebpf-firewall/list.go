package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
)

// listKey is struct listed.
type listKey [4 + 16]byte

// listEntries are entries of the table listed.
type listEntries struct {
	keys   []listKey
	values []uint32
}

func (l *listEntries) add(p netip.Prefix, listed uint32) {
	l.put(listKeyOf(p), listed)
}

func (l *listEntries) put(k listKey, v uint32) {
	l.keys, l.values = append(l.keys, k), append(l.values, v)
}

func listKeyOf(p netip.Prefix) (k listKey) {
	p = mapped(p)
	binary.NativeEndian.PutUint32(k[:4], uint32(p.Bits()))
	a := p.Addr().As16()
	copy(k[4:], a[:])
	return k
}

// listChange is what makes another list of the one in force.
type listChange struct {
	added  listEntries // what the table lacks, and what it has with another value
	fresh  []listKey   // of added: what the table lacks
	former listEntries // of added: the values before
	gone   listEntries // what the table has beyond
}

// difference is the change from the list in the table listed.
func difference(m *ebpf.Map, list []netip.Prefix) (*listChange, error) {
	var want listEntries
	if len(list) > 0 {
		if list[0].Bits() > 0 || !list[0].Addr().Is4() {
			want.add(netip.PrefixFrom(netip.IPv4Unspecified(), 0), 0) // so that no IPv6 prefix holds IPv4's
		}
		for _, p := range list {
			want.add(p, 1)
		}
	}
	have, err := inForce(m, len(want.keys))
	if err != nil {
		return nil, fmt.Errorf("read the list in force: %w", err)
	}
	c := &listChange{}
	for i, k := range want.keys {
		v, ok := have[k]
		if !ok || v != want.values[i] {
			c.added.put(k, want.values[i])
		}
		if !ok {
			c.fresh = append(c.fresh, k)
		} else if v != want.values[i] {
			c.former.put(k, v)
		}
		delete(have, k)
	}
	for k, v := range have {
		c.gone.put(k, v)
	}
	return c, nil
}

// shrink takes out what is gone.
func (c *listChange) shrink(m *ebpf.Map) error {
	for some := range slices.Chunk(c.gone.keys, batch) {
		if _, err := m.BatchDelete(some, nil); err != nil {
			return fmt.Errorf("take %d addresses out of the list: %w", len(c.gone.keys), err)
		}
	}
	return nil
}

// forget takes back what was added, as far as it came into the table.
func (c *listChange) forget(m *ebpf.Map) error {
	if err := c.former.write(m); err != nil {
		return err
	}
	for _, k := range c.fresh {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("take %d addresses out of the list again: %w", len(c.fresh), err)
		}
	}
	return nil
}

// inForce is what the table listed has.
func inForce(m *ebpf.Map, room int) (map[listKey]uint32, error) {
	have := make(map[listKey]uint32, room)
	keys, values := make([]listKey, batch), make([]uint32, batch)
	var at ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&at, keys, values, nil)
		for i := range n {
			have[keys[i]] = values[i]
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return have, nil
		case err != nil:
			return nil, err
		}
	}
}

// batch is how many entries one system call takes.
const batch = 4096

func (l *listEntries) write(m *ebpf.Map) error {
	for i := 0; i < len(l.keys); i += batch {
		end := min(i+batch, len(l.keys))
		if _, err := m.BatchUpdate(l.keys[i:end], l.values[i:end], nil); err != nil {
			return fmt.Errorf("add %d addresses to the list: %w", len(l.keys), err)
		}
	}
	return nil
}
