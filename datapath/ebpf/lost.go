package ebpf

import (
	"fmt"

	"github.com/onpath/onpath"
)

// readDevices adds what the devices of instances lost by themselves. Those of a
// device that goes just now stay unknown.
func (d *Driver) readDevices(c *onpath.Counters) error {
	links, err := dump(d.ns.nl.LinkList)
	if err != nil {
		return fmt.Errorf("read the counters of devices: %w", err)
	}
	of := map[string]onpath.VportID{}
	for _, v := range d.maps.vports.now {
		if v.Kind == vportInstance {
			id := onpath.VportID(v.ID)
			of[onpath.DeviceName(id)] = id
		}
	}
	for _, l := range links {
		a := l.Attrs()
		id, ok := of[a.Name]
		if !ok || a.Statistics == nil {
			continue
		}
		v := c.Vports[id]
		v.Device = &onpath.DeviceDrops{
			Out: a.Statistics.TxDropped + a.Statistics.TxErrors,
			In:  a.Statistics.RxDropped + a.Statistics.RxErrors,
		}
		c.Vports[id] = v
	}
	return nil
}
