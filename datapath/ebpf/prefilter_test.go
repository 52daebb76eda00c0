package ebpf_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
)

// TestPrefilterOwn: replies to a translated flow reach the instance, though no rule names their
// addresses: one address is the node's own.
func TestPrefilterOwn(t *testing.T) {
	c, gw := natTestbed(t, "gw")
	c.applyNAT(onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}})
	c.answersByPort()
	if on, set := gw.dp.Prefilter(netip.MustParseAddr("10.9.0.1")); !on || set {
		t.Fatalf("the prefilter is on: %v, with the byte of the node's network: %v", on, set)
	}
	if err := c.askFrom("i16", "udp", "10.9.0.2:53"); err != nil {
		t.Error(err)
	}
}

// TestPrefilter: the prefilter has the prefixes of rules and the addresses of entries that an
// earlier process left, and is off until it has these.
func TestPrefilter(t *testing.T) {
	was := ebpf.SetSweep(100 * time.Millisecond)
	defer ebpf.SetSweep(was)
	c := newTestbed(t)
	c.routed("gw", 17)
	gw := c.nodes["gw"]
	c.serve("tcp4", "10.9.0.2:80")
	is := func(when, address string, want bool) {
		t.Helper()
		if done, got := gw.dp.Prefilter(netip.MustParseAddr(address)); !done || got != want {
			t.Errorf("%s, the byte of %s is set: %v, must be %v; the prefilter is on: %v", when, address, got, want, done)
		}
	}
	match := onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("2001:db8:9::/64")}}
	c.chainOf(match, element(17, 17))
	const first = "with a chain"
	is(first, "10.9.0.2", true)
	is(first, "10.1.0.2", false) // beside an address of the node
	is(first, "2001:db8:9::2", true)
	is(first, "198.51.100.7", false)
	is(first, "2001:db8:7::2", false)
	c.transfer("10.9.0.2:80", 1<<20)
	if n := c.out("gw", 17); n < 700 {
		t.Errorf("the instance got %d packets, must be over 700", n)
	}

	gw.dp.ClearPrefilter()
	c.transfer("10.9.0.2:80", 1<<20)
	if _, got := gw.dp.Prefilter(netip.MustParseAddr("10.1.0.2")); !got {
		t.Error("the program wrote an entry, and set the byte of neither address")
	}

	foreign := onpath.Tuple{Src: netip.MustParseAddr("198.51.100.7"), Dst: netip.MustParseAddr("203.0.113.9")}
	foreign.SrcPort, foreign.DstPort, foreign.Protocol = 80, 4000, 6
	c.must(gw.dp.PutEntry(foreign))
	c.must(gw.dp.Close())
	gw.dp = c.open(gw)
	if done, _ := gw.dp.Prefilter(foreign.Src); done {
		t.Error("the prefilter is on before the entries of an earlier process are read")
	}
	c.chainOf(match, element(17, 17))
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if done, _ := gw.dp.Prefilter(foreign.Src); done {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the prefilter is still off after 10 s")
		}
	}
	is("after a restart", "198.51.100.7", true)
	is("after a restart", "192.0.2.1", false)
}
