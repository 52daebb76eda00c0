package ebpf_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/netnsrun"
)

func TestExam(t *testing.T) {
	needKernel(t)
	datapathtest.Run(t, func(t *testing.T) datapathtest.Harness {
		t.Parallel() // each case has namespaces of its own, and waits for the kernel mostly
		return newHarness(t)
	})
}

// TestExamForests examines with every table a forest, however few rules it has.
func TestExamForests(t *testing.T) {
	needKernel(t)
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; forests are compared with the model in any case, this takes minutes")
	}
	defer ebpf.SetSmallTable(ebpf.SetSmallTable(0))
	datapathtest.Run(t, func(t *testing.T) datapathtest.Harness { return newHarness(t) })
}

// TestExamFast is the exam with XDP at the uplinks beside tc. The far ends' frames
// have whole checksums, as XDP needs on virtual devices.
func TestExamFast(t *testing.T) {
	needKernel(t)
	lease := ebpf.SetLease(10 * time.Minute) // no clock decides
	t.Cleanup(func() { ebpf.SetLease(lease) })
	datapathtest.Run(t, func(t *testing.T) datapathtest.Harness {
		if _, name, _ := strings.Cut(t.Name(), "/"); os.Getenv("ONPATH_SOAK") == "" && !slices.Contains(decidedAtXDP, name) {
			t.Skip("ONPATH_SOAK is not set; its packets are decided at tc, as in TestExam, or as those of other cases")
		}
		t.Parallel()
		h := newHarness(t)
		h.fast = true
		t.Cleanup(func() {
			for name, least := range ranFast {
				if strings.HasSuffix(t.Name(), "/"+name) && h.ran < least && !t.Skipped() {
					t.Errorf("functions ran for %d packets in the fast path, must for %d", h.ran, least)
				}
			}
		})
		return h
	})
}

// decidedAtXDP are the cases about what XDP reads by itself and what it may carry. Packets
// to and from instances, and those that begin a flow, are never finished at XDP, so that
// what the other cases see there is tc once more. Each takes long, for its programs are
// loaded anew; long runs have them all.
var decidedAtXDP = []string{
	"adoption", "between-nodes", "extension-headers", "extension-pile", "flows-counted", "fragments", "functions", "functions-apart",
	"functions-edit", "functions-edited", "functions-mirror", "functions-mixed", "functions-out", "hop-limit", "icmp-errors", "link-group", "link-source",
	"lost-functions", "malformed", "mirror", "mtu", "mtu-options", "outbound", "own-source", "pair-functions", "restart",
	"three-on-three-nodes", "tunnel", "vlan", "watch",
}

// ranFast says of cases how many packets functions are given in the fast path:
// all but the first ones of flows, those with SYN, and errors.
var ranFast = map[string]uint64{"functions": 34, "functions-edit": 5}

// examDriver counts all flow entries before counters are read, as a driver does some time.
type examDriver struct{ *ebpf.Driver }

func (d examDriver) Counters(ctx context.Context) (*onpath.Counters, error) {
	if err := d.CountFlows(); err != nil {
		return nil, err
	}
	return d.Driver.Counters(ctx)
}

// driverOf is the driver in one of the exam's.
func driverOf(d onpath.Datapath) *ebpf.Driver {
	if f, ok := d.(fastDriver); ok {
		return f.Driver
	}
	return d.(examDriver).Driver
}

// fastDriver is a driver that uses the fast path at all uplinks, and if patient
// waits until that rests no more.
type fastDriver struct {
	examDriver
	patient bool
}

func (d fastDriver) Apply(ctx context.Context, c *onpath.DatapathConfig) error {
	if c.Edge == nil {
		return d.Driver.Apply(ctx, c)
	}
	changed, edge := *c, *c.Edge
	edge.Uplinks = slices.Clone(edge.Uplinks)
	for i := range edge.Uplinks {
		edge.Uplinks[i].Fast = onpath.FastAlways
	}
	changed.Edge = &edge
	err := d.Driver.Apply(ctx, &changed)
	if d.patient {
		return errors.Join(err, d.awaitFast())
	}
	return err
}

