package fake

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// InlinePacket is what a model of an ebpf function is told of a packet.
type InlinePacket struct {
	Function onpath.InlineFunction
	Tuple    onpath.Tuple // of an ICMP error: that of the flow which it is about
	Reverse  bool
	DSCP     uint8
	Length   int
	Error    bool
}

// InlineVerdict is what it says. The zero value lets the packet go on unchanged.
type InlineVerdict struct {
	Drop, Refuse bool
	Reason       uint8
	Src, Dst     netip.AddrPort // written where valid
	DSCP         *uint8
}

// inlined is a function to be run on a flow's packets.
type inlined struct {
	vport  onpath.VportID
	bypass bool           // none: bypass
	group  onpath.GroupID // by which it was chosen
}

// isInline reports whether functions of this node are among a group's members.
func (n *Node) isInline(g *onpath.Group) bool {
	return g.Mode != onpath.ModeMirror && slices.ContainsFunc(g.Members, func(m onpath.Member) bool { return n.function(m.Vport) != nil })
}

// function gives a function's vport on this node.
func (n *Node) function(id onpath.VportID) *onpath.Vport {
	if v := n.vports[id]; v != nil && v.Kind == onpath.VportFunction {
		return v
	}
	return nil
}

// repliedBy are the functions that answers to a packet run, which goes on by f. Of the
// one for which it came from where the flow entered, the sender names the element, which may not be known here.
func (n *Node) repliedBy(w *work, f *flow) []inlined {
	list := backwards(f.functions)
	if len(list) > 0 && w.key.vport == f.entry && n.relayed(w) {
		first := &list[len(list)-1]
		if first.group = 0; n.groups[w.tunnel.Group] != nil {
			first.group = w.tunnel.Group ^ 1
		}
	}
	return list
}

func backwards(list []inlined) []inlined {
	out := slices.Clone(list)
	slices.Reverse(out)
	for i := range out {
		out[i].group ^= 1
	}
	return out
}

// relayed reports whether a packet came from another node for a function of this one, out
// of a vport that lies there, as it says.
func (n *Node) relayed(w *work) bool {
	v := n.vports[w.key.vport]
	return w.tunnel != nil && n.function(w.tunnel.Next) != nil && w.key.vport != n.edgeVport() && (v == nil || v.Kind == onpath.VportRemote)
}

// relay takes a packet that another node sent to a function of this one: its entry
// stands under the vport that it came out of, which lies there. Where it says that it
// came out of one of this node, it has none.
func (n *Node) relay(w *work, t Tunnelled) {
	g := n.groups[t.Group]
	w.tenant = n.vports[t.Next].Tenant // what comes from another tier's element tells no path
	ours := !n.relayed(w)
	if f := n.find(w.key, w.tenant); f != nil && !ours {
		if g == nil || !n.outlived(f, g.Path) {
			n.moveGateway(f, t.Entry)
			n.follow(w, f)
			return
		}
		n.drop(w.key, f)
	}
	if g == nil {
		n.countDrop(w.key.vport, onpath.DropNoTable)
		return
	}
	d := decision{path: g.Path, reverse: g.Reverse}
	if next, done := n.actGroup(&d, g.ID, w.key.tuple, n.keys[w.key.vport]); !done {
		d = n.walkOn(d, next, w.key.tuple, &w.h, atElement, w.key.vport)
	}
	f := flow{path: d.path, reverse: d.reverse, mirrors: d.mirrors, functions: d.functions, entry: t.Entry}
	switch d.outcome {
	case toMember:
		f.kind, f.next, f.group = onpath.NextVport, d.member, d.group.ID
	case toExit:
		f.entry = cmp.Or(d.leaves, f.entry)
		n.aimAtExit(&f)
	case toRoute:
		f.kind, f.next, f.route = onpath.NextExit, n.edgeVport(), true
	default:
		n.refuse(w, d)
		return
	}
	if !ours && n.edgeVport() != 0 && n.peerGateway(w.key.vport) == n.edgeVport() { // this edge may know more than the rules
		f.asRelayed(n, n.anywhere(flowKey{n.edgeVport(), w.key.tuple}))
	}
	if !w.writes || ours {
		n.steer(w, &f)
		return
	}
	if d.outcome == toMember {
		noteAffinity(n, d.group, w.key.tuple, d.member)
	}
	n.begin(w, n.learn(w, w.key, f, w.tenant))
}

