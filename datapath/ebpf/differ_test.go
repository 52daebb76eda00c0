package ebpf_test

import (
	"encoding/binary"
	"flag"
	"math"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/datapath/fake"
)

var (
	differSeed    = flag.Uint64("differ.seed", 0, "seed of the random packets; 0: always the same, in long tests by the time")
	differPackets = flag.Int("differ.packets", 0, "how many packets; 0: 20,000, in long tests a million")
	differEvery   = flag.Int("differ.every", 2000, "compare all counters after so many packets")
)

// TestDiffer holds the data path against the model of it, at tc alone and with the
// fast path at XDP of uplinks before it.
func TestDiffer(t *testing.T) {
	needKernel(t)
	seed, n := *differSeed, *differPackets
	switch {
	case seed != 0:
	case os.Getenv("ONPATH_SOAK") != "":
		seed = uint64(time.Now().UnixNano())
	default:
		seed = 24
	}
	switch {
	case n > 0:
	case os.Getenv("ONPATH_SOAK") != "":
		n = 1_000_000
	default:
		n = 20_000
	}
	t.Logf("seed %d (repeat it with -differ.seed)", seed)
	for _, hook := range []string{"tc", "xdp"} {
		t.Run(hook, func(t *testing.T) {
			model := newModelled(t)
			subject := newProgram(t, hook == "xdp")
			datapathtest.Differ(t, subject, model, seed, n, *differEvery)
			if hook == "xdp" && subject.carried < n/50 && n >= 10_000 && !t.Failed() {
				t.Errorf("XDP has carried only %d packets", subject.carried)
			}
			if subject.long == 0 && n >= 10_000 && !t.Failed() {
				t.Error("no long frame was sent on")
			}
			t.Logf("XDP has carried %d; %d frames longer than %d bytes were sent on", subject.carried, subject.long, longRun)
		})
	}
}

// modelled is the model, told of one frame at a time.
type modelled struct {
	t     *testing.T
	net   *fake.Network
	nodes map[string]*fake.Node
	// What the gateway sent to another node last, and whether it answered one.
	sent     *datapathtest.TunnelPacket
	answered bool
	copies   bool // what is put in may itself be a copy for a mirror
}

func newModelled(t *testing.T) *modelled {
	now := time.Now()
	m := &modelled{t: t, net: fake.NewNetwork(func() time.Time { return now }), nodes: map[string]*fake.Node{}}
	m.net.OnTunnel(func(p fake.Tunnelled, by fake.By) bool { // and there it ends
		if p.From != m.nodes["gw"].Underlay() {
			return false
		}
		switch by {
		case fake.ByAnswer:
			m.answered = true
		case fake.BySteering:
			m.sent = &datapathtest.TunnelPacket{
				From: p.From, Secret: p.Secret, Next: p.Next, Prev: p.Prev, Entry: p.Entry, Group: p.Group, Packet: slices.Clone(p.Packet),
			}
		}
		return false
	})
	return m
}

func (m *modelled) AddNode(s datapathtest.NodeSpec) onpath.Datapath {
	var o fake.Options
	for _, u := range s.Uplinks {
		x := fake.Uplink{Device: u.Device, MTU: u.MTU}
		for _, a := range u.Addresses {
			x.Addresses = append(x.Addresses, a.Addr())
			o.Routes = append(o.Routes, fake.Route{Prefix: a.Masked(), Device: u.Device})
		}
		for _, b := range u.Behind {
			o.Routes = append(o.Routes, fake.Route{Prefix: b, Device: u.Device})
		}
		o.Uplinks = append(o.Uplinks, x)
	}
	o.Function = func(p fake.InlinePacket) fake.InlineVerdict {
		a := datapathtest.ExamFunction(p.Function.Vport, p.Tuple, p.Reverse, p.DSCP)
		return fake.InlineVerdict{Drop: a.Drop, Refuse: a.Refuse, Reason: a.Reason, Src: a.Src, Dst: a.Dst, DSCP: a.DSCP}
	}
	o.Pick, o.Flows, o.Pending = pick, differTable, differTable
	n, err := m.net.Node(s.Name, o)
	if err != nil {
		m.t.Fatal(err)
	}
	m.nodes[s.Name] = n
	return n
}

func (m *modelled) Put(node, device string, f datapathtest.Frame, segment int) (datapathtest.Outcome, datapathtest.Frame, string) {
	n := m.nodes[node]
	raw := append(binary.BigEndian.AppendUint16(make([]byte, 12), etherType(f)), f.Packet...)
	otherwise := datapathtest.Left
	if device != "up0" && device != "up1" {
		otherwise = datapathtest.Gone // what an instance sends is never the kernel's
	}
	return m.outcome(n, otherwise, func() {
		if segment > 0 {
			n.InjectSegments(device, raw, segment)
		} else {
			n.InjectFrame(device, raw)
		}
	})
}

