package lab

import (
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// Topology is a network to emulate, as Parse read it: names are checked,
// interfaces named, addresses belong to interfaces that exist.
type Topology struct {
	Name     string    `json:"name"`
	Hosts    []*Host   `json:"hosts"`    // in the order of the file
	Switches []*Switch `json:"switches"` // in the order of the file
	Links    []*Link   `json:"links"`    // in the order of the file
}

// Host is one emulated machine.
type Host struct {
	Name       string            `json:"name"`
	Interfaces []*Interface      `json:"interfaces"` // those of its links in the order of the links, "lo" last if it has addresses
	Routes     []Route           `json:"routes,omitempty"`
	AutoRoutes bool              `json:"autoRoutes,omitempty"` // shortest paths to all prefixes of the topology
	Forwarding bool              `json:"forwarding,omitempty"` // IPv4 and IPv6
	Sysctls    map[string]string `json:"sysctls,omitempty"`    // net.… only
	Private    bool              `json:"private,omitempty"`    // has a mount namespace of its own
	OwnPaths   []string          `json:"ownPaths,omitempty"`   // more paths that are empty and its own
	Share      []string          `json:"share,omitempty"`      // paths of the machine that stay visible below its own
	Commands   []Command         `json:"commands,omitempty"`
}

// Interface is a host's end of a link, or its "lo".
type Interface struct {
	Name      string         `json:"name"`
	MAC       string         `json:"mac,omitempty"` // empty: made from the host's and the interface's name
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// Route is a static route.
type Route struct {
	To     netip.Prefix `json:"to"`
	Via    netip.Addr   `json:"via,omitzero"` // the zero Addr: on link
	Device string       `json:"device,omitempty"`
}

// Command is a program that Up starts in a host, once. It is not started
// again when it ends. Its output goes to a file in the lab's directory.
type Command struct {
	Name      string            `json:"name"`
	Run       []string          `json:"run"`
	Env       map[string]string `json:"env,omitempty"` // added to the environment of Up
	Directory string            `json:"directory,omitempty"`
}

// Switch joins links to one Ethernet segment. It has no address.
type Switch struct {
	Name string `json:"name"`
	MTU  int    `json:"mtu,omitempty"` // bytes; 0: the smallest of its links
}

// End is one end of a link.
type End struct {
	Node      string `json:"node"`                // host or switch
	Interface string `json:"interface,omitempty"` // empty at a switch
}

// String is "host:eth0" or "switch".
func (e End) String() string {
	if e.Interface == "" {
		return e.Node
	}
	return e.Node + ":" + e.Interface
}

// Shape is what one direction of a link does to frames.
type Shape struct {
	Rate   onpath.Rate     `json:"rate,omitempty"`   // of Ethernet frames with their 14-byte header; 0: as fast as the machine
	Delay  onpath.Duration `json:"delay,omitempty"`  // one way
	Jitter onpath.Duration `json:"jitter,omitempty"` // each frame's delay is even in Delay ± Jitter
	Loss   float64         `json:"loss,omitempty"`   // probability, 0 to 1
	Queue  onpath.Size     `json:"queue,omitempty"`  // bytes that may wait for Rate; more are dropped
}

// Shaped reports whether the direction needs more than a veth pair.
func (s Shape) Shaped() bool { return s.Rate != 0 || s.Delay != 0 || s.Loss != 0 }

// Link joins two ends.
type Link struct {
	A        End    `json:"a"`
	B        End    `json:"b"`
	There    Shape  `json:"there"`          // from A to B
	Back     Shape  `json:"back"`           // from B to A
	MTU      int    `json:"mtu"`            // bytes of IP packet
	Offloads bool   `json:"offloads"`       // false: hosts send complete frames, each of at most MTU, with all checksums
	Seed     uint64 `json:"seed,omitempty"` // of random loss and jitter
}

// Name is "a:eth0-b:eth1".
func (l *Link) Name() string { return l.A.String() + "-" + l.B.String() }

// Shaped reports whether a direction of the link needs more than a veth pair.
func (l *Link) Shaped() bool { return l.There.Shaped() || l.Back.Shaped() }

// Host is the host called name, or nil.
func (t *Topology) Host(name string) *Host {
	if i := slices.IndexFunc(t.Hosts, func(h *Host) bool { return h.Name == name }); i >= 0 {
		return t.Hosts[i]
	}
	return nil
}

// Switch is the switch called name, or nil.
func (t *Topology) Switch(name string) *Switch {
	if i := slices.IndexFunc(t.Switches, func(s *Switch) bool { return s.Name == name }); i >= 0 {
		return t.Switches[i]
	}
	return nil
}

// Interface is the host's interface called name, or nil.
func (h *Host) Interface(name string) *Interface {
	if i := slices.IndexFunc(h.Interfaces, func(f *Interface) bool { return f.Name == name }); i >= 0 {
		return h.Interfaces[i]
	}
	return nil
}
