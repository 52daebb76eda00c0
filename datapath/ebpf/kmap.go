package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// kmap is a configuration map of the kernel with a copy of what is in it, so
// that only differences are written. In arrays, the zero value means absent.
type kmap[K, V comparable] struct {
	name string
	m    *ebpf.Map
	now  map[K]V
}

// openMap reads what an earlier process left in the map.
func openMap[K, V comparable](c *ebpf.Collection, name string) (*kmap[K, V], error) {
	k := &kmap[K, V]{name: name, m: c.Maps[name], now: map[K]V{}}
	if k.m == nil {
		return nil, fmt.Errorf("the compiled data path has no map %s", name)
	}
	if err := k.read(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", name, err)
	}
	return k, nil
}

// read takes up what the kernel's map holds.
func (k *kmap[K, V]) read() error {
	if isArray(k.m) {
		return k.readArray()
	}
	var key K
	var value V
	it := k.m.Iterate()
	for it.Next(&key, &value) {
		k.now[key] = value
	}
	return it.Err()
}

// readArray reads many elements at a time: an array has thousands, nearly all of
// them zero, and an agent that starts must not ask for each.
func (k *kmap[K, V]) readArray() error {
	var zero V
	size := min(int(k.m.MaxEntries()), 4096)
	keys, values := make([]K, size), make([]V, size)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := k.m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i := range n {
			if values[i] != zero {
				k.now[keys[i]] = values[i]
			}
		}
		if err != nil {
			return nil // all have been read
		}
	}
}

func isArray(m *ebpf.Map) bool { return m.Type() == ebpf.Array || m.Type() == ebpf.PerCPUArray }

func (k *kmap[K, V]) put(key K, v V) error {
	if old, ok := k.now[key]; ok && old == v {
		return nil
	}
	if err := k.m.Put(key, v); err != nil {
		return fmt.Errorf("write map %s: %w", k.name, err)
	}
	k.now[key] = v
	return nil
}

func (k *kmap[K, V]) delete(key K) error {
	if _, ok := k.now[key]; !ok {
		return nil
	}
	var err error
	if isArray(k.m) {
		var zero V
		err = k.m.Put(key, zero)
	} else {
		err = k.m.Delete(key)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete from map %s: %w", k.name, err)
	}
	delete(k.now, key)
	return nil
}

// putAll writes what is new or different in want.
func (k *kmap[K, V]) putAll(want map[K]V) error {
	for key, v := range want {
		if err := k.put(key, v); err != nil {
			return err
		}
	}
	return nil
}

// retain deletes what is not in want.
func (k *kmap[K, V]) retain(want map[K]V) error {
	for key := range k.now {
		if _, ok := want[key]; !ok {
			if err := k.delete(key); err != nil {
				return err
			}
		}
	}
	return nil
}