// runFunctions runs an entry's functions; false if one of them ended the packet.
func (n *Node) runFunctions(w *work, f *flow) bool {
	for _, item := range f.functions {
		v := n.vports[item.vport]
		c := n.counters.Functions[item.vport]
		if v == nil || v.State == onpath.VportClosed || n.inline[item.vport].Object == "" {
			if item.bypass {
				n.add(&c.Bypassed, w.h.Length)
				n.counters.Functions[item.vport] = c
				continue
			}
			n.countDrop(w.key.vport, onpath.DropNoInstance)
			n.countDrop(item.vport, onpath.DropNoInstance)
			return false
		}
		n.countOut(item.vport, w.h.Length)
		verdict := n.ask(w, f, item.vport)
		other := func(a netip.AddrPort) bool { return a.IsValid() && a.Addr().Is6() != w.h.V6 }
		if other(verdict.Src) || other(verdict.Dst) {
			verdict.Drop = true // an address of the other IP version
		}
		switch {
		case verdict.Drop, verdict.Refuse:
			if c.Reasons == nil {
				c.Reasons = map[uint8]uint64{}
			}
			c.Reasons[verdict.Reason] += n.pieces()
			if verdict.Drop {
				n.add(&c.Dropped, w.h.Length)
				n.countDrop(w.key.vport, onpath.DropFunction)
			} else {
				n.add(&c.Answered, w.h.Length)
				n.tell(w)
			}
			n.counters.Functions[item.vport] = c
			return false
		}
		n.add(&c.Passed, w.h.Length)
		n.counters.Functions[item.vport] = c
		n.countIn(item.vport, w.h.Length)
		n.edit(w, verdict)
	}
	return true
}

func (n *Node) ask(w *work, f *flow, v onpath.VportID) InlineVerdict {
	if n.options.Function == nil {
		return InlineVerdict{}
	}
	return n.options.Function(InlinePacket{
		Function: n.inline[v], Tuple: w.key.tuple, Reverse: f.reverse, DSCP: packet.DSCP(w.b), Length: w.h.Length, Error: w.h.IsError,
	})
}

// tell drops a packet for a function, and says so to its sender.
func (n *Node) tell(w *work) {
	if w.h.Protocol == packet.TCP {
		n.resetFor(w, onpath.DropFunction)
		return
	}
	n.countDrop(w.key.vport, onpath.DropFunction)
	if w.h.V6 {
		n.complain(w, 1, 1, 0)
	} else {
		n.complain(w, 3, 13, 0)
	}
}

// edit writes what a function asked for. The packet is another flow's from here on.
func (n *Node) edit(w *work, v InlineVerdict) {
	if v.Src.IsValid() {
		n.editEnd(w, true, v.Src)
	}
	if v.Dst.IsValid() {
		n.editEnd(w, false, v.Dst)
	}
	if v.DSCP != nil {
		packet.SetDSCP(w.b, *v.DSCP)
	}
}

func (n *Node) editEnd(w *work, source bool, to netip.AddrPort) {
	if w.h.IsError {
		return // the model's functions leave errors alone
	}
	if !w.edited {
		w.came = w.h.Tuple
	}
	packet.SetAddress(w.b, &w.h, source, to.Addr())
	if to.Port() != 0 && packet.HasPorts(w.h.Protocol) {
		packet.SetPort(w.b, &w.h, source, to.Port())
	}
	w.key.tuple = w.h.Tuple
	w.edited = true
}

// unedit gives a packet the tuple back that its sender wrote, who would not know the
// other one.
func (n *Node) unedit(w *work) {
	if w.edited {
		n.editEnd(w, true, netip.AddrPortFrom(w.came.Src, w.came.SrcPort))
		n.editEnd(w, false, netip.AddrPortFrom(w.came.Dst, w.came.DstPort))
	}
	if w.outside.IsValid() {
		n.editEnd(w, false, w.outside)
	}
	w.edited, w.outside = false, netip.AddrPort{}
}
