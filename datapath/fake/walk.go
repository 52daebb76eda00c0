package fake

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// place is where a walk of tables begins.
type place uint8

const (
	atEdge      place = iota // a packet from outside without an entry
	atElement                // a packet that came out of an element
	atEmitter                // an instance emits, without an entry, from its own address
	atPretender              // an instance emits, without an entry, from another's address
)

// maxTables is how many tables a walk may cross.
const maxTables = 64

// outcome is what a walk of tables decides.
type outcome uint8

const (
	toMember   outcome = iota // deliver to member through group
	toExit                    // leave at the edge where the flow entered
	toRoute                   // leave by this node's routes
	toKernel                  // at the edge: nobody's, leave it alone
	toPass                    // at the edge: a chain's, but passed by
	toReset                   // answer with a RST
	toDrop                    // with reason
	unselected                // at an emitter: no rule of a chain matched
)

// decision is the result of a walk.
type decision struct {
	outcome   outcome
	group     *onpath.Group
	member    onpath.VportID
	mirrors   []mirror
	functions []inlined
	path      onpath.PathID
	reverse   bool
	reason    onpath.DropReason
	first     onpath.PathID   // whose rule matched first
	begun     []onpath.PathID // paths whose first rule matched
	passed    onpath.PathID   // a chain that was passed by on the way
	leaves    onpath.VportID  // toExit: at this edge; 0: where the flow entered
	adopted   bool            // because the connection is older than it
}

// walk goes through tables, beginning with id, until something is decided.
// path is the chain that the packet is in already; only its rules may take up
// TCP connections in the middle. The packet came out of vport.
func (n *Node) walk(id onpath.TableID, t onpath.Tuple, h *packet.Header, from place, path onpath.PathID, vport onpath.VportID) decision {
	return n.walkOn(decision{path: path}, id, t, h, from, vport)
}

// walkOn goes on with what is decided so far.
func (n *Node) walkOn(d decision, id onpath.TableID, t onpath.Tuple, h *packet.Header, from place, vport onpath.VportID) decision {
	readable := h == nil || h.Verdict == packet.Fine && (h.Quotes || !h.IsError)
	for range maxTables {
		table := n.tables[id]
		if table == nil {
			return d.drop(onpath.DropNoTable)
		}
		action, matched := table.Miss, false
		for i := range table.Rules {
			if r := &table.Rules[i]; matches(&r.Match, t, h == nil || h.Known || h.Verdict == packet.Fine, readable) {
				action, matched = r.Action, true
				if d.first == 0 {
					d.first = r.Path
				}
				if o, adopted := n.adopt(r, h, from, d.path); adopted {
					d.outcome, d.passed, d.adopted = o, r.Path, true
					if o == toPass && len(d.mirrors)+len(d.functions) > 0 {
						d.outcome = toExit // past that chain alone
					}
					return d
				}
				if r.Path != 0 {
					if r.Path != d.path {
						d.begun = append(d.begun, r.Path)
					}
					d.path, d.reverse = r.Path, r.Reverse
				}
				break
			}
		}
		if !matched && d.path == 0 && (from == atPretender || from == atEmitter && action.Kind != onpath.ActionTable) {
			d.outcome = unselected
			return d
		}
		next, done := n.act(&d, action, t, from, n.keys[vport])
		if done {
			return d
		}
		id = next
	}
	return d.drop(onpath.DropLoop)
}

func (d decision) drop(why onpath.DropReason) decision {
	d.outcome, d.reason = toDrop, why
	return d
}

// act does one action; it gives the table to go on with unless it is done.
func (n *Node) act(d *decision, a onpath.Action, t onpath.Tuple, from place, upstream uint32) (onpath.TableID, bool) {
	switch a.Kind {
	case onpath.ActionTable:
		return a.Table, false
	case onpath.ActionGroup:
		return n.actGroup(d, a.Group, t, upstream)
	case onpath.ActionDrop:
		d.outcome, d.reason = toDrop, a.Reason
		if d.reason == "" {
			d.reason = onpath.DropPolicy
		}
		return 0, true
	}
	d.outcome = toExit
	switch {
	case a.Kind == onpath.ActionRoute:
		d.outcome = toRoute
	case a.Kind == onpath.ActionDeliver && from != atEdge:
		d.leaves = a.Vport
	}
	if from == atEdge && len(d.mirrors)+len(d.functions) == 0 {
		d.outcome = toKernel
		if d.passed = cmp.Or(d.passed, d.path); d.passed != 0 { // also where no element selects it
			d.outcome = toPass
		}
	}
	return 0, true
}

func (n *Node) actGroup(d *decision, id onpath.GroupID, t onpath.Tuple, upstream uint32) (onpath.TableID, bool) {
	g := n.groups[id]
	if g == nil {
		*d = d.drop(onpath.DropNoTable)
		return 0, true
	}
	d.path, d.reverse = g.Path, g.Reverse
	member, ok := n.pickFor(g, t, upstream)
	switch {
	case g.Mode == onpath.ModeMirror:
		if ok {
			d.mirrors = append(d.mirrors, mirror{id, member})
		}
		return g.Then, false
	case ok && n.function(member) != nil: // also of a group that has members of both kinds
		d.functions = append(d.functions, inlined{member, g.None == onpath.NoneBypass, id})
		return g.Then, false
	case ok:
		d.outcome, d.group, d.member = toMember, g, member
		return 0, true
	case g.None == onpath.NoneBypass:
		d.passed = g.Path
		return g.Then, false
	}
	*d = d.drop(onpath.DropNoInstance)
	return 0, true
}

