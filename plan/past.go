package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// bothTransports are ports at which one service answers by TCP and by UDP.
var bothTransports = []struct {
	port uint16
	what string
}{
	{53, "DNS"}, {443, "HTTP and QUIC"}, {853, "DNS over TLS and QUIC"}, {3478, "TURN"}, {5060, "SIP"},
}

// past says which other ways to the hosts of the chain go past it, "" if none is known:
// another transport at the same port, the other IP version.
func (c *chain) past() string {
	var ways []string
	for _, s := range bothTransports {
		tcp, udp := c.selects(6, s.port), c.selects(17, s.port)
		if tcp && !udp {
			ways = append(ways, fmt.Sprintf("udp/%d (%s)", s.port, s.what))
		}
		if udp && !tcp {
			ways = append(ways, fmt.Sprintf("tcp/%d (%s)", s.port, s.what))
		}
	}
	covered := 0
	for _, m := range c.forward {
		covered |= versions(m)
	}
	switch covered {
	case 1:
		ways = append(ways, "IPv6")
	case 2:
		ways = append(ways, "IPv4")
	}
	if len(ways) == 0 || len(c.forward) == 0 {
		return ""
	}
	return "what the same hosts exchange by " + strings.Join(ways, ", ") + " goes past this chain"
}

// selects reports whether the chain takes packets of a protocol to a port.
func (c *chain) selects(protocol uint8, port uint16) bool {
	return slices.ContainsFunc(c.forward, func(m onpath.Match) bool {
		return (len(m.Protocol) == 0 || slices.Contains(m.Protocol, protocol)) && (len(m.DstPorts) == 0 ||
			slices.ContainsFunc(m.DstPorts, func(r onpath.PortRange) bool { return r.First <= port && port <= r.Last }))
	})
}