// awaitFast waits for what the kernel tells of the change to have come, and for the rest
// after it, which is over late where the driver's loop seldom gets a processor.
func (d fastDriver) awaitFast() error {
	time.Sleep(250 * time.Millisecond)
	for until := time.Now().Add(time.Minute); d.FastRests(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			return errors.New("the fast path rests for ten seconds")
		}
	}
	return nil
}

// harness puts every node into a namespace of its own, and the far ends of all
// its devices into one more, where raw sockets stand on them.
type harness struct {
	t     *testing.T
	w     *world
	far   string // namespace of the far ends
	nodes map[string]*examNode
	ports map[string]*port // by node/device
	count int
	fast  bool
	ran   uint64 // packets that functions were given in the fast path
	flows int    // size of all flow tables; 0: small ones
}

type examNode struct {
	ns          string
	underlayMAC string
	underlay    netip.Addr
}

// port is a far end.
type port struct {
	dev     string
	fd      int
	mac     string // of the far end
	nodeMAC string
}

func newHarness(t *testing.T) *harness {
	w := newWorld(t)
	h := &harness{t: t, w: w, far: w.ns("far"), nodes: map[string]*examNode{}, ports: map[string]*port{}}
	w.in(h.far, func() error {
		if err := setting("ipv6/conf/default/disable_ipv6=1"); err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "under"
		attrs.MTU = 9000
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		br, err := netlink.LinkByName("under")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(br)
	})
	return h
}

func (h *harness) AddNode(n datapathtest.NodeSpec) onpath.Datapath {
	h.t.Helper()
	e := &examNode{ns: h.w.ns(n.Name), underlay: n.Underlay.Addr()}
	h.nodes[n.Name] = e
	h.w.forwarding(e.ns)
	for _, u := range n.Uplinks {
		p := h.addPort(n.Name, u.Device, "", "", u.MTU, u.Addresses)
		for _, gw := range u.Gateways {
			h.w.neighbour(e.ns, u.Device, gw, p.mac)
		}
		for _, to := range u.Behind {
			for _, gw := range u.Gateways {
				if gw.Is4() == to.Addr().Is4() {
					h.w.route(e.ns, u.Device, to, gw)
				}
			}
		}
	}
	h.addUnderlay(n, e)
	h.t.Cleanup(func() {
		h.w.in(e.ns, func() error { return ebpf.Remove(context.Background(), h.options(n.Name)) })
	})
	return h.Reopen(n.Name)
}

// Function has the exam's object in a file.
func (h *harness) Function(node string, v onpath.VportID) onpath.InlineFunction {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "exam.o")
	h.w.must(os.WriteFile(file, datapathtest.ExamObject, 0o600))
	sum := sha256.Sum256(datapathtest.ExamObject)
	dir := filepath.Join(ebpf.DefaultPinPath, h.w.name+"-functions", fmt.Sprint(node, v))
	h.t.Cleanup(func() { os.RemoveAll(filepath.Dir(dir)) })
	return onpath.InlineFunction{Vport: v, Object: file, SHA256: hex.EncodeToString(sum[:]), Maps: dir}
}

func (h *harness) options(node string) ebpf.Options {
	o := ebpf.Options{Name: h.w.name + "-" + node, Flows: 1 << 15, Pending: 1 << 16}
	if h.flows != 0 && node == "gw" {
		o.Flows, o.Pending = h.flows, h.flows
	}
	return o
}

// Reopen opens the data path of a node as a new process would.
func (h *harness) Reopen(node string) onpath.Datapath {
	h.t.Helper()
	var d *ebpf.Driver
	h.w.in(h.nodes[node].ns, func() (err error) {
		d, err = ebpf.New(h.options(node))
		return err
	})
	h.t.Cleanup(func() {
		uplinks, _ := d.Uplinks()
		for _, u := range uplinks {
			h.ran += u.Ran
		}
		d.Close()
	})
	if h.fast {
		return fastDriver{examDriver{d}, strings.Contains(h.t.Name(), "/functions")}
	}
	return examDriver{d}
}

