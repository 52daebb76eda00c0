package render

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// quiet is how long a flow rests before it is said when its last packet came.
const quiet = onpath.Duration(3 * time.Second)

// Trace prints the way of a flow: hops in order of travel, both ways; wide with
// more columns.
func Trace(w io.Writer, t *onpath.Trace, wide bool) error {
	fmt.Fprintf(w, "%s\n%s\n", tuple(t.Tuple), headline(t))
	told := tolds{}
	for _, way := range []struct {
		name string
		hops []onpath.TraceHop
	}{{"forward", t.Forward}, {"reverse", t.Reverse}} {
		if len(way.hops) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", way.name)
		if err := hops(w, way.hops, t.Live, wide, told); err != nil {
			return err
		}
	}
	if told.any() {
		fmt.Fprintln(w, "\nALL-DROPPED: of all flows since counting began, not of this one alone; told once")
	}
	if len(t.Warnings) > 0 {
		fmt.Fprintln(w)
	}
	for _, warning := range t.Warnings {
		fmt.Fprintf(w, "! %s\n", warning)
	}
	return nil
}

// headline says in a line what a trace found.
func headline(t *onpath.Trace) string {
	if len(t.Chains) == 0 {
		return "no chain selects it"
	}
	of := chains(t.Chains)
	if !t.Live {
		return of + "; no such flow now: this is what a new one meets"
	}
	when := "seen on the path now"
	if t.Idle >= quiet {
		when = fmt.Sprintf("seen on the path, at last %s ago", time.Duration(t.Idle).Round(time.Second))
	}
	for i, h := range t.Forward {
		switch {
		case h.Unsure:
			return fmt.Sprintf("%s; %s; how it goes on behind hop %d cannot be told", of, when, i+1)
		case h.Ends, h.Kind == onpath.HopDrop:
			return fmt.Sprintf("%s; %s; ends at hop %d", of, when, i+1)
		}
	}
	return of + "; " + when
}

// tolds has what was dropped at vports that a trace has told of: packets that come
// from there, whichever flow's and direction's, so one line says it all.
type tolds map[toldAt]uint64

type toldAt struct {
	node  string
	vport onpath.VportID
}

// first reports whether a hop is the one to tell of its vport, and not the way out.
func (t tolds) first(h onpath.TraceHop) bool {
	if h.Counters == nil || h.Kind == onpath.HopExit {
		return false
	}
	at := toldAt{h.Node, h.Vport}
	if _, ok := t[at]; ok {
		return false
	}
	real, _ := lost(h.Counters.Dropped)
	t[at] = drops(real)
	return true
}

func (t tolds) any() bool {
	for _, n := range t {
		if n > 0 {
			return true
		}
	}
	return false
}

func chains(list []string) string {
	if len(list) == 1 {
		return "chain " + list[0]
	}
	return "chains " + strings.Join(list, ", then ")
}

// hops are the lines of one way. Where the flow is seen, what comes from the plan
// alone is told apart.
func hops(w io.Writer, list []onpath.TraceHop, live, wide bool, told tolds) error {
	head := []string{">", "HOP", "NODE", "NAME", "STATE", ">PACKETS", ">BYTES", ">ALL-DROPPED"}
	if wide {
		head = append(head, "FROM", ">ALL-IN", ">ALL-OUT")
	}
	t := table.New(append(head, "NOTE")...)
	for i, h := range list {
		packets, bytes := "", ""
		if h.Flow != nil {
			packets, bytes = strconv.FormatUint(h.Flow.Packets, 10), Bytes(h.Flow.Bytes)
		}
		in, out, dropped := "", "", ""
		if c := h.Counters; c != nil {
			in, out = strconv.FormatUint(c.In.Packets, 10), strconv.FormatUint(c.Out.Packets, 10)
			if told.first(h) {
				dropped = strconv.FormatUint(told[toldAt{h.Node, h.Vport}], 10)
			} else {
				h.Counters = nil
			}
		}
		row := []string{strconv.Itoa(i + 1), hopName(h), h.Node, shortName(h.Name), h.State, packets, bytes, dropped}
		if wide {
			from := "plan"
			if h.Live {
				from = "live"
			}
			row = append(row, from, in, out)
		}
		note := hopNote(h)
		if live && !h.Live && !wide {
			note = strings.TrimSuffix("by the plan; "+note, "; ")
		}
		t.Row(append(row, note)...)
	}
	return t.Write(w)
}

// shortName leaves out the tenant that commands assume.
func shortName(name string) string {
	return strings.TrimPrefix(name, onpath.DefaultTenant+"/")
}

func hopName(h onpath.TraceHop) string {
	name := string(h.Kind)
	if h.Kind == onpath.HopElement {
		name += " " + strconv.Itoa(h.Element+1)
		if h.Mode == onpath.ModeMirror {
			name += " mirror"
		}
	}
	return name
}

func hopNote(h onpath.TraceHop) string {
	var notes []string
	if h.Message != "" {
		notes = append(notes, h.Message)
	}
	if len(h.Candidates) > 0 && h.Name == "" {
		notes = append(notes, "one of "+strings.Join(h.Candidates, ", "))
	}
	if h.Counters != nil && h.Counters.Device != nil && *h.Counters.Device != (onpath.DeviceDrops{}) {
		notes = append(notes, fmt.Sprintf("its device lost %d going in, %d coming out", h.Counters.Device.Out, h.Counters.Device.In))
	}
	if h.Counters != nil && h.Counters.NotKept > 0 {
		notes = append(notes, fmt.Sprintf("%d packets that came while it slept or woke were lost", h.Counters.NotKept))
	}
	if h.Counters != nil {
		real, ended := lost(h.Counters.Dropped)
		if all := Drops(real); all != "" {
			notes = append(notes, "all flows: "+all)
		}
		notes = append(notes, ofMirror(ended))
	}
	return strings.Join(slices.DeleteFunc(notes, func(s string) bool { return s == "" }), "; ")
}

