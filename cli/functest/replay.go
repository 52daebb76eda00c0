package functest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/internal/funcbuild"
	"github.com/onpath/onpath/internal/packet"
)

// Met is a packet of a capture, and what became of it.
type Met struct {
	Number    int            `json:"packet"` // from 1
	Time      time.Time      `json:"time,omitzero"`
	After     time.Duration  `json:"after"` // the first packet, ns
	Tuple     onpath.Tuple   `json:"tuple,omitzero"`
	VLAN      []uint16       `json:"vlan,omitempty"`
	Length    int            `json:"length"`              // of the IP packet, bytes
	Captured  int            `json:"captured,omitempty"`  // bytes of it, where that is less; the rest was taken as zero
	Direction string         `json:"direction,omitempty"` // forward: from the client
	Aside     string         `json:"aside,omitempty"`     // why the data path gives it to no function
	Verdict   string         `json:"verdict,omitempty"`
	Reason    *uint8         `json:"reason,omitempty"` // of a drop or an answer
	Edits     []Edit         `json:"edits,omitempty"`
	Sent      []onpath.Tuple `json:"sent,omitempty"`    // packets that the function sent
	Counts    map[string]int `json:"counts,omitempty"`  // what its counters grew by
	Differs   string         `json:"differs,omitempty"` // how the targets do not agree

	frame   *frame
	ip      []byte
	outcome engine.Outcome
}

// Out is the packet that goes on; nil: none does.
func (m *Met) Out() []byte { return m.outcome.Packet }

