package functest

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/internal/packet"
)

// Spec is what a function's folder may have as test.yaml.
type Spec struct {
	// Config is what the function is told: members of its ONPATH_CONFIG.
	Config map[string]string `json:"config,omitempty"`
	// Cases are met in their order, by one function.
	Cases []Case `json:"cases,omitempty"`
}

// Case is one packet, and what is to become of it.
type Case struct {
	Name   string `json:"name"`
	Packet Packet `json:"packet"`
	// Verdict is next, drop or answer.
	Verdict string `json:"verdict"`
	// Reason is the function's own code of a drop or an answer.
	Reason uint8 `json:"reason,omitempty"`
	// Becomes says in part what the packet is like that goes on.
	Becomes *Packet `json:"becomes,omitempty"`
	// Sends are the beginnings of the payloads of packets that the function sends.
	Sends []string `json:"sends,omitempty"`
	// Counters are the function's after this packet, those that are named.
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// Packet is a packet in words.
type Packet struct {
	From      string          `json:"from,omitempty"` // 10.0.0.1:1000, [2001:db8::1]:1000, icmp: without a port
	To        string          `json:"to,omitempty"`
	Protocol  onpath.Protocol `json:"protocol,omitempty"` // udp | tcp | icmp; default udp
	Flags     []string        `json:"flags,omitempty"`    // of TCP: syn, ack, fin, rst
	TTL       uint8           `json:"ttl,omitempty"`      // default 64
	DSCP      uint8           `json:"dscp,omitempty"`
	Payload   string          `json:"payload,omitempty"`
	Direction string          `json:"direction,omitempty"` // forward | reverse; default forward
	At        onpath.Duration `json:"at,omitempty"`        // since the first packet
	Hex       string          `json:"hex,omitempty"`       // an IP packet, instead of all but direction and at
}

// start is the time of the first packet: functions reckon with a clock that has run.
const start = uint64(1e12)

// Check gives a case's packet to the function and says what is not as wanted.
func (f *Function) Check(ctx context.Context, c *Case) error {
	p, err := c.Packet.trial()
	if err != nil {
		return err
	}
	o, err := f.Give(ctx, p)
	if err != nil {
		return err
	}
	want := engine.Outcome{Verdict: byte(slices.Index(verdicts, c.Verdict)), Reason: c.Reason}
	if !slices.Contains(verdicts[:3], c.Verdict) {
		return fmt.Errorf("verdict: %q is not next, drop or answer", c.Verdict)
	}
	var errs []error
	if o.Verdict != want.Verdict || o.Verdict != 0 && o.Reason != want.Reason {
		errs = append(errs, fmt.Errorf("it says %s, not %s", verdict(o), verdict(want)))
	}
	if c.Becomes != nil {
		errs = append(errs, c.Becomes.like(o.Packet))
	}
	errs = append(errs, sends(o.Sent, c.Sends))
	have, err := f.Counters(ctx)
	errs = append(errs, err)
	for name, n := range c.Counters {
		if _, ok := have[name]; !ok && err == nil {
			errs = append(errs, fmt.Errorf("no such counter %s; the function has %s", name,
				cmp.Or(strings.Join(slices.Sorted(maps.Keys(have)), ", "), "none")))
		} else if have[name] != n {
			errs = append(errs, fmt.Errorf("counter %s is %d, not %d", name, have[name], n))
		}
	}
	return errors.Join(errs...)
}

func sends(sent [][]byte, want []string) error {
	if len(sent) != len(want) {
		return fmt.Errorf("it sends %d packets, not %d", len(sent), len(want))
	}
	for i, b := range sent {
		h := packet.Parse(b)
		if payload := string(b[engine.Payload(b, &h):]); !strings.HasPrefix(payload, want[i]) {
			return fmt.Errorf("packet %d that it sends begins %q, not %q", i+1, payload[:min(len(payload), 60)], want[i])
		}
	}
	return nil
}

// like compares what is said of a packet with one.
func (p *Packet) like(b []byte) error {
	if b == nil {
		return fmt.Errorf("nothing goes on")
	}
	h := packet.Parse(b)
	for _, x := range []struct{ what, have, want string }{
		{"from", end(h.Tuple.Src, h.Tuple.SrcPort, h.Protocol), p.From}, {"to", end(h.Tuple.Dst, h.Tuple.DstPort, h.Protocol), p.To},
		{"payload", string(b[engine.Payload(b, &h):]), p.Payload},
	} {
		if x.want != "" && x.have != x.want {
			return fmt.Errorf("%s becomes %q, not %q", x.what, x.have, x.want)
		}
	}
	if have := packet.DSCP(b); have != p.DSCP {
		return fmt.Errorf("dscp becomes %d, not %d", have, p.DSCP)
	}
	return nil
}

// trial makes the packet.
func (p *Packet) trial() (t engine.TrialPacket, err error) {
	t.Now = start + uint64(p.At)
	switch p.Direction {
	case "", "forward":
	case "reverse":
		t.Reverse = true
	default:
		return t, fmt.Errorf("direction: %q is not forward or reverse", p.Direction)
	}
	if p.Hex != "" {
		t.IP, err = hex.DecodeString(strings.Join(strings.Fields(p.Hex), ""))
		return t, err
	}
	t.IP, err = p.bytes()
	return t, err
}

func endOf(what, s string) (netip.Addr, uint16, error) {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a.Addr(), a.Port(), nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, 0, fmt.Errorf("%s: %q is no address; write 10.0.0.1:1000 or [2001:db8::1]:1000", what, s)
	}
	return a, 0, nil
}

var flagBits = map[string]uint8{"syn": packet.SYN, "ack": packet.ACK, "fin": packet.FIN, "rst": packet.RST}

func (p *Packet) bytes() ([]byte, error) {
	src, sport, err := endOf("from", p.From)
	if err != nil {
		return nil, err
	}
	dst, dport, err := endOf("to", p.To)
	if err != nil {
		return nil, err
	}
	if src.Is4() != dst.Is4() {
		return nil, fmt.Errorf("from and to are of two families")
	}
	m := made{src: src, dst: dst, sport: sport, dport: dport, ttl: p.TTL, dscp: p.DSCP, payload: []byte(p.Payload)}
	if m.ttl == 0 {
		m.ttl = 64
	}
	for _, name := range p.Flags {
		if flagBits[name] == 0 {
			return nil, fmt.Errorf("flags: %q is not syn, ack, fin or rst", name)
		}
		m.flags |= flagBits[name]
	}
	switch p.Protocol {
	case "", "udp":
		m.protocol = packet.UDP
	case "tcp":
		m.protocol = packet.TCP
	case "icmp":
		m.protocol = packet.ICMP
		if src.Is6() {
			m.protocol = packet.ICMPv6
		}
	default:
		return nil, fmt.Errorf("protocol: %q is not udp, tcp or icmp", p.Protocol)
	}
	if m.protocol == packet.UDP || m.protocol == packet.TCP {
		for _, end := range []struct{ what, says string }{{"from", p.From}, {"to", p.To}} {
			if _, err := netip.ParseAddrPort(end.says); err != nil {
				like := netip.AddrPortFrom(netip.MustParseAddr(end.says), 53)
				return nil, fmt.Errorf("%s: %s has no port; write %s", end.what, end.says, like)
			}
		}
	}
	return m.bytes(), nil
}
