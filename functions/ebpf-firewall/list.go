package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

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
	l.keys, l.values = append(l.keys, listKeyOf(p)), append(l.values, listed)
}

func listKeyOf(p netip.Prefix) (k listKey) {
	p = mapped(p)
	binary.NativeEndian.PutUint32(k[:4], uint32(p.Bits()))
	a := p.Addr().As16()
	copy(k[4:], a[:])
	return k
}

// difference is what the table listed lacks of a list, and what it has beyond.
func difference(m *ebpf.Map, list []netip.Prefix) (added listEntries, gone []listKey, err error) {
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
		return added, nil, fmt.Errorf("read the list in force: %w", err)
	}
	for i, k := range want.keys {
		if v, ok := have[k]; !ok || v != want.values[i] {
			added.keys, added.values = append(added.keys, k), append(added.values, want.values[i])
		}
		delete(have, k)
	}
	for k := range have {
		gone = append(gone, k)
	}
	return added, gone, nil
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