func (h *harness) addUnderlay(n datapathtest.NodeSpec, e *examNode) {
	h.t.Helper()
	far := "u-" + n.Name
	h.count++
	e.underlayMAC = fmt.Sprintf("02:aa:00:00:00:%02x", h.count)
	h.w.pair(end{ns: e.ns, dev: "under0", mac: e.underlayMAC, addrs: []string{n.Underlay.String()}, mtu: n.UnderlayMTU},
		end{ns: h.far, dev: far, mtu: n.UnderlayMTU})
	h.w.in(h.far, func() error {
		l, err := netlink.LinkByName(far)
		if err != nil {
			return err
		}
		br, err := netlink.LinkByName("under")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(l, br)
	})
	h.ports[n.Name+"/under0"] = &port{dev: far, fd: h.w.socket(h.far, far), mac: "02:aa:00:00:00:fe", nodeMAC: e.underlayMAC}
}

func (h *harness) addPort(node, dev, nodeMAC, farMAC string, mtu int, addrs []netip.Prefix) *port {
	h.t.Helper()
	h.count++
	if nodeMAC == "" {
		nodeMAC = fmt.Sprintf("02:bb:00:00:00:%02x", h.count)
		farMAC = fmt.Sprintf("02:cc:00:00:00:%02x", h.count)
	}
	p := &port{dev: fmt.Sprintf("far%d", h.count), mac: farMAC, nodeMAC: nodeMAC}
	near := end{ns: h.nodes[node].ns, dev: dev, mac: nodeMAC, mtu: mtu, silent: len(addrs) == 0}
	for _, a := range addrs {
		near.addrs = append(near.addrs, a.String())
	}
	h.w.pair(near, end{ns: h.far, dev: p.dev, mac: farMAC, mtu: mtu, silent: true})
	h.w.in(h.far, func() error { return setGRO(p.dev) })
	p.fd = h.w.socket(h.far, p.dev)
	h.ports[node+"/"+dev] = p
	return p
}

func (h *harness) AddInstance(node string, vports ...onpath.VportID) {
	h.t.Helper()
	for _, v := range vports {
		h.addPort(node, onpath.DeviceName(v), onpath.HostMAC(v), onpath.InstanceMAC(v), 9000, nil)
	}
}

func (h *harness) Send(node, device string, f datapathtest.Frame) {
	h.t.Helper()
	p := h.ports[node+"/"+device]
	if f.Src == "" {
		f.Src, f.Dst = p.mac, p.nodeMAC
	}
	b := append(hw(f.Dst), hw(f.Src)...)
	for i, tag := range f.Tags {
		proto := uint16(unix.ETH_P_8021Q)
		if i == 0 && len(f.Tags) > 1 {
			proto = unix.ETH_P_8021AD
		}
		b = binary.BigEndian.AppendUint16(b, proto)
		b = binary.BigEndian.AppendUint16(b, tag)
	}
	b = binary.BigEndian.AppendUint16(b, etherType(f))
	h.write(p, append(b, f.Packet...))
}

func etherType(f datapathtest.Frame) uint16 {
	switch {
	case f.EtherType != 0:
		return f.EtherType
	case len(f.Packet) > 0 && f.Packet[0]>>4 == 6:
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}

func (h *harness) write(p *port, frame []byte) {
	h.t.Helper()
	if _, err := unix.Write(p.fd, frame); err != nil {
		h.t.Fatalf("send %d bytes at %s: %v", len(frame), p.dev, err)
	}
}

func (h *harness) Receive(node, device string, wait time.Duration) (datapathtest.Frame, bool) {
	h.t.Helper()
	p := h.ports[node+"/"+device]
	for until := time.Now().Add(wait); ; {
		left := max(0, time.Until(until))
		fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int((left + time.Millisecond - 1).Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			h.t.Fatal(err)
		}
		if n == 0 {
			return datapathtest.Frame{}, false
		}
		if f, ok := h.read(p); ok {
			return f, true
		}
	}
}

// read takes one frame; false for what kernels send by themselves.
func (h *harness) read(p *port) (datapathtest.Frame, bool) {
	h.t.Helper()
	b, oob := make([]byte, 70000), make([]byte, 256)
	n, on, _, _, err := unix.Recvmsg(p.fd, b, oob, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	b = b[:n]
	f := datapathtest.Frame{Dst: net.HardwareAddr(b[:6]).String(), Src: net.HardwareAddr(b[6:12]).String()}
	if tag, ok := auxTag(oob[:on]); ok {
		f.Tags = append(f.Tags, tag)
	}
	b = b[12:]
	for binary.BigEndian.Uint16(b) == unix.ETH_P_8021Q || binary.BigEndian.Uint16(b) == unix.ETH_P_8021AD {
		f.Tags = append(f.Tags, binary.BigEndian.Uint16(b[2:])&0xfff)
		b = b[4:]
	}
	f.EtherType = binary.BigEndian.Uint16(b)
	f.Packet = trimmed(b[2:])
	return f, !chatter(f)
}

// auxTag is the VLAN tag that the kernel took out of the frame.
func auxTag(oob []byte) (uint16, bool) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, false
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 20 {
			if binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
				return binary.NativeEndian.Uint16(m.Data[16:]) & 0xfff, true
			}
		}
	}
	return 0, false
}

