package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/onpath/onpath"
)

// ends are the addresses of one end of a chain.
type ends struct {
	any bool
	// addrs are the end points' own, virtual what may stand for them as a
	// destination.
	addrs, virtual []netip.Prefix
	// deployment: the end is the instances of one, by their own addresses.
	deployment name
}

func (e ends) source() []netip.Prefix { return e.addrs }

func (e ends) destination() []netip.Prefix {
	return slices.Concat(e.addrs, e.virtual)
}

// reversed are the selectors as packets of the other direction see them.
func reversed(list []onpath.Selector) []onpath.Selector {
	out := make([]onpath.Selector, len(list))
	for i, s := range list {
		out[i] = onpath.Selector{Protocol: s.Protocol, SourcePorts: s.DestinationPorts, DestinationPorts: s.SourcePorts,
			Sources: s.Destinations, Destinations: s.Sources}
	}
	return out
}

// matches are those of src→dst narrowed by the selectors; an end that is any
// is a nil list. Selectors that no packet can meet give none.
func matches(srcAny bool, src []netip.Prefix, dstAny bool, dst []netip.Prefix, sel []onpath.Selector) []onpath.Match {
	if len(sel) == 0 {
		sel = []onpath.Selector{{}}
	}
	var out []onpath.Match
	for _, s := range sel {
		m, ok := matchOf(s)
		if !ok {
			continue
		}
		if m.Src, ok = narrow(srcAny, src, m.Src); !ok {
			continue
		}
		if m.Dst, ok = narrow(dstAny, dst, m.Dst); !ok {
			continue
		}
		if families(m.Src)&families(m.Dst) != 0 {
			out = append(out, m)
		}
	}
	return out
}

// matchOf is a selector alone, as a match.
func matchOf(s onpath.Selector) (onpath.Match, bool) {
	m := onpath.Match{Src: plain(s.Sources), Dst: plain(s.Destinations), SrcPorts: clonePorts(s.SourcePorts), DstPorts: clonePorts(s.DestinationPorts)}
	var ok bool
	m.Protocol, ok = protocolNumbers(s.Protocol)
	return m, ok
}

func clonePorts(p []onpath.PortRange) []onpath.PortRange {
	if len(p) == 0 {
		return nil
	}
	return slices.Clone(p)
}

func protocolNumbers(p onpath.Protocol) ([]uint8, bool) {
	switch p {
	case "":
		return nil, true
	case "icmp":
		return []uint8{1, 58}, true
	case "tcp":
		return []uint8{6}, true
	case "udp":
		return []uint8{17}, true
	}
	n, err := strconv.ParseUint(string(p), 10, 8)
	return []uint8{uint8(n)}, err == nil
}

func plain(list []onpath.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, p.Prefix)
	}
	return out
}

// narrow intersects an end (everything if any) with a selector's list
// (everything if empty). The result is sorted; ok is false if nothing is left.
func narrow(any bool, end, sel []netip.Prefix) (out []netip.Prefix, ok bool) {
	switch {
	case any && len(sel) == 0:
		return nil, true
	case any:
		return tidy(sel), true
	case len(end) == 0:
		return nil, false
	case len(sel) == 0:
		return tidy(end), true
	}
	return commonPrefixes(tidy(end), tidy(sel))
}

// tidy sorts prefixes and drops those that lie inside of another.
func tidy(list []netip.Prefix) []netip.Prefix {
	list = slices.Clone(list)
	slices.SortFunc(list, comparePrefix)
	out := list[:0]
	for _, p := range list {
		if n := len(out); n > 0 && out[n-1].Overlaps(p) {
			continue // sorted: the wider comes first
		}
		out = append(out, p)
	}
	return out
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()), a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// families are the IP versions in a list, as bits 4 and 6 ORed; an empty list
// has both.
func families(list []netip.Prefix) int {
	f := 0
	for _, p := range list {
		if p.Addr().Is4() {
			f |= 1
		} else {
			f |= 2
		}
	}
	if len(list) == 0 {
		return 3
	}
	return f
}

