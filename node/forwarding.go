package node

import (
	"fmt"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// forwarding keeps the kernels of instances that get copies only from forwarding: each
// copy would come out again, and who listens there sees each packet twice.
type forwarding struct {
	a *Agent

	mu sync.Mutex
	// set is what was set last, by vport: true where the kernel forwards.
	set map[onpath.VportID]bool
}

// forget has the next round set it again: the instance was wired, as one that forwards.
func (f *forwarding) forget(v onpath.VportID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.set, v)
}

// apply has kernels forward, or with on false forward no more, as the configuration says:
// on before it is in force, off after that.
func (f *forwarding) apply(c *onpath.DatapathConfig, on bool) error {
	ws := f.a.routedWirings()
	f.mu.Lock()
	defer f.mu.Unlock()
	now := make(map[onpath.VportID]bool, len(ws))
	for i := range c.Vports {
		v := &c.Vports[i]
		w, here := ws[v.ID]
		if !here || v.Kind != onpath.VportInstance {
			continue
		}
		forwards, known := f.set[v.ID]
		if known {
			now[v.ID] = forwards
		}
		if on == v.Mirror || known && forwards == on {
			continue
		}
		path := f.a.part.Dir.NetNS(w.ID)
		if !netnsrun.Is(path) {
			continue // it is being made anew, and then wired
		}
		if err := netnsrun.Do(path, func() error { return setAll(w.forwardSysctls(on)) }); err != nil {
			return fmt.Errorf("instance %s: %w", w.ID, err)
		}
		now[v.ID] = on
	}
	f.set = now
	return nil
}

// routedWirings are those of the instances whose kernels may forward, by vport.
func (a *Agent) routedWirings() map[onpath.VportID]wiring {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[onpath.VportID]wiring, len(a.instances))
	for _, in := range a.instances {
		if w := wiringOf(in.id, in.plan); in.wired && w.forwards() {
			out[w.Vport] = w
		}
	}
	return out
}