// trimmed takes Ethernet's padding off.
func trimmed(b []byte) []byte {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		return b[:min(len(b), int(binary.BigEndian.Uint16(b[2:])))]
	case len(b) >= 40 && b[0]>>4 == 6:
		return b[:min(len(b), 40+int(binary.BigEndian.Uint16(b[4:])))]
	}
	return b
}

// chatter is what kernels send by themselves: ARP, and IPv6 to multicast or
// link-local addresses.
func chatter(f datapathtest.Frame) bool {
	if f.EtherType == unix.ETH_P_ARP {
		return true
	}
	if f.EtherType != unix.ETH_P_IPV6 || len(f.Packet) < 40 {
		return false
	}
	dst := netip.AddrFrom16([16]byte(f.Packet[24:40]))
	return dst.IsMulticast() || dst.IsLinkLocalUnicast() || (f.Packet[6] == 58 && len(f.Packet) > 40 && f.Packet[40] >= 130 && f.Packet[40] <= 143)
}

func (h *harness) SendTunnel(node string, p datapathtest.TunnelPacket) {
	h.t.Helper()
	n := h.nodes[node]
	port := h.ports[node+"/under0"]
	inner := make([]byte, 0, 64)
	for _, v := range []uint32{uint32(p.Prev), uint32(p.Entry), uint32(p.Group), p.Secret} {
		inner = append(inner, byte(v>>16), byte(v>>8), byte(v))
	}
	inner = binary.BigEndian.AppendUint16(inner, etherType(datapathtest.Frame{Packet: p.Packet}))
	inner = append(inner, p.Packet...)
	vx := []byte{8, 0, 0, 0, byte(p.Next >> 16), byte(p.Next >> 8), byte(p.Next), 0}
	u := binary.BigEndian.AppendUint16(nil, 40000)
	u = binary.BigEndian.AppendUint16(u, onpath.DefaultTunnelPort)
	u = binary.BigEndian.AppendUint16(u, uint16(8+len(vx)+len(inner)))
	u = append(append(append(u, 0, 0), vx...), inner...)
	ip := []byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 255, 17, 0, 0}
	from, to := p.From.As4(), n.underlay.As4()
	ip = append(append(ip, from[:]...), to[:]...)
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(u)))
	binary.BigEndian.PutUint16(ip[10:], ipSum(ip))
	frame := append(hw(port.nodeMAC), hw(port.mac)...)
	frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IP)
	h.write(port, append(append(frame, ip...), u...))
}

func ipSum(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

func (h *harness) Forwarded(node string) uint64 {
	h.t.Helper()
	var n uint64
	err := netnsrun.Do(h.nodes[node].ns, func() error {
		v4, err := snmp("/proc/thread-self/net/snmp", "Ip:", "ForwDatagrams")
		if err != nil {
			return err
		}
		v6, err := snmp6("Ip6OutForwDatagrams")
		n = v4 + v6
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// snmp reads one counter of a file whose lines come in pairs of names and values.
func snmp(file, group, name string) (uint64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var names []string
	for _, line := range strings.Split(string(b), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != group {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, n := range names {
			if n == name {
				return strconv.ParseUint(fields[i], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("%s has no %s %s", file, group, name)
}

func snmp6(name string) (uint64, error) {
	f, err := os.Open("/proc/thread-self/net/snmp6")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) == 2 && fields[0] == name {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("snmp6 has no %s", name)
}

func (h *harness) Now() time.Time { return time.Now() }

// Lacks lists what the driver does not do yet.
func (h *harness) Lacks(name string) string { return "" }