// overlap is a match that both a and b cover; ok is false if there is none.
func overlap(a, b onpath.Match) (m onpath.Match, ok bool) {
	if a.Family != 0 && b.Family != 0 && a.Family != b.Family {
		return m, false
	}
	m.Family = max(a.Family, b.Family)
	if m.Protocol, ok = common(a.Protocol, b.Protocol); !ok {
		return m, false
	}
	if m.SrcPorts, ok = commonPorts(a.SrcPorts, b.SrcPorts); !ok {
		return m, false
	}
	if m.DstPorts, ok = commonPorts(a.DstPorts, b.DstPorts); !ok {
		return m, false
	}
	if len(m.SrcPorts)+len(m.DstPorts) > 0 && len(m.Protocol) > 0 && !slices.ContainsFunc(m.Protocol, hasPorts) {
		return m, false
	}
	if m.Src, ok = commonPrefixes(a.Src, b.Src); !ok {
		return m, false
	}
	if m.Dst, ok = commonPrefixes(a.Dst, b.Dst); !ok {
		return m, false
	}
	return m, families(m.Src)&families(m.Dst) != 0
}

// inside reports whether b covers every packet that a covers.
func inside(a, b onpath.Match) bool {
	m, ok := overlap(a, b)
	return ok && versions(m) == versions(a) && slices.Equal(m.Protocol, a.Protocol) && slices.Equal(m.SrcPorts, a.SrcPorts) &&
		slices.Equal(m.DstPorts, a.DstPorts) && slices.Equal(m.Src, a.Src) && slices.Equal(m.Dst, a.Dst)
}

// versions are the IP versions of packets that a match covers, as families has them.
func versions(m onpath.Match) int {
	v := families(m.Src) & families(m.Dst)
	switch m.Family {
	case 4:
		v &= 1
	case 6:
		v &= 2
	}
	return v
}

func hasPorts(p uint8) bool { return p == 6 || p == 17 || p == 132 || p == 136 }

func common(a, b []uint8) ([]uint8, bool) {
	if len(a) == 0 {
		return b, true
	}
	if len(b) == 0 {
		return a, true
	}
	var out []uint8
	for _, x := range a {
		if slices.Contains(b, x) {
			out = append(out, x)
		}
	}
	return out, len(out) > 0
}

func commonPorts(a, b []onpath.PortRange) ([]onpath.PortRange, bool) {
	if len(a) == 0 {
		return b, true
	}
	if len(b) == 0 {
		return a, true
	}
	var out []onpath.PortRange
	for _, x := range a {
		for _, y := range b {
			if r := (onpath.PortRange{First: max(x.First, y.First), Last: min(x.Last, y.Last)}); r.First <= r.Last {
				out = append(out, r)
			}
		}
	}
	return out, len(out) > 0
}

// commonPrefixes intersects two tidy lists by walking along both: long lists
// are compared with each other on every change.
func commonPrefixes(a, b []netip.Prefix) ([]netip.Prefix, bool) {
	if len(a) == 0 {
		return b, true
	}
	if len(b) == 0 {
		return a, true
	}
	var out []netip.Prefix
	for i, j := 0, 0; i < len(a) && j < len(b); {
		p, q := a[i], b[j]
		switch {
		case p.Overlaps(q) && p.Bits() >= q.Bits():
			out = append(out, p)
			i++
		case p.Overlaps(q):
			out = append(out, q)
			j++
		case comparePrefix(p, q) < 0:
			i++
		default:
			j++
		}
	}
	return out, len(out) > 0
}

// words says which traffic a match is: "tcp from any to 198.51.100.10 port 80".
func words(m onpath.Match) string {
	var b strings.Builder
	switch {
	case len(m.Protocol) == 0:
		b.WriteString("everything")
	case m.Protocol[0] == 6:
		b.WriteString("tcp")
	case m.Protocol[0] == 17:
		b.WriteString("udp")
	case m.Protocol[0] == 1:
		b.WriteString("icmp")
	default:
		fmt.Fprintf(&b, "protocol %d", m.Protocol[0])
	}
	b.WriteString(" from " + some(m.Src))
	if len(m.SrcPorts) > 0 {
		b.WriteString(" port " + m.SrcPorts[0].String())
	}
	b.WriteString(" to " + some(m.Dst))
	if len(m.DstPorts) > 0 {
		b.WriteString(" port " + m.DstPorts[0].String())
	}
	return b.String()
}

func some(list []netip.Prefix) string {
	switch len(list) {
	case 0:
		return "any"
	case 1:
		return onpath.Prefix{Prefix: list[0]}.String()
	}
	return fmt.Sprintf("%s and %d more", onpath.Prefix{Prefix: list[0]}, len(list)-1)
}
