package ebpf_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
)

// TestConcerns: packets whose addresses no rule, entry or address of the node's is about pass
// at once; what an earlier process left is looked through first.
func TestConcerns(t *testing.T) {
	was := ebpf.SetSweep(100 * time.Millisecond)
	defer ebpf.SetSweep(was)
	c := newTestbed(t)
	c.routed("gw", 17)
	gw := c.nodes["gw"]
	c.serve("tcp4", "10.9.0.2:80")
	is := func(when, address string, want bool) {
		t.Helper()
		if done, got := gw.dp.ConcernsAny(netip.MustParseAddr(address)); !done || got != want {
			t.Errorf("%s, packets of %s concern somebody: %v, must be %v; all cells are set: %v", when, address, got, want, done)
		}
	}
	match := onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("2001:db8:9::/64")}}
	c.chainOf(match, element(17, 17))
	const first = "with a chain"
	is(first, "10.9.0.2", true)
	is(first, "10.1.0.2", true) // the node's own network, by its address
	is(first, "2001:db8:9::2", true)
	is(first, "198.51.100.7", false)
	is(first, "2001:db8:7::2", false)
	c.transfer("10.9.0.2:80", 1<<20)
	if n := c.out("gw", 17); n < 700 {
		t.Errorf("the instance got %d packets, must be over 700", n)
	}

	gw.dp.ForgetConcerns()
	c.transfer("10.9.0.2:80", 1<<20)
	if _, got := gw.dp.ConcernsAny(netip.MustParseAddr("10.1.0.2")); !got {
		t.Error("the program wrote an entry, and set the cell of neither of its addresses")
	}

	foreign := onpath.Tuple{Src: netip.MustParseAddr("198.51.100.7"), Dst: netip.MustParseAddr("203.0.113.9")}
	foreign.SrcPort, foreign.DstPort, foreign.Protocol = 80, 4000, 6
	c.must(gw.dp.PutEntry(foreign))
	c.must(gw.dp.Close())
	gw.dp = c.open(gw)
	if done, _ := gw.dp.ConcernsAny(foreign.Src); done {
		t.Error("packets pass at once before it is known what an earlier process left")
	}
	c.chainOf(match, element(17, 17))
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if done, _ := gw.dp.ConcernsAny(foreign.Src); done {
			break
		}
		if time.Now().After(end) {
			t.Fatal("after 10 s it is not known what an earlier process left")
		}
	}
	is("after a restart", "198.51.100.7", true)
	is("after a restart", "192.0.2.1", false)
}
