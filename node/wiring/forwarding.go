package wiring

import (
	"fmt"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/base"
)

// Forwarding keeps the kernels of instances that get copies only from forwarding: each
// copy would come out again, and who listens there sees each packet twice.
type Forwarding struct {
	Dir base.Dir

	mu sync.Mutex
	// set is what was set last, by vport: true where the kernel forwards.
	set map[onpath.VportID]bool
}

// Forget has the next round set it again: the instance was wired, as one that forwards.
func (f *Forwarding) Forget(v onpath.VportID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.set, v)
}

// Apply has kernels forward, or with on false forward no more, as the configuration says:
// on before it is in force, off after that. ws are the wirings of the instances whose
// kernels may forward, by vport.
func (f *Forwarding) Apply(c *onpath.DatapathConfig, ws map[onpath.VportID]Wiring, on bool) error {
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
		path := f.Dir.NetNS(w.ID)
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