// lost tells what was dropped from what a mirror sent: that ends at the mirror by
// design, and no end point misses it.
func lost(dropped map[onpath.DropReason]uint64) (real map[onpath.DropReason]uint64, ended uint64) {
	real = maps.Clone(dropped)
	delete(real, onpath.DropMirror)
	return real, dropped[onpath.DropMirror]
}

// ofMirror says in words what became of packets that a mirror sent.
func ofMirror(packets uint64) string {
	if packets == 0 {
		return ""
	}
	return fmt.Sprintf("it gets copies: %d packets that it sent ended here, as they should", packets)
}

// Drops lists drop reasons with their counts, the largest first.
func Drops(m map[onpath.DropReason]uint64) string {
	reasons := make([]onpath.DropReason, 0, len(m))
	for r, n := range m {
		if n > 0 {
			reasons = append(reasons, r)
		}
	}
	slices.SortFunc(reasons, func(a, b onpath.DropReason) int {
		if m[a] != m[b] {
			if m[a] > m[b] {
				return -1
			}
			return 1
		}
		return strings.Compare(string(a), string(b))
	})
	out := make([]string, len(reasons))
	for i, r := range reasons {
		out[i] = fmt.Sprintf("%s %d", r, m[r])
	}
	return strings.Join(out, ", ")
}

func drops(m map[onpath.DropReason]uint64) (n uint64) {
	for _, c := range m {
		n += c
	}
	return n
}

// tuple is "10.1.0.2 → 10.9.0.2 tcp/80".
func tuple(t onpath.Tuple) string {
	s := address(t.Src, t.SrcPort) + " → " + t.Dst.String() + " "
	switch t.Protocol {
	case 6:
		s += "tcp"
	case 17:
		s += "udp"
	case 1, 58:
		s = t.Src.String() + " → " + t.Dst.String() + " icmp"
		if t.SrcPort != 0 {
			s += ", identifier " + strconv.Itoa(int(t.SrcPort))
		}
		return s
	default:
		return s + "protocol " + strconv.Itoa(int(t.Protocol))
	}
	if t.DstPort == 0 { // any
		return s
	}
	return s + "/" + strconv.Itoa(int(t.DstPort))
}

func address(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// ParseFlow reads what the trace command is given: two addresses and
// "tcp/80", "udp/53", "icmp" or a protocol number.
func ParseFlow(src, dst, protocol string) (onpath.Tuple, error) {
	var t onpath.Tuple
	s, d := parseEnd(src), parseEnd(dst)
	for i, end := range []netip.AddrPort{s, d} {
		if !end.Addr().IsValid() {
			return t, invalid("write an address such as 10.1.0.2 or 2001:db8::2", "%q is not an IP address", []string{src, dst}[i])
		}
	}
	if s.Addr().Is4() != d.Addr().Is4() {
		return t, invalid("write two of one version", "%s and %s are of different IP versions", s.Addr(), d.Addr())
	}
	proto, port, err := parseProtocol(protocol)
	if err != nil {
		return t, err
	}
	if t.Protocol = proto; proto == icmp4 && s.Addr().Is6() {
		t.Protocol = icmp6
	}
	t.Src, t.SrcPort, t.Dst, t.DstPort = s.Addr(), s.Port(), d.Addr(), d.Port()
	if port != 0 {
		t.DstPort = port
	}
	if (t.Protocol == 6 || t.Protocol == 17) && t.DstPort == 0 {
		return t, invalid("write -p "+protocol+"/PORT", "the port is missing")
	}
	return t, nil
}

// The protocols that one word means, by the address's IP version.
const (
	icmp4 = 1
	icmp6 = 58
)

// CheckProtocol refuses what ParseFlow would not take as a protocol.
func CheckProtocol(protocol string) error {
	_, _, err := parseProtocol(protocol)
	return err
}

func parseProtocol(protocol string) (number uint8, port uint16, err error) {
	name, after, hasPort := strings.Cut(protocol, "/")
	switch name {
	case "tcp":
		number = 6
	case "udp":
		number = 17
	case "icmp":
		number = icmp4
	default:
		n, err := strconv.ParseUint(name, 10, 8)
		if err != nil {
			return 0, 0, invalid("write tcp/80, udp/53, icmp or a number", "%q is not a protocol", protocol)
		}
		number = uint8(n)
	}
	if !hasPort {
		return number, 0, nil
	}
	n, err := strconv.ParseUint(after, 10, 16)
	if err != nil {
		return 0, 0, invalid("write tcp/80", "%q is not a port", after)
	}
	return number, uint16(n), nil
}

// parseEnd reads an address with or without a port.
func parseEnd(s string) netip.AddrPort {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a.Unmap(), 0)
	}
	p, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

func invalid(remedy, format string, args ...any) error {
	e := onpath.Errorf(onpath.CodeInvalid, format, args...)
	e.Remedy = remedy
	return e
}
