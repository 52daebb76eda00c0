package engine

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// selection is what a module is given; without entries everything.
type selection []onpath.Selector

// takes reports whether a packet is selected. Selectors are written in the chain's
// direction; what goes the other way is turned first.
func (s selection) takes(h *packet.Header, reverse bool) bool {
	if len(s) == 0 {
		return true
	}
	t := h.Tuple
	if h.IsError && h.Quotes {
		t = h.Quoted.Reverse()
	}
	if reverse {
		t = t.Reverse()
	}
	return slices.ContainsFunc(s, func(sel onpath.Selector) bool {
		return ofProtocol(sel.Protocol, t.Protocol) && within(sel.Sources, t.Src) && within(sel.Destinations, t.Dst) &&
			among(sel.SourcePorts, t.SrcPort) && among(sel.DestinationPorts, t.DstPort)
	})
}

func ofProtocol(p onpath.Protocol, n uint8) bool {
	switch p {
	case "":
		return true
	case "tcp":
		return n == packet.TCP
	case "udp":
		return n == packet.UDP
	case "icmp":
		return n == packet.ICMP || n == packet.ICMPv6
	}
	want, err := strconv.ParseUint(string(p), 10, 8)
	return err == nil && uint8(want) == n
}

func within(list []onpath.Prefix, a netip.Addr) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(p onpath.Prefix) bool { return p.Contains(a) })
}

func among(list []onpath.PortRange, port uint16) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(p onpath.PortRange) bool { return p.Contains(port) })
}
