package lab

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/onpath/onpath/lab/relay"
	"github.com/vishvananda/netlink"
)

// Status is what a lab is like now.
type Status struct {
	Name      string          `json:"name"`
	Phase     string          `json:"phase"`
	Created   time.Time       `json:"created"`
	Emulation string          `json:"emulation"` // netem or relay
	Hosts     []HostStatus    `json:"hosts"`
	Links     []LinkStatus    `json:"links"`
	Processes []ProcessStatus `json:"processes"`
}

// HostStatus is one host's.
type HostStatus struct {
	Name       string            `json:"name"`
	NetNS      string            `json:"netns"` // file
	Private    bool              `json:"private"`
	Missing    string            `json:"missing,omitempty"` // why the host cannot be looked at
	Interfaces []InterfaceStatus `json:"interfaces"`
}

// InterfaceStatus is one interface's, whoever made it.
type InterfaceStatus struct {
	Name      string         `json:"name"`
	MAC       string         `json:"mac,omitempty"`
	MTU       int            `json:"mtu"`
	Up        bool           `json:"up"`
	Addresses []netip.Prefix `json:"addresses"` // without link-local ones
	RxPackets uint64         `json:"rxPackets"`
	TxPackets uint64         `json:"txPackets"`
	RxBytes   uint64         `json:"rxBytes"`
	TxBytes   uint64         `json:"txBytes"`
	Dropped   uint64         `json:"dropped"` // received and sent
}

// Kinds of link in LinkStatus.
const (
	LinkPlain = "veth"
)

// LinkStatus is one link's.
type LinkStatus struct {
	A     string          `json:"a"`
	B     string          `json:"b"`
	Kind  string          `json:"kind"` // LinkPlain, EmulateNetem or EmulateRelay
	MTU   int             `json:"mtu"`
	There DirectionStatus `json:"there"` // A to B
	Back  DirectionStatus `json:"back"`  // B to A
}

// DirectionStatus counts one direction's frames, in segments for a relay.
type DirectionStatus struct {
	Shape   Shape  `json:"shape"`
	Packets uint64 `json:"packets"` // delivered
	Bytes   uint64 `json:"bytes"`
	Lost    uint64 `json:"lost"`    // by chance, as asked; netem counts them in Dropped
	Dropped uint64 `json:"dropped"` // by a full queue, or by the kernel
}

// ProcessStatus is one process's.
type ProcessStatus struct {
	Host    string   `json:"host,omitempty"`
	Name    string   `json:"name"`
	PID     int      `json:"pid"`
	Running bool     `json:"running"`
	Run     []string `json:"run"`
	Log     string   `json:"log"`
}

// Status looks at all hosts, links and processes. A host that is broken is
// told as such and is no error.
func (l *Lab) Status(ctx context.Context) (*Status, error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	now, err := l.dir.load()
	if err != nil {
		return nil, err
	}
	l.state = now
	s := &Status{Name: now.Name, Phase: now.phase(), Created: now.Created, Emulation: now.Emulation}
	for _, h := range now.Topology.Hosts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		hs := HostStatus{Name: h.Name, NetNS: l.dir.net(h.Name), Private: h.Private}
		if hs.Interfaces, err = l.interfaces(h.Name); err != nil {
			hs.Missing = err.Error()
		}
		s.Hosts = append(s.Hosts, hs)
	}
	s.Links = l.linkStatus()
	for _, p := range now.Processes {
		s.Processes = append(s.Processes, ProcessStatus{p.Host, p.Name, p.PID, p.alive(), p.Run, p.Log})
	}
	return s, nil
}

func (l *Lab) interfaces(node string) ([]InterfaceStatus, error) {
	in, err := l.inside(node)
	if err != nil {
		return nil, err
	}
	defer in.close()
	devices, err := in.LinkList()
	if err != nil {
		return nil, fmt.Errorf("interfaces of %s: %w", node, err)
	}
	var out []InterfaceStatus
	for _, d := range devices {
		a := d.Attrs()
		s := InterfaceStatus{Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU, Up: a.RawFlags&1 != 0}
		if st := a.Statistics; st != nil {
			s.RxPackets, s.TxPackets, s.RxBytes, s.TxBytes = st.RxPackets, st.TxPackets, st.RxBytes, st.TxBytes
			s.Dropped = st.RxDropped + st.TxDropped
		}
		addresses, err := in.AddrList(d, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("addresses of %s: %w", node, err)
		}
		for _, addr := range addresses {
			if ip, ok := netip.AddrFromSlice(addr.IP); ok && !ip.Unmap().IsLinkLocalUnicast() {
				ones, _ := addr.Mask.Size()
				s.Addresses = append(s.Addresses, netip.PrefixFrom(ip.Unmap(), ones))
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// linkStatus reads the counters of links where they are: those of a relay in
// its file, else those of the devices.
func (l *Lab) linkStatus() []LinkStatus {
	var relayed [][2]relay.Counters
	if l.Emulation == EmulateRelay {
		relayed, _ = relay.ReadCounters(l.dir.counters(), len(l.shaped()))
	}
	open := opened{}
	defer open.close()
	var out []LinkStatus
	next := 0
	for i, link := range l.state.Topology.Links {
		s := LinkStatus{A: link.A.String(), B: link.B.String(), Kind: LinkPlain, MTU: link.MTU}
		s.There.Shape, s.Back.Shape = link.There, link.Back
		switch {
		case !link.Shaped():
			b, a := l.placeOf(link.B, i, "b", 0), l.placeOf(link.A, i, "a", 0)
			l.received(open, b, &s.There)
			l.received(open, a, &s.Back)
		case l.Emulation == EmulateRelay:
			s.Kind = EmulateRelay
			if next < len(relayed) {
				s.There.count(relayed[next][0])
				s.Back.count(relayed[next][1])
			}
			next++
		default:
			s.Kind = EmulateNetem
			l.queued(open, middle(i, "b"), &s.There)
			l.queued(open, middle(i, "a"), &s.Back)
		}
		out = append(out, s)
	}
	return out
}

func (d *DirectionStatus) count(c relay.Counters) {
	d.Packets, d.Bytes, d.Lost = c.Packets-min(c.Packets, c.Refused), c.Bytes, c.Lost
	d.Dropped = c.Full + c.Missed + c.Refused
}

// received counts what arrived at a place.
func (l *Lab) received(open opened, p place, d *DirectionStatus) {
	in, err := open.get(l, p.node)
	if err != nil {
		return
	}
	dev, err := in.LinkByName(p.name)
	if err != nil || dev.Attrs().Statistics == nil {
		return
	}
	st := dev.Attrs().Statistics
	d.Packets, d.Bytes, d.Dropped = st.RxPackets, st.RxBytes, st.RxDropped
}

// queued counts what went through netem on a device of the wire.
func (l *Lab) queued(open opened, device string, d *DirectionStatus) {
	in, err := open.get(l, wire)
	if err != nil {
		return
	}
	dev, err := in.LinkByName(device)
	if err != nil {
		return
	}
	qdiscs, err := in.QdiscList(dev)
	if err != nil {
		return
	}
	for _, q := range qdiscs {
		st := q.Attrs().Statistics
		if q.Type() == "netem" && st != nil && st.Basic != nil && st.Queue != nil {
			d.Packets, d.Bytes, d.Dropped = uint64(st.Basic.Packets), st.Basic.Bytes, uint64(st.Queue.Drops)
		}
	}
}
