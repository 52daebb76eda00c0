package loadbalancer

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpfobject/functionbench"
	"github.com/onpath/onpath/sdk"
)

const balanced6 = "2001:db8::10"

func dialled6(port uint16) onpath.Tuple {
	t := dialled(port)
	t.Src, t.Dst = netip.MustParseAddr("2001:db8:1::2"), netip.MustParseAddr(balanced6)
	return t
}

// balancingBoth has an IPv4 and an IPv6 virtual address.
func balancingBoth(backends ...string) sdk.Config {
	c := balancing(backends...)
	c["virtual"] += "," + balanced6
	return c
}

// refused gives a flow's packet to the function, which must refuse it for want of a
// backend.
func (b bench) refused(f onpath.Tuple, is uint16) {
	b.t.Helper()
	v, after := b.Run(functionbench.Packet{Tuple: f, Is: is, Wire: 100})
	if v != 2 || after[121] != 1 {
		b.t.Errorf("a packet of %v gives verdict %d, reason %d; must be refused (2) for reason 1", f, v, after[121])
	}
}

func (b bench) ownCounters() map[string]uint64 {
	b.t.Helper()
	own, err := b.Object.ReadCounters(b.Tables)
	if err != nil {
		b.t.Fatal(err)
	}
	return own
}

// TestLoadbalancerVersions: a flow goes to backends of its own IP version only, all
// of them, and is refused where none of that version takes flows, however many of
// the other do.
func TestLoadbalancerVersions(t *testing.T) {
	b := newBench(t)
	shares := func(first uint16) map[netip.Addr]int {
		t.Helper()
		n := map[netip.Addr]int{}
		for port := first; port < first+400; port++ {
			for _, f := range []onpath.Tuple{dialled(port), dialled6(port)} {
				to := b.backendOf(f, isSYN)
				if to.Addr().Is4() != f.Src.Is4() {
					t.Fatalf("a flow from %v is given backend %v", f.Src, to)
				}
				if again := b.backendOf(f, isACK); again != to {
					t.Fatalf("a flow goes to %v and then to %v", to, again)
				}
				n[to.Addr()]++
			}
		}
		return n
	}
	b.Tell(compile, balancingBoth("10.9.0.2", "10.9.0.3", "2001:db8:9::2", "2001:db8:9::3"))
	for at, n := range shares(1000) {
		if n < 130 || n > 270 { // binomial: 200 ± 10; seven deviations
			t.Errorf("%v has %d of 400 flows, must have some 200", at, n)
		}
	}
	b.Tell(compile, balancingBoth("10.9.0.2", "2001:db8:9::2", "2001:db8:9::3", "2001:db8:9::4", "2001:db8:9::5"))
	if n := shares(2000); n[netip.MustParseAddr("10.9.0.2")] != 400 || len(n) != 5 {
		t.Errorf("one IPv4 backend and four IPv6 ones have %v of 400 flows each", n)
	}

	b.Tell(compile, balancingBoth("10.9.0.2", "2001:db8:9::2 weight 0"))
	b.refused(dialled6(3000), isSYN)
	if to := b.backendOf(dialled6(2000), isACK); !to.Addr().Is6() {
		t.Errorf("a running flow is given %v when its version takes no new flows", to)
	}
	b.Tell(compile, balancingBoth("10.9.0.2 weight 0", "2001:db8:9::2"))
	b.refused(dialled(3000), isSYN)
	// What a running function was told before apply refused it: it serves whom it can.
	b.Tell(compile, balancingBoth("10.9.0.2"))
	b.refused(dialled6(3001), isSYN)
	if to := b.backendOf(dialled(3001), isSYN); to.Addr() != netip.MustParseAddr("10.9.0.2") {
		t.Errorf("beside a virtual address without backends a flow is given %v", to)
	}
	if own := b.ownCounters(); own["unserved"] != 3 || own["fresh"] != 1601 || own["moved"] != 0 {
		t.Errorf("the load balancer counts %v; must be 3 unserved, 1601 fresh, 0 moved", own)
	}
}

// TestLoadbalancerLosesVersion: what machines say that were behind a virtual address
// which is taken out goes on as they said it.
func TestLoadbalancerLosesVersion(t *testing.T) {
	b := newBench(t)
	answer := dialled6(7).Reverse()
	answer.Src = netip.MustParseAddr("2001:db8:9::2")
	edit := func() uint32 {
		t.Helper()
		v, after := b.Run(functionbench.Packet{Tuple: answer, Reverse: true, Is: isACK})
		if v != 0 {
			t.Fatalf("an answer gives verdict %d", v)
		}
		return binary.NativeEndian.Uint32(after[80:])
	}
	b.Tell(compile, balancingBoth("10.9.0.2", "2001:db8:9::2"))
	if e := edit(); e != 1 {
		t.Errorf("a backend's answer is edited by %#x, must be by 1", e)
	}
	b.Tell(compile, balancing("10.9.0.2"))
	if e := edit(); e != 0 {
		t.Errorf("without a virtual address an answer is edited by %#x", e)
	}
}

