package trial

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/onpath/onpath"
)

// Kind is what a trial of the network between two nodes finds out.
type Kind string

// The kinds of trials.
const (
	Network    Kind = "network"    // which packets arrive: protocols, sizes, foreign sources
	Throughput Kind = "throughput" // bits a second, by TCP or UDP
	RoundTrip  Kind = "round-trip" // how long an answer takes, by ICMP or UDP
)

// Request asks two nodes to try the network between them. Their machines' own packets
// go from one to the other, so chains that are attached to the machines take them.
type Request struct {
	Kind     Kind            `json:"kind" enum:"network,throughput,round-trip"`
	From     string          `json:"from" doc:"the node that sends"`
	To       string          `json:"to" doc:"the node that receives"`
	Protocol onpath.Protocol `json:"protocol,omitempty" doc:"throughput: tcp or udp; round-trip: icmp or udp"`
	For      onpath.Duration `json:"for,omitempty" doc:"throughput: how long"`
	Count    int             `json:"count,omitempty" doc:"round-trip: how many"`
	// Address is the receiver's; default that of its underlay.
	Address netip.Addr `json:"address,omitzero" doc:"the receiver's; default that of its underlay"`
}

// The most that a trial may ask for.
const (
	MaxTime   = onpath.Duration(time.Minute)
	MaxEchoes = 10_000
)

// Validate says what is wrong with a request.
func (t *Request) Validate() error {
	fail := func(field, remedy, format string, args ...any) error {
		return &onpath.Error{Code: onpath.CodeInvalid, Field: field, Message: fmt.Sprintf(format, args...), Remedy: remedy}
	}
	switch {
	case t.From == "" || t.To == "":
		return fail("to", "name two nodes", "a trial is between two nodes")
	case t.From == t.To:
		return fail("to", "name another node", "node %s has no network to itself", t.From)
	}
	switch t.Kind {
	case Network:
	case Throughput:
		if t.Protocol != ByTCP && t.Protocol != ByUDP {
			return fail("protocol", "write tcp or udp", "throughput is measured by tcp or udp, not %q", t.Protocol)
		}
		if t.For <= 0 || t.For > MaxTime {
			return fail("for", "give a time such as 10s", "a trial of %s; it must be more than nothing and at most %s", t.For, MaxTime)
		}
	case RoundTrip:
		if t.Protocol != ByICMP && t.Protocol != ByUDP {
			return fail("protocol", "write icmp or udp", "round trips are measured by icmp or udp, not %q", t.Protocol)
		}
		if t.Count < 1 || t.Count > MaxEchoes {
			return fail("count", "give a number such as 300", "%d round trips; it must be 1 to %d", t.Count, MaxEchoes)
		}
	default:
		return fail("kind", "write network, throughput or round-trip", "%q is no trial", t.Kind)
	}
	return nil
}

// Result is what came of one.
type Result struct {
	// Packets are all that Network sent.
	Packets []Packet `json:"packets,omitempty"`
	// Rate is what arrived, in bits of payload a second; Lost is the share of datagrams
	// that did not.
	Rate float64 `json:"rate,omitempty"`
	Lost float64 `json:"lost,omitempty"`
	// RoundTrips are the answered ones, in the order of asking.
	RoundTrips []onpath.Duration `json:"roundTrips,omitempty"`
}

// Packet is a packet of one sort that was sent to the other machine.
type Packet struct {
	Name string `json:"name"`
	// Arrived: the other machine's device got it as it was sent.
	Arrived bool `json:"arrived"`
	// Size is of the whole IP packet, for the trials of sizes.
	Size int `json:"size,omitempty"`
	// Source and HopLimit are what arrived; a source that is not the sender's was translated.
	Source   netip.Addr `json:"source,omitzero"`
	HopLimit int        `json:"hopLimit,omitempty"`
	// Why it did not arrive, where the sender knows, or what arrived instead.
	Why string `json:"why,omitempty"`
}

// The protocols by which trials measure.
const (
	ByTCP  onpath.Protocol = "tcp"
	ByUDP  onpath.Protocol = "udp"
	ByICMP onpath.Protocol = "icmp"
)

// The names of the packets of Network, beside "size N".
const (
	TCP        = "TCP"
	UDP        = "UDP"
	TunnelPort = "UDP, tunnel port"
	ICMP       = "ICMP"
	GRE        = "GRE"
	ESP        = "ESP"
	Other      = "protocol 253"
	Foreign    = "foreign source"
	Size       = "size"
)

// Find gives the packet of a name, and whether it was tried.
func (t *Result) Find(name string) (Packet, bool) {
	for _, p := range t.Packets {
		if p.Name == name {
			return p, true
		}
	}
	return Packet{}, false
}

// Passes reports whether the packet of a name arrived.
func (t *Result) Passes(name string) bool {
	p, _ := t.Find(name)
	return p.Arrived
}

// Hear takes up what the receiver heard of what was sent.
func (t *Result) Hear(heard *Result) {
	for i := range t.Packets {
		p := &t.Packets[i]
		if h, ok := heard.Find(p.Name); ok {
			*p = h
		} else if !p.Arrived && p.Why == "" {
			p.Why = "it does not arrive"
		}
	}
	if heard.Rate > 0 {
		t.Rate, t.Lost = heard.Rate, heard.Lost
	}
}

// Largest is the size of the largest packet that arrived whole; 0: none was tried, or none did.
func (t *Result) Largest() (size int) {
	for _, p := range t.Packets {
		if p.Arrived && p.Size > size {
			size = p.Size
		}
	}
	return size
}

// Part is what the server asks of one of the two nodes (OpTrial).
type Part struct {
	Kind     Kind            `json:"kind"`
	Protocol onpath.Protocol `json:"protocol,omitempty"`
	For      onpath.Duration `json:"for,omitempty"`
	Count    int             `json:"count,omitempty"`
	Word     string          `json:"word"`              // what all packets of the trial carry: 32 hexadecimal digits
	Receiver bool            `json:"receiver"`          // else the sender
	Address  netip.Addr      `json:"address,omitzero"`  // the receiver's
	Tunnel   uint16          `json:"tunnel,omitempty"`  // the tunnels' port
	Listens  Ports           `json:"listens,omitempty"` // of the receiver, for the sender
}

// Ports are the first that a receiver says: where it listens. It says a Trial when the
// server writes a byte, after which nothing more is sent.
type Ports struct {
	TCP uint16 `json:"tcp"`
	UDP uint16 `json:"udp"`
}
