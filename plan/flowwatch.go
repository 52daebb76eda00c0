package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/onpath/onpath"
)

// WatchTuples are what is to be watched for a flow: both directions, as packets
// carry them before and behind each element that a trace knows.
func WatchTuples(t *onpath.Trace, asked onpath.Tuple) []onpath.Tuple {
	out := []onpath.Tuple{asked, asked.Reverse()}
	add := func(tu onpath.Tuple) {
		if asked.SrcPort == 0 { // any flow: its own ports would count one only
			tu.SrcPort, tu.DstPort = anyPorts(tu, asked)
		}
		if len(out) < onpath.MaxWatches && !slices.Contains(out, tu) {
			out = append(out, tu)
		}
	}
	for _, hops := range [][]onpath.TraceHop{t.Forward, t.Reverse} {
		for _, h := range hops {
			if h.Tuple != nil {
				add(*h.Tuple)
				add(h.Tuple.Reverse())
			}
		}
	}
	return out
}

// anyPorts leaves of a tuple's ports that one which tells services apart.
func anyPorts(tu, asked onpath.Tuple) (src, dst uint16) {
	switch {
	case asked.DstPort == 0:
		return 0, 0
	case tu.SrcPort == asked.DstPort || tu.Src == asked.Dst:
		return tu.SrcPort, 0
	}
	return 0, tu.DstPort
}

// Watched puts what nodes counted for a flow into the order of its hops.
func Watched(s *Snapshot, t *onpath.Trace, asked onpath.Tuple, counted map[string][]onpath.FlowCounters) *onpath.FlowWatch {
	w := &watcher{w: newWorld(s), counted: counted, used: map[seenAt]bool{}}
	out := &onpath.FlowWatch{Time: s.Now, Tuple: asked, Live: t.Live, Warnings: t.Warnings}
	out.Forward = w.follow(t.Forward, asked)
	last := asked
	for _, h := range out.Forward {
		if h.Tuple != nil {
			last = *h.Tuple
		}
	}
	last = last.Reverse()
	if len(t.Reverse) > 0 && t.Reverse[0].Tuple != nil { // answers to what a function made of it
		last = *t.Reverse[0].Tuple
	}
	out.Reverse = w.follow(t.Reverse, last)
	out.Elsewhere = w.rest()
	return out
}

// seenAt is one counter of a tuple at a vport of a node.
type seenAt struct {
	node  string
	vport onpath.VportID
	tuple onpath.Tuple
	out   bool
}

type watcher struct {
	w       *world
	counted map[string][]onpath.FlowCounters
	used    map[seenAt]bool
}

// at reads what a node counted for a tuple at a vport.
func (w *watcher) at(node string, v onpath.VportID, tu onpath.Tuple, out bool) onpath.VportCounters {
	w.used[seenAt{node, v, tu, out}] = true
	for _, f := range w.counted[node] {
		if f.Tuple == tu {
			return f.Vports[v]
		}
	}
	return onpath.VportCounters{}
}

// watched is the tuple under which a packet's tuple is counted.
func (w *watcher) watched(tu onpath.Tuple) onpath.Tuple {
	for _, list := range w.counted {
		for _, f := range list {
			if f.Tuple == tu {
				return tu
			}
		}
		for _, f := range list {
			if covers(f.Tuple, tu) {
				return f.Tuple
			}
		}
	}
	return tu
}

