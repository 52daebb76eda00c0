package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/internal/bpfobject/functionbench"
	"github.com/onpath/onpath/sdk"
)

// check is the firewall in a loop over the rules.
func check(rules []fireRule, list []netip.Prefix, t onpath.Tuple) int32 {
	listed := func(r fireRule, end uint32, a netip.Addr) bool {
		return r.listed&end == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
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
			listed(r, fromListed, t.Src) && listed(r, toListed, t.Dst) &&
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
	b := functionbench.Load(t, "firewall", object)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, n := range []int{1, 40, 1000, 4096, 3} {
		text := randomRules(r, n)
		rules, err := parseRules(text)
		if err != nil {
			t.Fatal(err)
		}
		config, list := sdk.Config{"rules": text, "default": "drop"}, []netip.Prefix(nil)
		if strings.Contains(text, theList) {
			config[theList] = randomPrefixes(r, 1+r.IntN(100))
			if list, _, err = onpath.ReadAddresses(config[theList]); err != nil {
				t.Fatal(err)
			}
		}
		b.Tell(compile, config)
		for range 3000 {
			tuple := randomTuple(r)
			p := functionbench.Packet{Tuple: tuple}
			if r.IntN(2) == 0 {
				p.Tuple, p.Reverse = tuple.Reverse(), true
			}
			want := []int32{0, 1, 2}[check(rules, list, tuple)]
			if got := b.Verdict(p); got != want {
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
		if r.IntN(4) == 0 {
			return theList
		}
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
			if to = prefix(); to != theList {
				to += ",10.1.2.0/28"
			}
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

func randomPrefixes(r *rand.Rand, n int) string {
	var b strings.Builder
	b.WriteString("::/8 ; holds what IPv4 addresses are to the program\n")
	for range n {
		a := randomAddr(r)
		b.WriteString(netip.PrefixFrom(a, a.BitLen()-r.IntN(12)).Masked().String() + "\t7\n")
	}
	return b.String()
}

// TestFirewallList: 100,000 addresses of a list are dropped, at each end, and no other
// ones; while another list takes its place, addresses in both always are.
func TestFirewallList(t *testing.T) {
	b := functionbench.Load(t, "firewall", object)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	const n = 100_000
	addrs, seen := make([]netip.Addr, 0, n+n/2), map[netip.Addr]bool{}
	for len(addrs) < cap(addrs) {
		var a [16]byte
		binary.BigEndian.PutUint32(a[:], r.Uint32()|1)
		addr := netip.AddrFrom4([4]byte(a[:4]))
		if len(addrs)%8 == 0 {
			a[0] = 0x20
			addr = netip.AddrFrom16(a)
		}
		if !seen[addr] {
			seen[addr] = true
			addrs = append(addrs, addr)
		}
	}
	listOf := func(addrs []netip.Addr) sdk.Config {
		var text strings.Builder
		for _, a := range addrs {
			text.WriteString(a.String() + "\n")
		}
		l, _, err := onpath.ReadAddresses(text.String())
		if err != nil {
			t.Fatal(err)
		}
		packed, err := onpath.PackAddresses(l)
		if err != nil {
			t.Fatal(err)
		}
		return sdk.Config{theList: packed}
	}
	look := func(a netip.Addr) int32 {
		own := netip.MustParseAddr("10.0.0.2") // even, as no listed address is
		if a.Is6() {
			own = netip.MustParseAddr("2001:db8::2")
		}
		p := functionbench.Packet{Tuple: onpath.Tuple{Protocol: 17, Src: a, Dst: own, SrcPort: 1, DstPort: 2}}
		if r.IntN(2) == 0 {
			p.Tuple = p.Tuple.Reverse()
		}
		p.Reverse = r.IntN(2) == 0
		return b.Verdict(p)
	}
	first, second := listOf(addrs[:n]), listOf(addrs[n/2:])
	b.Tell(compile, first)
	for range 1000 {
		if a := addrs[r.IntN(n)]; look(a) != 1 {
			t.Fatalf("%s is in the list and passes", a)
		}
		other := addrs[r.IntN(n)].Prev() // even
		if look(other) != 0 {
			t.Fatalf("%s is not in the list and is dropped", other)
		}
	}
	done := make(chan error, 1)
	go func() {
		write, err := compile(second)
		if err == nil {
			err = write(b.Tables)
		}
		done <- err
	}()
	checked := 0
	for running := true; running; checked++ {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
		}
		if a := addrs[n/2+r.IntN(n/2)]; look(a) != 1 {
			t.Fatalf("%s is in both lists and passed", a)
		}
		if other := addrs[r.IntN(n)].Prev(); look(other) != 0 {
			t.Fatalf("%s is in no list and was dropped", other)
		}
	}
	t.Logf("%d addresses were looked at while the list changed", checked)
	for range 1000 {
		if a := addrs[r.IntN(n/2)]; look(a) != 0 {
			t.Fatalf("%s is in the list no more and is dropped", a)
		}
		if a := addrs[n+r.IntN(n/2)]; look(a) != 1 {
			t.Fatalf("%s is new in the list and passes", a)
		}
	}
	b.Tell(compile, sdk.Config{})
	if a := addrs[n]; look(a) != 0 {
		t.Errorf("%s is dropped without a list", a)
	}
	var k listKey
	if err := b.Tables["listed"].NextKey(nil, &k); err == nil {
		t.Errorf("%x is left of the list", k)
	}
}

// TestFirewallTakesBack: where a step fails, the list and the rules are what they were.
func TestFirewallTakesBack(t *testing.T) {
	b := functionbench.Load(t, "firewall", object)
	b.Tell(compile, sdk.Config{theList: "192.0.2.0/24\n198.51.100.1\n"})
	var was, now fireConfig
	before, err := inForce(b.Tables["listed"], 0)
	if err := errors.Join(err, b.Tables[sdk.ConfigTable].Lookup(uint32(0), &was)); err != nil {
		t.Fatal(err)
	}
	small, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	readOnly := func(name string) *ebpf.Map {
		path := filepath.Join(bpfobject.PinPath, fmt.Sprintf("test-firewall-%d", os.Getpid()), name)
		m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	const other = "0.0.0.0/0\n2001:db8::/32\n" // all of IPv4 has an entry already: not listed
	for _, x := range []struct {
		list, table string
		fails       *ebpf.Map
	}{
		{other, "actions", small},
		{other, sdk.ConfigTable, readOnly(sdk.ConfigTable)},
		{"192.0.2.0/24\n", "listed", readOnly("listed")}, // fails behind the store that makes rules present
	} {
		write, err := compile(sdk.Config{theList: x.list, "default": "drop"})
		if err != nil {
			t.Fatal(err)
		}
		tables := maps.Clone(b.Tables)
		tables[x.table] = x.fails
		if err := write(tables); err == nil {
			t.Errorf("%s cannot be written, and nothing is said", x.table)
		}
		if after, err := inForce(b.Tables["listed"], 0); err != nil || !maps.Equal(after, before) {
			t.Errorf("%s cannot be written: listed are %v, %v; were %v", x.table, after, err, before)
		}
		if err := b.Tables[sdk.ConfigTable].Lookup(uint32(0), &now); err != nil || now != was {
			t.Errorf("%s cannot be written: in force is %+v, %v; was %+v", x.table, now, err, was)
		}
	}
}

// TestFirewallEstablished: connections may begin at one end only.
func TestFirewallEstablished(t *testing.T) {
	b := functionbench.Load(t, "firewall", object)
	b.Tell(compile, sdk.Config{"established": "true"})
	syn := functionbench.Packet{Tuple: onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 1, DstPort: 2}, Is: 1}
	if v := b.Verdict(syn); v != 0 {
		t.Errorf("a connection that begins at the from end gets %d", v)
	}
	syn.Reverse = true
	if v := b.Verdict(syn); v != 1 {
		t.Errorf("a connection that begins at the to end gets %d", v)
	}
	syn.Is = 8
	if v := b.Verdict(syn); v != 0 {
		t.Errorf("an answer gets %d", v)
	}
}

// TestFirewallVersions: prefixes are of one IP version, the shortest too; only what
// names none is of both.
func TestFirewallVersions(t *testing.T) {
	b := functionbench.Load(t, "firewall", object)
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
		b.Tell(compile, sdk.Config{"rules": rules, "default": "drop"})
		for i, f := range []onpath.Tuple{four, six, near} {
			if got := b.Verdict(functionbench.Packet{Tuple: f}); got != want[i] {
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
		_, err := compile(sdk.Config{"rules": text})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q gives %v, must speak of %q", text, err, want)
		}
	}
	for list, want := range map[string]string{
		"192.0.2.1\nx.example": `line 2: "x.example"`, "# nothing\n": "is empty",
	} {
		if _, err := compile(sdk.Config{theList: list}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the list %q gives %v, must speak of %q", list, err, want)
		}
	}
	if _, err := compile(sdk.Config{"rules": "drop from blocklist"}); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("rules that speak of no list give %v", err)
	}
	if _, err := compile(sdk.Config{"rule": ""}); err == nil {
		t.Error("an unknown name is taken")
	}
}