// Edit is one change that a function made of a packet that goes on.
type Edit struct {
	Field  string `json:"field"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// Replayed is what came of a whole capture.
type Replayed struct {
	Packets  int               `json:"packets"`
	Aside    int               `json:"aside"` // packets that no function is given
	Verdicts map[string]int    `json:"verdicts"`
	Edited   int               `json:"edited"`  // packets
	Guessed  int               `json:"guessed"` // packets of which the function saw bytes that were not captured
	Differ   int               `json:"differ"`  // packets on which the targets do not agree
	Counters map[string]uint64 `json:"counters"`
	Needs    int               `json:"needs"` // bytes of packets that the function is shown
	// Targets are those it ran for; Lacking says why it did not run for others.
	Targets []funcbuild.Target          `json:"targets"`
	Lacking map[funcbuild.Target]string `json:"lacking,omitempty"`
}

// mostFlows is how many flows are remembered at least, by the direction of their first packet.
const mostFlows = 1 << 16

// longest is the longest packet that functions are given, in bytes: longer ones in a capture
// are those that a host's offloads joined.
const longest = 1500

// replay gives a function the packets of a capture.
type replay struct {
	f           *Function
	clients     []netip.Prefix
	firsts      packet.Fragments
	now, before map[onpath.Tuple]bool // flows: is their first packet's source the client?
	began       time.Time
	clock       uint64
	counters    map[string]uint64
}

// Replay gives the function the packets of a capture, and tells of each. Clients are in the
// prefixes, if there are any; else who sent the first packet of a flow is one.
func (f *Function) Replay(ctx context.Context, c *Capture, clients []netip.Prefix, tell func(*Met) error) (*Replayed, error) {
	r := &replay{f: f, clients: clients, now: map[onpath.Tuple]bool{}, clock: start}
	sum := &Replayed{Verdicts: map[string]int{}, Lacking: f.Lacking}
	for _, t := range Targets {
		if f.Runs(t) {
			sum.Targets = append(sum.Targets, t)
			sum.Needs = max(sum.Needs, int(f.run[t].Needs()))
		}
	}
	var err error
	if r.counters, err = f.Counters(ctx); err != nil {
		return nil, err
	}
	for {
		fr, err := c.next()
		if errors.Is(err, io.EOF) {
			sum.Counters = r.counters
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
		m, err := r.meet(ctx, fr)
		if err != nil {
			return sum, fmt.Errorf("packet %d: %w", fr.number, err)
		}
		sum.Packets++
		switch {
		case m.Aside != "":
			sum.Aside++
		case m.Differs != "":
			sum.Differ++
		}
		if m.Verdict != "" {
			sum.Verdicts[m.Verdict]++
		}
		if len(m.Edits) > 0 {
			sum.Edited++
		}
		if m.Verdict != "" && m.Captured > 0 && m.Captured < sum.Needs {
			sum.Guessed++
		}
		if err := tell(m); err != nil {
			return sum, err
		}
	}
}

// meet gives the function a packet, if the data path would.
func (r *replay) meet(ctx context.Context, f *frame) (*Met, error) {
	m := &Met{Number: f.number, Time: f.at, VLAN: f.vlan, Length: max(0, f.length-f.head), frame: f}
	if r.began.IsZero() {
		r.began = f.at
	}
	if !f.at.IsZero() {
		m.After = f.at.Sub(r.began)
		r.clock = max(r.clock, start+uint64(max(m.After, 0)))
	}
	if !f.ip {
		m.Aside = "it is no IP packet"
		return m, nil
	}
	ip, captured, err := f.packet()
	if err != nil {
		m.Aside = err.Error()
		return m, nil
	}
	h := packet.Parse(ip)
	p := engine.TrialPacket{IP: ip, Now: r.clock}
	if r.firsts.Join(&h, r.clock); !h.Whole() && h.Verdict == packet.Fine {
		p.First = h.Tuple
	}
	if h.Verdict != packet.Malformed {
		m.ip, m.Length, m.Tuple = ip[:h.Length], h.Length, of(&h)
	}
	if captured < m.Length {
		m.Captured = captured
	}
	known := false
	if p.Reverse, known = r.direction(&h); h.IsError && h.Quotes && !known {
		m.Aside = "an ICMP error about a flow of which no packet came before it"
	}
	if why := aside(&h); why != "" {
		m.Aside = why
	}
	if m.Aside != "" {
		return m, nil
	}
	m.Direction = "forward"
	if p.Reverse {
		m.Direction = "reverse"
	}
	return m, r.give(ctx, m, p, &h)
}

// of is the flow of a packet: of an ICMP error, the one that it is about.
func of(h *packet.Header) onpath.Tuple {
	if h.IsError && h.Quotes {
		return h.Quoted.Reverse()
	}
	return h.Tuple
}

// aside says why the data path gives no function such a packet.
func aside(h *packet.Header) string {
	t := h.Tuple
	dhcp := uint16(67)
	if h.V6 {
		dhcp = 546
	}
	switch {
	case h.Verdict == packet.Malformed:
		return "its IP header is not valid"
	case h.OfLink:
		return "Neighbour Discovery concerns one link"
	case h.SourceRouted:
		return "it is source-routed, and refused"
	case packet.Confined(t.Dst), packet.Confined(t.Src):
		return "no router forwards between its addresses"
	case h.Verdict == packet.Unreadable && !h.Whole():
		return "a fragment whose first did not come before it"
	case h.Verdict == packet.Unreadable, h.IsError && !h.Quotes:
		return "its ports cannot be read"
	case h.Protocol == packet.UDP && t.SrcPort-dhcp <= 1 && t.DstPort-dhcp <= 1:
		return "DHCP concerns one link"
	case h.Length > longest:
		return fmt.Sprintf("it has more than %d bytes; capture without the offloads that join packets "+
			"(ethtool -K DEV gro off tso off gso off)", longest)
	}
	return ""
}

// direction says whether a packet is of the reverse direction, and whether its flow was known.
func (r *replay) direction(h *packet.Header) (reverse, known bool) {
	t := of(h)
	k := t
	if k.Src.Compare(k.Dst) > 0 || k.Src == k.Dst && k.SrcPort > k.DstPort {
		k = k.Reverse()
	}
	swapped := k != t
	from, known := r.now[k]
	if !known {
		from, known = r.before[k]
	}
	if !known {
		accepts := h.Protocol == packet.TCP && h.Flags&(packet.SYN|packet.ACK) == packet.SYN|packet.ACK
		from = swapped == accepts // who accepts a connection is its server
		in := func(a netip.Addr) bool {
			return slices.ContainsFunc(r.clients, func(p netip.Prefix) bool { return p.Contains(a) })
		}
		if src, dst := in(k.Src), in(k.Dst); src != dst {
			from = src
		}
	}
	if len(r.now) >= mostFlows {
		r.now, r.before = map[onpath.Tuple]bool{}, r.now
	}
	if h.Verdict == packet.Fine && !h.IsError {
		r.now[k] = from
	}
	return from == swapped, known
}

func (r *replay) give(ctx context.Context, m *Met, p engine.TrialPacket, h *packet.Header) error {
	o, err := r.f.Give(ctx, p)
	var d disagreement
	if err != nil && !errors.As(err, &d) {
		return err
	}
	if err != nil {
		m.Differs = err.Error()
	}
	m.outcome, m.Verdict = o, verdictName(o)
	if o.Verdict != 0 {
		m.Reason = &o.Reason
	} else {
		m.Edits = edits(m.ip, h, o.Packet)
	}
	for _, b := range o.Sent {
		sent := packet.Parse(b)
		m.Sent = append(m.Sent, sent.Tuple)
	}
	after, err := r.f.Counters(ctx)
	if err != nil && m.Differs == "" {
		m.Differs = err.Error()
	}
	for name, n := range after {
		if by := int(n - r.counters[name]); by != 0 {
			if m.Counts == nil {
				m.Counts = map[string]int{}
			}
			m.Counts[name] = by
		}
	}
	r.counters = after
	return nil
}

// edits says what a function changed of a packet.
func edits(before []byte, h *packet.Header, after []byte) (list []Edit) {
	if after == nil {
		return []Edit{{"packet", fmt.Sprintf("%d bytes", len(before)), "no valid IP packet, which goes no further"}}
	}
	a := packet.Parse(after)
	if !a.Whole() {
		a.Tuple.SrcPort, a.Tuple.DstPort = h.Tuple.SrcPort, h.Tuple.DstPort
	}
	add := func(field, x, y string) {
		if x != y {
			list = append(list, Edit{field, x, y})
		}
	}
	x, y := h.Tuple, a.Tuple
	add("source", end(x.Src, x.SrcPort, x.Protocol), end(y.Src, y.SrcPort, y.Protocol))
	add("destination", end(x.Dst, x.DstPort, x.Protocol), end(y.Dst, y.DstPort, y.Protocol))
	add("dscp", fmt.Sprint(packet.DSCP(before)), fmt.Sprint(packet.DSCP(after)))
	add("length", fmt.Sprint(len(before)), fmt.Sprint(len(after)))
	// All else that is not the same, but for what follows from these.
	like, head := slices.Clone(before), *h
	if x.Src.Is4() == y.Src.Is4() {
		packet.SetAddress(like, &head, true, y.Src)
		packet.SetAddress(like, &head, false, y.Dst)
		if h.Verdict == packet.Fine && hasPorts(h.Protocol) && h.Protocol == a.Protocol {
			packet.SetPort(like, &head, true, y.SrcPort)
			packet.SetPort(like, &head, false, y.DstPort)
		}
		packet.SetDSCP(like, packet.DSCP(after))
	}
	if !bytes.Equal(like, after) {
		first, same := 0, min(len(like), len(after))
		for first < same && like[first] == after[first] {
			first++
		}
		last := 0
		for last < same-first && like[len(like)-1-last] == after[len(after)-1-last] {
			last++
		}
		add(fmt.Sprintf("bytes from %d", first), hexText(like[first:len(like)-last]), hexText(after[first:len(after)-last]))
	}
	return list
}

func hexText(b []byte) string {
	const most = 32
	if len(b) > most {
		return fmt.Sprintf("%x… (%d bytes)", b[:most], len(b))
	}
	return fmt.Sprintf("%x", b)
}

// end is an end of a flow in words.
func end(a netip.Addr, port uint16, protocol uint8) string {
	if !hasPorts(protocol) {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// hasPorts tells protocols with ports of their own: ICMP has an identifier in their place.
func hasPorts(protocol uint8) bool {
	return packet.HasPorts(protocol) && protocol != packet.ICMP && protocol != packet.ICMPv6
}

// words is the verdict with its reason and what was changed.
func (m *Met) words() string {
	if m.Aside != "" {
		return "aside: " + m.Aside
	}
	w := []string{m.Verdict}
	if m.Reason != nil {
		w[0] += fmt.Sprintf(", reason %d", *m.Reason)
	}
	for _, e := range m.Edits {
		w = append(w, fmt.Sprintf("%s %s → %s", e.Field, e.Before, e.After))
	}
	for _, t := range m.Sent {
		w = append(w, "sends "+flow(t))
	}
	if m.Differs != "" {
		w = append(w, "the targets differ: "+m.Differs)
	}
	return strings.Join(w, "; ")
}

var protocolNames = map[uint8]string{
	packet.ICMP: "icmp", packet.TCP: "tcp", packet.UDP: "udp", packet.ICMPv6: "icmpv6", packet.SCTP: "sctp", packet.UDPLite: "udplite",
}

func flow(t onpath.Tuple) string {
	name := cmp.Or(protocolNames[t.Protocol], fmt.Sprint("protocol ", t.Protocol))
	return fmt.Sprintf("%s %s > %s", name, end(t.Src, t.SrcPort, t.Protocol), end(t.Dst, t.DstPort, t.Protocol))
}
