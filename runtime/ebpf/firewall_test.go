package ebpf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpffs"
	"github.com/onpath/onpath/internal/inline"
)

// bench is one function loaded by itself, with tables of its own.
type bench struct {
	t      *testing.T
	f      *function
	tables map[string]*ebpf.Map
	trial  *inline.Trial
}

// benchPins is where a function's tables are pinned for a test.
func benchPins(name string) string {
	return filepath.Join(DefaultPinPath, fmt.Sprintf("test-%s-%d", name, os.Getpid()))
}

func newBench(t *testing.T, name string) *bench {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to load programs")
	}
	f, err := open(&onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: name}})
	if err != nil {
		t.Fatal(err)
	}
	dir := benchPins(name)
	if err := bpffs.Need(DefaultPinPath); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &bench{t: t, f: f}
	if b.tables, err = f.object.OpenTables(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inline.CloseTables(b.tables) })
	if _, err := f.object.Verify(b.tables); err != nil {
		t.Fatal(err)
	}
	if b.trial, err = f.object.Load(b.tables); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.trial.Close)
	return b
}

func (b *bench) tell(config map[string]string) {
	b.t.Helper()
	w, err := b.f.compile(&onpath.EBPFSpec{Config: config})
	if err == nil {
		err = w(b.tables)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// packet is a struct onpath_packet in part.
type packet struct {
	tuple   onpath.Tuple
	reverse bool
	is      uint16
	wire    uint32
	now     uint64
}

func (p packet) bytes() []byte {
	b := make([]byte, 384)
	src, dst := p.tuple.Src.As16(), p.tuple.Dst.As16()
	copy(b, src[:])
	copy(b[16:], dst[:])
	binary.BigEndian.PutUint16(b[32:], p.tuple.SrcPort)
	binary.BigEndian.PutUint16(b[34:], p.tuple.DstPort)
	b[36], b[37] = 6, p.tuple.Protocol
	if p.tuple.Src.Is4() {
		b[36] = 4
	}
	if p.reverse {
		b[38] = 1
	}
	binary.NativeEndian.PutUint16(b[40:], p.is)
	binary.NativeEndian.PutUint32(b[48:], 1)
	binary.NativeEndian.PutUint32(b[52:], p.wire)
	binary.NativeEndian.PutUint64(b[64:], p.now)
	return b
}

func (b *bench) run(p packet) int32 {
	b.t.Helper()
	v, _, err := b.trial.Run(p.bytes())
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// judge is the firewall in a loop over the rules.
func judge(rules []fireRule, t onpath.Tuple) int32 {
	in := func(list []netip.Prefix, a netip.Addr) bool {
		a = netip.AddrFrom16(a.As16())
		return len(list) == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return holds(p, a) })
	}
	ports := slices.Contains([]uint8{6, 17, 132, 136}, t.Protocol)
	at := func(list []onpath.PortRange, port uint16) bool {
		return len(list) == 0 || ports && slices.ContainsFunc(list, func(r onpath.PortRange) bool { return r.Contains(port) })
	}
	for _, r := range rules {
		if in(r.from, t.Src) && in(r.to, t.Dst) && at(r.fromPorts, t.SrcPort) && at(r.ports, t.DstPort) &&
			(len(r.protocols) == 0 || slices.Contains(r.protocols, t.Protocol)) {
			return int32(r.action)
		}
	}
	return 1 // default: drop
}

// holds compares bits: netip's Contains knows no mapped addresses. A prefix holds
// addresses of its own IP version only.
func holds(p netip.Prefix, a netip.Addr) bool {
	if p.Addr().Is4In6() != a.Is4In6() {
		return false
	}
	x, y := p.Addr().As16(), a.As16()
	for i := range p.Bits() {
		if (x[i/8]^y[i/8])>>(7-i%8)&1 != 0 {
			return false
		}
	}
	return true
}

// TestFirewallRandom compares verdicts on random packets with a loop over random
// rules; several sets of rules follow each other.
func TestFirewallRandom(t *testing.T) {
	b := newBench(t, "firewall")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, n := range []int{1, 40, 1000, 4096, 3} {
		text := randomRules(r, n)
		rules, err := parseRules(text)
		if err != nil {
			t.Fatal(err)
		}
		b.tell(map[string]string{"rules": text, "default": "drop"})
		for range 3000 {
			tuple := randomTuple(r)
			p := packet{tuple: tuple}
			if r.IntN(2) == 0 {
				p.tuple, p.reverse = tuple.Reverse(), true
			}
			want := []int32{0, 1, 2}[judge(rules, tuple)]
			if got := b.run(p); got != want {
				t.Fatalf("with %d rules, %+v: verdict %d, must be %d", n, p, got, want)
			}
		}
	}
}

func randomAddr(r *rand.Rand) netip.Addr {
	if r.IntN(4) == 0 {
		a := [16]byte{0x20, 1, 0xd, 0xb8, byte(r.IntN(3)), byte(r.IntN(3)), 15: byte(r.IntN(4))}
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{10, byte(r.IntN(4)), byte(r.IntN(64)), byte(r.IntN(256))})
}

func randomTuple(r *rand.Rand) onpath.Tuple {
	t := onpath.Tuple{Protocol: []uint8{1, 6, 17, 47}[r.IntN(4)], Src: randomAddr(r), Dst: randomAddr(r)}
	for t.Src.Is4() != t.Dst.Is4() {
		t.Dst = randomAddr(r)
	}
	if t.Protocol == 6 || t.Protocol == 17 {
		t.SrcPort, t.DstPort = uint16(r.IntN(65536)), uint16(r.IntN(200))
	}
	return t
}

func randomRules(r *rand.Rand, n int) string {
	var b strings.Builder
	prefix := func() string {
		a := randomAddr(r)
		if r.IntN(20) == 0 {
			return netip.PrefixFrom(a, r.IntN(4)).Masked().String()
		}
		return netip.PrefixFrom(a, a.BitLen()-r.IntN(20)).String()
	}
	for range n {
		proto := []string{"tcp", "udp", "any", "icmp", "47"}[r.IntN(5)]
		fmt.Fprintf(&b, "%s %s from %s", []string{"allow", "drop", "refuse"}[r.IntN(3)], proto, prefix())
		to := "any"
		if r.IntN(2) == 0 {
			to = prefix() + "," + prefix()
		}
		fmt.Fprintf(&b, " to %s", to)
		if proto == "tcp" || proto == "udp" {
			first := r.IntN(150)
			fmt.Fprintf(&b, " port %d-%d,%d", first, first+r.IntN(40), r.IntN(200))
		}
		b.WriteString(" # one\n")
	}
	return b.String()
}

// TestFirewallEstablished: connections may begin at one end only.
func TestFirewallEstablished(t *testing.T) {
	b := newBench(t, "firewall")
	b.tell(map[string]string{"established": "true"})
	syn := packet{tuple: onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 1, DstPort: 2}, is: 1}
	if v := b.run(syn); v != 0 {
		t.Errorf("a connection that begins at the from end gets %d", v)
	}
	syn.reverse = true
	if v := b.run(syn); v != 1 {
		t.Errorf("a connection that begins at the to end gets %d", v)
	}
	syn.is = 8
	if v := b.run(syn); v != 0 {
		t.Errorf("an answer gets %d", v)
	}
}

