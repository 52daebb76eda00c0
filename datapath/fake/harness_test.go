package fake

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/internal/packet"
)

// harness lets the exam move packets through nodes in memory.
type harness struct {
	t     *testing.T
	net   *Network
	nodes map[string]*Node
	now   time.Time
	out   map[[2]string][]datapathtest.Frame // by node and device
}

func newHarness(t *testing.T) *harness {
	h := &harness{t: t, nodes: map[string]*Node{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), out: map[[2]string][]datapathtest.Frame{}}
	h.net = NewNetwork(h.Now)
	h.net.OnDelivery(func(d Delivery) {
		if d.By == ByLocal {
			return
		}
		k := [2]string{d.Node, d.Device}
		h.out[k] = append(h.out[k], datapathtest.Frame{Src: d.Src, Dst: d.Dst, Packet: d.Packet})
	})
	return h
}

func (h *harness) AddNode(s datapathtest.NodeSpec) onpath.Datapath {
	var o Options
	for _, u := range s.Uplinks {
		x := Uplink{Device: u.Device, MTU: u.MTU}
		for _, a := range u.Addresses {
			x.Addresses = append(x.Addresses, a.Addr())
			o.Routes = append(o.Routes, Route{a.Masked(), u.Device})
		}
		for _, p := range u.Behind {
			o.Routes = append(o.Routes, Route{p, u.Device})
		}
		o.Uplinks = append(o.Uplinks, x)
	}
	o.Function, o.Pending = model, 1<<16
	n, err := h.net.Node(s.Name, o)
	if err != nil {
		h.t.Fatal(err)
	}
	h.nodes[s.Name] = n
	return n
}

// model does what the exam's function does.
func model(p InlinePacket) InlineVerdict {
	a := datapathtest.ExamFunction(p.Function.Vport, p.Tuple, p.Reverse, p.DSCP)
	return InlineVerdict{Drop: a.Drop, Refuse: a.Refuse, Reason: a.Reason, Src: a.Src, Dst: a.Dst, DSCP: a.DSCP}
}

func (h *harness) Function(_ string, v onpath.VportID) onpath.InlineFunction {
	return onpath.InlineFunction{Vport: v, Object: "exam", Maps: "none"}
}

func (h *harness) AddInstance(string, ...onpath.VportID) {}

func (h *harness) Send(node, device string, f datapathtest.Frame) {
	h.nodes[node].InjectFrame(device, encode(h.t, f))
}

// encode writes a frame, padded to Ethernet's least length.
func encode(t *testing.T, f datapathtest.Frame) []byte {
	b := append(mac(t, f.Dst), mac(t, f.Src)...)
	for i, tag := range f.Tags {
		kind := uint16(typeVLAN)
		if i == 0 && len(f.Tags) > 1 {
			kind = typeQinQ
		}
		b = binary.BigEndian.AppendUint16(b, kind)
		b = binary.BigEndian.AppendUint16(b, tag)
	}
	kind := f.EtherType
	if kind == 0 {
		kind = packet.TypeIPv4
		if f.Packet[0]>>4 == 6 {
			kind = packet.TypeIPv6
		}
	}
	b = append(binary.BigEndian.AppendUint16(b, kind), f.Packet...)
	return append(b, make([]byte, max(0, 60-len(b)))...)
}

func mac(t *testing.T, s string) []byte {
	if s == "" {
		return make([]byte, 6)
	}
	m, err := net.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (h *harness) Receive(node, device string, _ time.Duration) (datapathtest.Frame, bool) {
	k := [2]string{node, device}
	q := h.out[k]
	if len(q) == 0 {
		return datapathtest.Frame{}, false
	}
	h.out[k] = q[1:]
	return q[0], true
}

func (h *harness) SendTunnel(node string, p datapathtest.TunnelPacket) {
	h.nodes[node].InjectTunnel(Tunnelled{
		From: p.From, Secret: p.Secret, Next: p.Next, Prev: p.Prev, Entry: p.Entry, Group: p.Group, Packet: p.Packet,
	})
}

func (h *harness) Underlay(node string, there bool) { h.net.Unaddress(node, !there) }

func (h *harness) Forwarded(node string) uint64 { return h.nodes[node].Forwarded() }
func (h *harness) Now() time.Time               { return h.now }
func (h *harness) Sleep(d time.Duration)        { h.now = h.now.Add(d) }
func (h *harness) Lacks(string) string          { return "" }

// Reopen gives the same node: in memory nothing is let go of.
func (h *harness) Reopen(node string) onpath.Datapath { return h.nodes[node] }

var _ datapathtest.Harness = (*harness)(nil)
