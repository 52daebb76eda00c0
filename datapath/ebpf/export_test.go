package ebpf

import (
	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// SetSmallTable sets the size of a table from which on it is a forest, and gives
// the one before.
func SetSmallTable(n int) int {
	was := smallTable
	smallTable = n
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

// Forests are the places of forests in the kernel.
func (d *Driver) Forests() (list []uint32) {
	var place, id uint32
	it := d.coll.Maps["forests"].Iterate()
	for it.Next(&place, &id) {
		list = append(list, place)
	}
	return list
}

// Orphan leaves a forest to which nothing points, as a process does that dies
// before it switched.
func (d *Driver) Orphan(place uint32) error {
	spec := d.maps.tables.inner.Copy()
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return err
	}
	defer m.Close()
	return d.maps.tables.forests.Put(place, m)
}

// Program is what is attached.
func (d *Driver) Program() *ebpf.Program { return d.coll.Programs[program] }