// PutTunnel implements datapathtest.Prober.
func (m *modelled) PutTunnel(node string, p datapathtest.TunnelPacket) (datapathtest.Outcome, datapathtest.Frame, string) {
	n := m.nodes[node]
	m.copies = true
	defer func() { m.copies = false }()
	return m.outcome(n, datapathtest.Gone, func() {
		n.InjectTunnel(fake.Tunnelled{
			From: p.From, Secret: p.Secret, Next: p.Next, Prev: p.Prev, Entry: p.Entry, Group: p.Group, Packet: p.Packet,
		})
	})
}

// outcome is what becomes of the packet that is put in; otherwise if nothing tells.
func (m *modelled) outcome(n *fake.Node, otherwise datapathtest.Outcome, put func()) (datapathtest.Outcome, datapathtest.Frame, string) {
	before := n.Dropped()
	m.net.Deliveries()
	m.sent, m.answered = nil, false
	put()
	outcome, out, to := otherwise, datapathtest.Frame{}, ""
	if n.Dropped() != before {
		outcome = datapathtest.Gone
	}
	if m.sent != nil {
		b := inTunnel(*m.sent)
		outcome = datapathtest.Sent
		out = datapathtest.Frame{Dst: net.HardwareAddr(b[:6]).String(), Src: net.HardwareAddr(b[6:12]).String(), Packet: m.sent.Packet}
	}
	if m.answered {
		outcome = datapathtest.Answered
	}
	for _, d := range m.net.Deliveries() {
		switch {
		case d.Node != n.Name():
		case d.By == fake.BySteering, d.By == fake.ByMirror && m.copies && outcome != datapathtest.Sent:
			outcome, out = datapathtest.Sent, datapathtest.Frame{Src: d.Src, Dst: d.Dst, Packet: d.Packet}
			if d.Dst != "" {
				to = d.Device
			}
		case d.By == fake.ByAnswer:
			outcome = datapathtest.Answered
		}
	}
	return outcome, out, to
}

// Functions implements datapathtest.Prober.
func (m *modelled) Functions() bool { return true }

// Function is the exam's; modelFunction does in the model what its object does.
func (m *modelled) Function(_ string, v onpath.VportID) onpath.InlineFunction {
	return onpath.InlineFunction{Vport: v, Object: "exam", Maps: "none"}
}

func (m *modelled) AddInstance(string, ...onpath.VportID)        {}
func (m *modelled) Send(string, string, datapathtest.Frame)      {}
func (m *modelled) SendTunnel(string, datapathtest.TunnelPacket) {}
func (m *modelled) Underlay(node string, there bool)             { m.net.Unaddress(node, !there) }
func (m *modelled) Forwarded(node string) uint64                 { return m.nodes[node].Forwarded() }
func (m *modelled) Now() time.Time                               { return time.Now() }
func (m *modelled) Lacks(string) string                          { return "" }
func (m *modelled) Receive(string, string, time.Duration) (f datapathtest.Frame, ok bool) {
	return f, false
}

// pick chooses as bpf/lib/group.h does.
func pick(_ *onpath.Group, members []onpath.Member, t onpath.Tuple) int {
	var h uint64
	for _, a := range []netip.Addr{t.Src, t.Dst} {
		b := a.As16()
		h = mix(h, binary.LittleEndian.Uint64(b[:8]))
		h = mix(h, binary.LittleEndian.Uint64(b[8:]))
	}
	// Ports are read as they lie in memory.
	h = mix(h, uint64(bits.ReverseBytes16(t.SrcPort))<<32|uint64(bits.ReverseBytes16(t.DstPort))<<16|uint64(t.Protocol))
	best, drew := -1, uint64(0)
	for i, m := range members {
		mine := draw(uint32(mix(mix(h, uint64(m.Key)), 0x5bd1e995) >> 32))
		if best < 0 || mine*uint64(members[best].Weight) < drew*uint64(m.Weight) {
			best, drew = i, mine
		}
	}
	return best
}

func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// draw is -log2(u / 2^32) with 24 fractional bits, from a table of 256 steps.
func draw(u uint32) uint64 {
	u |= 1
	shift := bits.LeadingZeros32(u)
	v := u << shift
	i := v >> 23 & 0xff
	low, high := log2Of(i), log2Of(i+1)
	low += (high - low) * uint64(v&0x7fffff) >> 23
	return uint64(shift+1)<<24 - low
}

// log2Of is log2(1 + i/256) with 24 fractional bits.
func log2Of(i uint32) uint64 {
	return uint64(math.Round(math.Log2(1+float64(i)/256) * (1 << 24)))
}