// formerConfig is struct onpath_config of the last version with other layouts,
// testdata/loadbalancer_former.o, which had one table for both IP versions.
type formerConfig struct {
	Virtual4, Virtual6 [16]byte
	TCP, UDP, By, Half uint32
	PortCount          uint32
	Ports              [servicePorts][2]byte
}

// formerBench is a load balancer of that version, where newBench finds its tables, told
// the same as it would have been.
func formerBench(t *testing.T, config sdk.Config) bench {
	t.Helper()
	code, err := os.ReadFile(filepath.Join("testdata", "loadbalancer_former.o"))
	if err != nil {
		t.Fatal(err)
	}
	b := bench{functionbench.Load(t, "loadbalancer", code), t}
	told, err := read(config)
	if err != nil {
		t.Fatal(err)
	}
	now, err := readBackends(b.Tables[backendsTable])
	if err != nil {
		t.Fatal(err)
	}
	places, err := told.place(b.Tables, now)
	if err != nil {
		t.Fatal(err)
	}
	var list []candidate
	for i, at := range told.targets {
		list = append(list, candidate{at.addr.String(), uint16(places[i]), at.weight})
	}
	if err := writeSlots(b.Tables[slotsTable], tableRows, maglev(list)); err != nil {
		t.Fatal(err)
	}
	c := &told.config
	f := formerConfig{c.Virtual4, c.Virtual6, c.TCP, c.UDP, c.By, 1, c.PortCount, c.Ports}
	if err := b.Tables[sdk.ConfigTable].Put(uint32(0), f); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLoadbalancerTakesOver: the tables of a version with one look-up table for both
// IP versions are taken over. Its program goes on as it was until it is replaced;
// flows keep their backends, but for those that were given one of the other version.
func TestLoadbalancerTakesOver(t *testing.T) {
	config := balancingBoth("10.9.0.2", "10.9.0.3", "2001:db8:9::2", "2001:db8:9::3")
	former := formerBench(t, config)
	chosen, orphans := map[onpath.Tuple]netip.AddrPort{}, 0
	for port := uint16(1000); port < 1200; port++ {
		for _, f := range []onpath.Tuple{dialled(port), dialled6(port)} {
			chosen[f] = former.backendOf(f, isSYN)
			if port%2 == 0 { // seen twice
				former.backendOf(f, isACK)
			}
			if chosen[f].Addr().Is4() != f.Src.Is4() {
				orphans++
			}
		}
	}
	if orphans == 0 || orphans == len(chosen) {
		t.Fatalf("%d of %d flows were given backends of the other IP version: not what that version did", orphans, len(chosen))
	}

	b := newBench(t)
	for range 3 { // whichever tables are free
		b.Tell(compile, config)
		fresh := map[netip.AddrPort]bool{}
		for port := uint16(2000); port < 2100; port++ {
			fresh[former.backendOf(dialled6(port), isSYN)] = true
		}
		if len(fresh) != 4 {
			t.Errorf("before it is replaced the former program gives new flows %v, must all four", fresh)
		}
	}
	for f, was := range chosen {
		if now := former.backendOf(f, isACK); now != was {
			t.Fatalf("before it is replaced the former program moves a flow from %v to %v", was, now)
		}
	}
	for f, was := range chosen {
		now := b.backendOf(f, isACK)
		if now.Addr().Is4() != f.Src.Is4() {
			t.Fatalf("a flow from %v goes on to %v", f.Src, now)
		}
		if was.Addr().Is4() == f.Src.Is4() && now != was {
			t.Errorf("a flow moved from %v to %v in the upgrade", was, now)
		}
	}
	if own := b.ownCounters(); own["moved"] != uint64(orphans) {
		t.Errorf("the load balancer counts %v; must be %d moved", own, orphans)
	}

	b.Tell(compile, balancingBoth("10.9.0.2", "2001:db8:9::2 weight 0", "2001:db8:9::3 weight 0"))
	orphan := dialled6(2000)
	for former.backendOf(orphan, isACK).Addr().Is6() { // until one has an entry that names an IPv4 backend
		orphan.SrcPort++
	}
	b.refused(orphan, isACK)
}
