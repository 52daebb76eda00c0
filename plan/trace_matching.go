package plan

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/onpath/onpath"
)

// matching is what entries tell of the flows at a place that changes addresses: those
// that came in, and those that came out under other addresses.
type matching struct {
	// begin is the end point of who began a flow, in the direction of these flows.
	begin   func(onpath.Tuple) netip.AddrPort
	in, out map[flowEnd][]seenFlow // by that end point
	known   map[onpath.Tuple]bool  // that came in
}

type seenFlow struct {
	tuple onpath.Tuple
	idle  onpath.Duration
}

func newMatching(begin func(onpath.Tuple) netip.AddrPort) matching {
	return matching{begin: begin, in: map[flowEnd][]seenFlow{}, out: map[flowEnd][]seenFlow{}, known: map[onpath.Tuple]bool{}}
}

// cameIn notes a flow, once.
func (m *matching) cameIn(tu onpath.Tuple, idle onpath.Duration) {
	if !m.known[tu] {
		m.known[tu] = true
		m.in[m.endOf(tu)] = append(m.in[m.endOf(tu)], seenFlow{tu, idle})
	}
}

func (m *matching) cameOut(tu onpath.Tuple, idle onpath.Duration) {
	m.out[m.endOf(tu)] = append(m.out[m.endOf(tu)], seenFlow{tu, idle})
}

// verdict says what a matching knows of a flow.
type verdict int

const (
	unclear verdict = iota // there are flows that may be meant
	matched                // this one is it
	absent                 // there is none
)

// became finds what came out of a flow that came in.
func (m *matching) became(tu onpath.Tuple) (onpath.Tuple, verdict) {
	return m.partner(tu, m.in, m.out)
}

// was finds the flow that came in, of one that came out.
func (m *matching) was(tu onpath.Tuple) (onpath.Tuple, verdict) {
	return m.partner(tu, m.out, m.in)
}

// partner finds the one flow of the other side that belongs to tu. The end point of who
// began a flow, with its port, is that flow's alone: where it stays, and one flow of
// either side has it, they belong together. The other end point is many flows': it tells
// only where both sides have one flow left, with packets at the same time.
func (m *matching) partner(tu onpath.Tuple, from, to map[flowEnd][]seenFlow) (onpath.Tuple, verdict) {
	same := to[m.endOf(tu)]
	if len(same) == 1 && len(from[m.endOf(tu)]) == 1 {
		return same[0].tuple, matched
	}
	if len(same) > 0 {
		return tu, unclear
	}
	mine, rest := left(tu, from, to), left(tu, to, from)
	if len(rest) == 0 {
		return tu, absent
	}
	if len(mine) != 1 || len(rest) != 1 {
		return tu, unclear
	}
	a, b := mine[0], rest[0]
	if a.tuple != tu || m.begin(a.tuple.Reverse()) != m.begin(b.tuple.Reverse()) || !together(a.idle, b.idle) {
		return tu, unclear
	}
	return b.tuple, matched
}

// left are the flows of one side of whose beginning the other side has none, of tu's
// protocol.
func left(tu onpath.Tuple, of, other map[flowEnd][]seenFlow) (list []seenFlow) {
	for end, flows := range of {
		if end.protocol == protocolOf(tu) && len(other[end]) == 0 {
			list = append(list, flows...)
		}
	}
	return list
}

// flowEnd is an end point of flows of one protocol.
type flowEnd struct {
	protocol uint8
	at       netip.AddrPort
}

func (m *matching) endOf(tu onpath.Tuple) flowEnd { return flowEnd{protocolOf(tu), m.begin(tu)} }

// protocolOf is a tuple's protocol, ICMP of both IP versions being one.
func protocolOf(tu onpath.Tuple) uint8 {
	const icmp, icmp6 = 1, 58
	if tu.Protocol == icmp6 {
		return icmp
	}
	return tu.Protocol
}

// together reports whether packets went by two entries at about the same time.
func together(a, b onpath.Duration) bool {
	const apart = onpath.Duration(3 * time.Second)
	return max(a, b)-min(a, b) <= apart
}

func source(tu onpath.Tuple) netip.AddrPort      { return netip.AddrPortFrom(tu.Src, tu.SrcPort) }
func destination(tu onpath.Tuple) netip.AddrPort { return netip.AddrPortFrom(tu.Dst, tu.DstPort) }

// beganBy is the end point of who began an entry's flow.
func beganBy(e onpath.FlowEntry) func(onpath.Tuple) netip.AddrPort {
	if e.Learned {
		return destination
	}
	return source
}

// goesOn says by which addresses a flow goes on.
func goesOn(tu onpath.Tuple) string {
	return fmt.Sprintf("goes on as %s → %s", end(source(tu)), end(destination(tu)))
}

func end(a netip.AddrPort) string { return fmt.Sprintf("%s port %d", a.Addr(), a.Port()) }
