package ebpf_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	cilium "github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/datapath/fake"
	"github.com/onpath/onpath/internal/netnsrun"
)

var (
	differSeed    = flag.Uint64("differ.seed", 0, "seed of the random packets; 0: by the time")
	differPackets = flag.Int("differ.packets", 1_000_000, "how many packets")
	differEvery   = flag.Int("differ.every", 2000, "compare all counters after so many packets")
)

// TestDiffer holds the data path against the model of it.
func TestDiffer(t *testing.T) {
	needKernel(t)
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; a million packets take minutes")
	}
	seed, n := *differSeed, *differPackets
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	if testing.Short() {
		n /= 20
	}
	t.Logf("seed %d (repeat it with -differ.seed)", seed)
	now := time.Now() // nothing grows old while a run lasts
	model := &modelled{t: t, net: fake.NewNetwork(func() time.Time { return now }), nodes: map[string]*fake.Node{}}
	datapathtest.Differ(t, newProgram(t), model, seed, n, *differEvery)
}

// programmed runs frames through the program itself, in the namespace of the
// gateway, whose devices it knows.
type programmed struct {
	*harness
	drivers map[string]*ebpf.Driver
	devices map[string]uint32
	work    chan func() error
	done    chan error
	out     []byte
}

func newProgram(t *testing.T) *programmed {
	return &programmed{harness: newHarness(t), drivers: map[string]*ebpf.Driver{}, devices: map[string]uint32{}, out: make([]byte, 8192)}
}

func (p *programmed) AddNode(n datapathtest.NodeSpec) onpath.Datapath {
	d := p.harness.AddNode(n)
	p.drivers[n.Name] = d.(*ebpf.Driver)
	if n.Name != "gw" {
		return d
	}
	work, done := make(chan func() error), make(chan error)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = netnsrun.Do(p.nodes[n.Name].ns, func() error {
			for f := range work {
				done <- f()
			}
			return nil
		})
	}()
	p.work, p.done = work, done
	p.t.Cleanup(func() { close(work); <-ended })
	return d
}

// inside runs f in the gateway's namespace.
func (p *programmed) inside(f func() error) {
	p.t.Helper()
	p.work <- f
	if err := <-p.done; err != nil {
		p.t.Fatal(err)
	}
}

// context is the part of struct __sk_buff that a test run may set, in words.
type skbContext [48]uint32

func (p *programmed) Put(node, device string, f datapathtest.Frame, segment int) (datapathtest.Outcome, datapathtest.Frame, string) {
	p.t.Helper()
	if p.devices[device] == 0 {
		p.inside(func() error {
			i, err := net.InterfaceByName(device)
			if err == nil {
				p.devices[device] = uint32(i.Index)
			}
			return err
		})
	}
	port := p.ports[node+"/"+device]
	in := binary.BigEndian.AppendUint16(append(hw(port.nodeMAC), hw(port.mac)...), etherType(f))
	in = append(in, f.Packet...)
	if len(in) < 60 && len(f.Packet) < 40 {
		return datapathtest.Unfit, datapathtest.Frame{}, "" // less than a test run of the kernel takes for some kinds
	}
	var ctx skbContext
	ctx[10] = p.devices[device] // ifindex
	ctx[44] = uint32(segment)   // gso_size
	o := &cilium.RunOptions{Data: in, DataOut: p.out[:cap(p.out)], Context: &ctx}
	var verdict uint32
	p.inside(func() (err error) {
		if verdict, err = p.drivers[node].Program().Run(o); err != nil {
			return fmt.Errorf("%d bytes at %s, segment %d: %w", len(in), device, segment, err)
		}
		return nil
	})
	switch int32(verdict) {
	case 2:
		return datapathtest.Gone, datapathtest.Frame{}, ""
	case 7:
		b := o.DataOut
		out := datapathtest.Frame{Dst: net.HardwareAddr(b[:6]).String(), Packet: append([]byte(nil), trimmed(b[14:])...)}
		return datapathtest.Sent, out, ""
	}
	return datapathtest.Left, datapathtest.Frame{}, ""
}

// modelled is the model, told of one frame at a time.
type modelled struct {
	t     *testing.T
	net   *fake.Network
	nodes map[string]*fake.Node
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
	o.Pick = pick
	n, err := m.net.Node(s.Name, o)
	if err != nil {
		m.t.Fatal(err)
	}
	m.nodes[s.Name] = n
	return n
}

func (m *modelled) Put(node, device string, f datapathtest.Frame, segment int) (datapathtest.Outcome, datapathtest.Frame, string) {
	n := m.nodes[node]
	before := dropped(m.t, n)
	m.net.Deliveries()
	for _, packet := range segments(f.Packet, segment) {
		raw := binary.BigEndian.AppendUint16(make([]byte, 12), etherType(f))
		n.InjectFrame(device, append(raw, packet...))
	}
	outcome, local := datapathtest.Left, device != "up0" && device != "up1"
	if local {
		outcome = datapathtest.Gone // what an instance sends is never the kernel's
	}
	if dropped(m.t, n) != before {
		outcome = datapathtest.Gone
	}
	var out datapathtest.Frame
	to := ""
	for _, d := range m.net.Deliveries() {
		switch {
		case d.Node != node: // through a tunnel
			if outcome != datapathtest.Sent {
				outcome, out = datapathtest.Sent, datapathtest.Frame{}
			}
		case d.By == fake.BySteering:
			outcome, out = datapathtest.Sent, datapathtest.Frame{Dst: d.Dst, Packet: d.Packet}
			if d.Dst != "" {
				to = d.Device
			}
		case d.By == fake.ByAnswer:
			outcome = datapathtest.Answered
		}
	}
	if segment > 0 {
		out.Packet = nil // several came out
	}
	return outcome, out, to
}

func dropped(t *testing.T, n *fake.Node) (sum uint64) {
	c, err := n.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range c.Vports {
		for _, x := range v.Dropped {
			sum += x
		}
	}
	return sum
}

// segments cuts a TCP packet into those it stands for.
func segments(b []byte, size int) [][]byte {
	if size == 0 {
		return [][]byte{b}
	}
	head := 40
	if b[0]>>4 == 6 {
		head = 60
	}
	if b[0]>>4 == 4 {
		head = int(b[0]&15)*4 + int(b[int(b[0]&15)*4+12]>>4)*4
	}
	var out [][]byte
	for data := b[head:]; len(data) > 0; {
		n := min(size, len(data))
		s := append(append([]byte(nil), b[:head]...), data[:n]...)
		if s[0]>>4 == 4 {
			binary.BigEndian.PutUint16(s[2:], uint16(len(s)))
		} else {
			binary.BigEndian.PutUint16(s[4:], uint16(len(s)-40))
		}
		out, data = append(out, s), data[n:]
	}
	return out
}

// Function is the exam's; modelFunction does in the model what its object does.
func (m *modelled) Function(_ string, v onpath.VportID) onpath.InlineFunction {
	return onpath.InlineFunction{Vport: v, Object: "exam", Maps: "none"}
}

func (m *modelled) AddInstance(string, ...onpath.VportID)        {}
func (m *modelled) Send(string, string, datapathtest.Frame)      {}
func (m *modelled) SendTunnel(string, datapathtest.TunnelPacket) {}
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