// follow makes the hops of one direction; tu is the tuple with which its packets
// enter.
func (w *watcher) follow(hops []onpath.TraceHop, tu onpath.Tuple) (out []onpath.WatchHop) {
	tu = w.watched(tu)
	var from string // node and vport that the packets come from
	var prev onpath.VportID
	for _, h := range hops {
		n := onpath.WatchHop{Kind: h.Kind, Node: h.Node, Vport: h.Vport, Name: h.Name, Mode: h.Mode, Message: h.Message}
		switch h.Kind {
		case onpath.HopEdge:
			c := w.at(h.Node, h.Vport, tu, false)
			n.In, n.Dropped = c.In, maps.Clone(c.Dropped)
			from, prev = h.Node, h.Vport
		case onpath.HopElement:
			i := w.w.byVport[h.Vport]
			if h.Mode == onpath.ModeMirror {
				out = append(out, w.mirror(n, i, tu))
				continue
			}
			if i == nil || i.node == nil {
				break
			}
			if from == "" { // packets that it sends itself
				c := w.at(i.node.name, h.Vport, tu, false)
				n.In, n.Out, n.Dropped = c.In, c.In, maps.Clone(c.Dropped)
				from, prev = i.node.name, h.Vport
				break
			}
			if h.Unsure || rewrites(i) && !i.inline() && h.Tuple == nil { // under which addresses packets leave it is not known
				w.cross(&out, from, i.node.name, prev, h.Vport, tu)
				if !i.inline() {
					n.In = w.at(i.node.name, h.Vport, tu, true).Out
				}
				if n.Message == "" {
					n.Message = "it changes addresses: what becomes of these packets behind it is not counted here"
				}
				reconcile(append(out, n))
				return append(out, n)
			}
			if i.inline() {
				w.cross(&out, from, i.node.name, prev, h.Vport, tu)
				from, prev = i.node.name, h.Vport
				w.change(&tu, &n, h)
				out = passInline(out, n)
				continue
			}
			w.cross(&out, from, i.node.name, prev, h.Vport, tu)
			n.In = w.at(i.node.name, h.Vport, tu, true).Out
			exit := h.Vport
			if i.bridged() {
				exit = i.obj.Spec.Vport + i.obj.Spec.Back - h.Vport
			}
			w.change(&tu, &n, h)
			c := w.at(i.node.name, exit, tu, false)
			n.Out, n.Dropped = c.In, maps.Clone(c.Dropped)
			n.Function = int64(n.In.Packets) - int64(n.Out.Packets)
			from, prev = i.node.name, exit
		case onpath.HopExit:
			w.cross(&out, from, h.Node, prev, h.Vport, tu)
			c := w.at(h.Node, h.Vport, tu, true)
			n.In, n.Out = c.Out, c.Out
		case onpath.HopTunnel, onpath.HopKernel, onpath.HopDrop:
			continue
		}
		out = append(out, n)
	}
	reconcile(out)
	return out
}

// change goes on with the tuple that a flow has behind a hop.
func (w *watcher) change(tu *onpath.Tuple, n *onpath.WatchHop, h onpath.TraceHop) {
	if h.Tuple == nil {
		return
	}
	if next := w.watched(*h.Tuple); next != *tu {
		n.Tuple, *tu = h.Tuple, next
	}
}

// passInline appends the hop of an ebpf function. Nobody counts a flow's packets at
// its vport, but what it drops counts as dropped where the packets came from: at the
// hop before, for all functions that run there. The first of them has it here.
func passInline(out []onpath.WatchHop, n onpath.WatchHop) []onpath.WatchHop {
	k := len(out) - 1
	for k >= 0 && isMirror(&out[k]) {
		k--
	}
	if k < 0 {
		return append(out, n)
	}
	before := &out[k]
	n.In = before.In
	if before.Kind != onpath.HopEdge {
		n.In = before.Out
	}
	dropped := before.Dropped[onpath.DropFunction]
	delete(before.Dropped, onpath.DropFunction)
	n.In.Packets -= min(n.In.Packets, uint64(drops(before.Dropped)))
	n.Out, n.Function = n.In, int64(min(dropped, n.In.Packets))
	n.Out.Packets -= uint64(n.Function)
	if n.Function > 0 || len(before.Dropped) > 0 {
		n.In.Bytes, n.Out.Bytes = 0, 0 // not counted by themselves
	}
	if n.Function > 0 {
		n.Message = "dropped by it, or by functions right behind it"
	}
	return append(out, n)
}

// isMirror tells a mirror from an element that the flow goes through.
func isMirror(h *onpath.WatchHop) bool { return h.Mode == onpath.ModeMirror }