// TestFirewallVersions: prefixes are of one IP version, the shortest too; only what
// names none is of both.
func TestFirewallVersions(t *testing.T) {
	b := newBench(t, "firewall")
	four := onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 1, DstPort: 22}
	six := four
	six.Src, six.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	near := six // to IPv4's addresses as the program sees them
	near.Src = netip.MustParseAddr("::1")
	for rules, want := range map[string][3]int32{
		"allow tcp from ::/0":                                   {1, 0, 0},
		"allow tcp to ::/0 port 22":                             {1, 0, 0},
		"allow tcp from 0.0.0.0/0":                              {0, 1, 1},
		"allow tcp from 0.0.0.0/0,::/0":                         {0, 0, 0},
		"allow tcp from any to any port 22":                     {0, 0, 0},
		"refuse from ::/64\nallow from ::/0\nallow from any":    {0, 0, 2},
		"refuse from ::/0\nallow from 10.0.0.0/8 to 10.0.0.2":   {0, 2, 2},
		"refuse from 10.0.0.0/9,::/3\nallow from 0.0.0.0/0":     {2, 1, 2},
		"refuse to ::/0\nrefuse to 10.0.0.2 port 23\nallow tcp": {0, 2, 2},
	} {
		b.tell(map[string]string{"rules": rules, "default": "drop"})
		for i, f := range []onpath.Tuple{four, six, near} {
			if got := b.run(packet{tuple: f}); got != want[i] {
				t.Errorf("with %q a packet from %v gets verdict %d, must get %d", rules, f.Src, got, want[i])
			}
		}
	}
}

// TestFirewallErrors: faults name the line and change nothing.
func TestFirewallErrors(t *testing.T) {
	for text, want := range map[string]string{
		"allow tcp\nforbid udp":        "line 2",
		"drop icmp to any port 80":     "has no ports",
		"drop tcp from 10.0.0.0/33":    "is not a prefix",
		"drop tcp to":                  "nothing stands behind",
		"drop tcp to any port 80-70":   "80-70",
		strings.Repeat("drop\n", 5000): "more than 4096",
	} {
		_, err := compileFirewall(nil, map[string]string{"rules": text})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q gives %v, must speak of %q", text, err, want)
		}
	}
	if _, err := compileFirewall(nil, map[string]string{"rule": ""}); err == nil {
		t.Error("an unknown name is taken")
	}
}