// adopt says what becomes of a TCP packet in the middle of a connection that
// meets the first rule of a chain while the chain is young.
func (n *Node) adopt(r *onpath.Rule, h *packet.Header, from place, path onpath.PathID) (outcome, bool) {
	if from >= atEmitter || r.Path == 0 || r.Path == path || h == nil {
		return 0, false
	}
	if h.Protocol != packet.TCP || h.Verdict != packet.Fine || h.Flags&(packet.SYN|packet.ACK) == packet.SYN {
		return 0, false
	}
	p := n.paths[r.Path]
	if p == nil || p.Began.IsZero() || !n.now().Before(n.adoptUntil[r.Path]) {
		return 0, false
	}
	switch {
	case p.Cut:
		return toReset, true
	case from == atElement:
		return toExit, true
	}
	return toPass, true
}

// matches tells whether a tuple lies in a match. A protocol or ports that are
// not known count as lying in it.
func matches(m *onpath.Match, t onpath.Tuple, protocol, ports bool) bool {
	if m.Family != 0 && (m.Family == 4) != t.Src.Is4() {
		return false
	}
	if !within(m.Src, t.Src) || !within(m.Dst, t.Dst) {
		return false
	}
	if protocol && len(m.Protocol) > 0 && !slices.Contains(m.Protocol, t.Protocol) {
		return false
	}
	if !ports || len(m.SrcPorts)+len(m.DstPorts) == 0 {
		return true
	}
	switch t.Protocol {
	case packet.TCP, packet.UDP, packet.SCTP, packet.UDPLite:
		return among(m.SrcPorts, t.SrcPort) && among(m.DstPorts, t.DstPort)
	}
	return false
}

func within(prefixes []netip.Prefix, a netip.Addr) bool {
	if len(prefixes) == 0 {
		return true
	}
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func among(ranges []onpath.PortRange, port uint16) bool {
	if len(ranges) == 0 {
		return true
	}
	for _, r := range ranges {
		if r.Contains(port) {
			return true
		}
	}
	return false
}

// unclassified decides on a packet whose addresses can be read but whose ports
// cannot: any strict chain that may have meant it drops it; else the first that
// may have meant it is passed by, and if there is none it is left alone.
func (n *Node) unclassified(h *packet.Header) (passed onpath.PathID, strict bool) {
	if n.edge == nil {
		return 0, false
	}
	id := n.edge.Table
	for range maxTables {
		table := n.tables[id]
		if table == nil {
			return passed, false
		}
		for i := range table.Rules {
			r := &table.Rules[i]
			if !matches(&r.Match, h.Tuple, h.Known, false) {
				continue
			}
			if p := n.paths[r.Path]; p != nil && p.Strict {
				return r.Path, true
			}
			if passed == 0 {
				passed = r.Path
			}
		}
		if table.Miss.Kind != onpath.ActionTable {
			return passed, false
		}
		id = table.Miss.Table
	}
	return passed, false
}

// replying walks the Back table of g for the answers to t, to find which
// mirrors they must meet before the element from which t came, and the group
// of that element. from is the vport at which t came out of it, f the entry by which
// it goes on. The walk finds that group only where nothing else tells: an element
// may have been passed by, or be another tier's.
func (n *Node) replying(g *onpath.Group, t onpath.Tuple, f *flow, from onpath.VportID) ([]mirror, onpath.GroupID) {
	var mirrors []mirror
	answer := t.Reverse()
	id := g.Back
	for range maxTables {
		table := n.tables[id]
		if table == nil || id <= onpath.ClassifierTable(onpath.TierTenant) {
			break
		}
		action := table.Miss
		for i := range table.Rules {
			if r := &table.Rules[i]; matches(&r.Match, answer, true, true) {
				action = r.Action
				break
			}
		}
		if action.Kind == onpath.ActionTable {
			id = action.Table
			continue
		}
		next := n.groups[action.Group]
		if action.Kind != onpath.ActionGroup || next == nil || next.Path != g.Path {
			break
		}
		member, ok := n.pick(next, answer)
		switch {
		case next.Mode == onpath.ModeMirror:
			if ok {
				mirrors = append(mirrors, mirror{next.ID, member})
			}
		case n.isInline(next) && !hasMember(next, from):
		case ok || next.None != onpath.NoneBypass || hasMember(next, from):
			if f.context != 0 {
				return mirrors, f.context ^ 1
			}
			return mirrors, next.ID
		}
		id = next.Then
	}
	if f.context == 0 {
		return mirrors, 0
	}
	return mirrors, f.context ^ 1
}

func hasMember(g *onpath.Group, vport onpath.VportID) bool {
	return slices.ContainsFunc(g.Members, func(m onpath.Member) bool { return m.Vport == vport })
}