// mirror completes the hop of a mirror: what it is given, and that what it sends ends
// there.
func (w *watcher) mirror(n onpath.WatchHop, i *instance, tu onpath.Tuple) onpath.WatchHop {
	if i == nil || i.node == nil {
		return n
	}
	n.In = w.at(i.node.name, n.Vport, tu, true).Out
	for _, v := range []onpath.VportID{i.obj.Spec.Vport, i.obj.Spec.Back} {
		if v == 0 {
			continue
		}
		for reason, dropped := range w.at(i.node.name, v, tu, false).Dropped {
			if n.Dropped == nil {
				n.Dropped = map[onpath.DropReason]uint64{}
			}
			n.Dropped[reason] += dropped
		}
	}
	return n
}

// copies are what came to a node of a flow for mirrors that it has met just now.
func copies(hops []onpath.WatchHop, node string) (t onpath.Tally) {
	for k := len(hops) - 1; k >= 0 && isMirror(&hops[k]); k-- {
		if hops[k].Node == node {
			t.Packets += hops[k].In.Packets
			t.Bytes += hops[k].In.Bytes
		}
	}
	return t
}

// cross notes what was sent to another node and what came there.
func (w *watcher) cross(out *[]onpath.WatchHop, from, to string, prev, v onpath.VportID, tu onpath.Tuple) {
	if from == "" || from == to {
		return
	}
	sent := w.at(from, v, tu, true)
	came := w.at(to, prev, tu, false)
	more := copies(*out, to) // which come from the same vport
	came.In.Packets -= min(came.In.Packets, more.Packets)
	came.In.Bytes -= min(came.In.Bytes, more.Bytes)
	n := onpath.WatchHop{Kind: onpath.HopTunnel, Node: from, Vport: v, Name: "to " + to, In: sent.Out, Out: came.In, Dropped: maps.Clone(came.Dropped)}
	*out = append(*out, n)
}

// reconcile completes the hops: at an edge leaves what comes to the next hop or
// was not dropped; what does not come to the next is lost before it.
func reconcile(hops []onpath.WatchHop) {
	next := func(i int) *onpath.WatchHop {
		for k := i + 1; k < len(hops); k++ {
			if !isMirror(&hops[k]) {
				return &hops[k]
			}
		}
		return nil
	}
	for i := range hops {
		h := &hops[i]
		if isMirror(h) {
			continue
		}
		if h.Kind == onpath.HopEdge {
			if n := next(i); n != nil {
				h.Out = n.In
			}
		}
		n := next(i)
		if n == nil {
			continue
		}
		gone := h.In.Packets
		if h.Kind == onpath.HopElement {
			gone = h.Out.Packets
		}
		n.Lost = int64(gone) - drops(h.Dropped) - int64(n.In.Packets)
	}
}

func drops(m map[onpath.DropReason]uint64) (n int64) {
	for _, v := range m {
		n += int64(v)
	}
	return n
}

// rest is what was counted where no hop stands for it.
func (w *watcher) rest() (out []onpath.WatchHop) {
	for _, node := range slices.Sorted(maps.Keys(w.counted)) {
		for _, f := range w.counted[node] {
			for _, v := range slices.Sorted(maps.Keys(f.Vports)) {
				c := f.Vports[v]
				i := w.w.byVport[v]
				if i == nil || i.node == nil || i.node.name != node {
					continue // another node's, which counts for itself
				}
				n := onpath.WatchHop{Kind: onpath.HopElement, Node: node, Vport: v, Name: i.key.String()}
				if tu := f.Tuple; tu != (onpath.Tuple{}) {
					n.Tuple = &tu
				}
				if !w.used[seenAt{node, v, f.Tuple, true}] {
					n.In = c.Out
				}
				if !w.used[seenAt{node, v, f.Tuple, false}] {
					n.Out, n.Dropped = c.In, maps.Clone(c.Dropped)
				}
				if cmp.Or(n.In.Packets, n.Out.Packets) > 0 || len(n.Dropped) > 0 {
					out = append(out, n)
				}
			}
		}
	}
	return out
}
