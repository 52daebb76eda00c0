package machine

import (
	"encoding/json"
	"maps"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// heldUplink is an uplink at which chains are in force, or were until it could not be
// steered any more.
type heldUplink struct {
	Device string `json:"device"` // as the plan calls it
	// Index is that of the device to which the data path is attached; 0: to none.
	Index int    `json:"index"`
	Boot  string `json:"boot"` // indexes are of one start of the machine
}

// held are those uplinks, by name. They outlive the agent: what strict chains select must
// not pass there unfiltered, whatever happens to the device or the host's firewall.
type held struct {
	dir  base.Dir
	boot string

	mu    sync.Mutex
	all   map[string]heldUplink
	known bool // they are in the file
}

// HeldFile says at which uplinks chains are in force.
func HeldFile(d base.Dir) string { return d.File("uplinks.json") }

func newHeld(d base.Dir) *held {
	h := &held{dir: d, boot: base.BootID(), all: map[string]heldUplink{}}
	data, err := os.ReadFile(HeldFile(d))
	h.known = err == nil && json.Unmarshal(data, &h.all) == nil && h.all != nil
	if !h.known {
		h.all = map[string]heldUplink{}
	}
	return h
}

// restore holds all uplinks of the plan that was in force, unless a file says which chains
// were in force at: an earlier version wrote none. It returns them.
func (h *held) restore(plan *onpath.NodePlan) (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known || plan == nil || plan.Datapath.Edge == nil || plan.Datapath.Edge.Table == 0 {
		return nil
	}
	for _, u := range plan.Datapath.Edge.Uplinks {
		h.all[u.Name] = heldUplink{Device: u.Device, Boot: h.boot}
		names = append(names, u.Name)
	}
	return names
}

// get is an uplink's, if chains are in force there.
func (h *held) get(u onpath.Uplink) (heldUplink, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was, ok := h.all[u.Name]
	if was.Boot != h.boot {
		was.Index = 0
	}
	return was, ok && was.Device == u.Device
}

// note takes up which uplinks chains are in force at: of a plan that is applied as c, with
// the indexes of c's devices. It returns them.
func (h *held) note(plan *onpath.NodePlan, c *onpath.DatapathConfig, indexes map[string]int) (map[string]heldUplink, error) {
	next := map[string]heldUplink{}
	if e := plan.Datapath.Edge; e != nil && e.Table != 0 {
		for _, u := range e.Uplinks {
			index := indexes[u.Name]
			if _, was := h.get(u); was || index != 0 {
				next[u.Name] = heldUplink{u.Device, index, h.boot}
			}
		}
	}
	h.mu.Lock()
	same := h.known && maps.Equal(h.all, next)
	h.all = next
	h.mu.Unlock()
	if same {
		return next, nil
	}
	data, err := json.Marshal(next)
	if err == nil {
		err = wholefile.Write(HeldFile(h.dir), data, 0o600)
	}
	h.mu.Lock()
	h.known = err == nil
	h.mu.Unlock()
	return next, err
}

// indexesOf are the indexes of the uplinks' devices, by uplink.
func indexesOf(netNS string, e *onpath.Edge) map[string]int {
	out := map[string]int{}
	if e == nil || len(e.Uplinks) == 0 {
		return out
	}
	h, err := wiring.Open(netNS)
	if err != nil {
		return out
	}
	defer h.Close()
	for _, u := range e.Uplinks {
		if l, err := h.LinkByName(u.Device); err == nil {
			out[u.Name] = l.Attrs().Index
		}
	}
	return out
}

// deviceOf is an uplink's device; nil: there is none. A device that has another name now is
// the uplink's all the same, as long as it is up if another has taken the name: packets
// come in there, and the guard closes the other.
func deviceOf(h *netlink.Handle, u onpath.Uplink, was heldUplink, others []onpath.Uplink) netlink.Link {
	named, err := h.LinkByName(u.Device)
	if err != nil {
		named = nil
	}
	if was.Index == 0 || named != nil && named.Attrs().Index == was.Index {
		return named
	}
	l, err := h.LinkByIndex(was.Index)
	if err != nil || named != nil && l.Attrs().Flags&unix.IFF_UP == 0 {
		return named
	}
	for _, o := range others {
		if o.Device == l.Attrs().Name {
			return named
		}
	}
	return l
}
