package ebpf_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
)

// TestTransfer runs real TCP, with the offloads of real kernels, through a
// routed and a bridged instance on two nodes, both IP versions.
func TestTransfer(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("gw", 16)
	c.bridged("n2", 17, 18)
	c.serve("tcp4", "10.9.0.2:80")
	c.serve("tcp6", "[2001:db8:9::2]:80")
	c.chainOf(toServers(), element(16, 16), element(17, 18))
	for _, addr := range []string{"10.9.0.2:80", "[2001:db8:9::2]:80"} {
		before := [2]uint64{c.out("gw", 16), c.out("n2", 17)}
		start := time.Now()
		c.transfer(addr, 20<<20)
		t.Logf("20 MiB to %s took %v", addr, time.Since(start))
		// At 1450 bytes each, 20 MiB are over 14,000 segments, GSO or not.
		if got := c.out("gw", 16) - before[0]; got < 14_000 {
			t.Errorf("instance 16 got %d packets, must be over 14000", got)
		}
		if got := c.out("n2", 17) - before[1]; got < 14_000 {
			t.Errorf("instance 17 got %d packets, must be over 14000", got)
		}
	}
}

// TestFilters: the same with clsact filters, as on kernels without tcx, and they
// are gone after Remove.
func TestFilters(t *testing.T) {
	t.Parallel()
	c := newTestbedWith(t, testbedOptions{noTCX: true})
	c.routed("gw", 16)
	c.bridged("n2", 17, 18)
	c.serve("tcp4", "10.9.0.2:80")
	c.chainOf(toServers(), element(16, 16), element(17, 18))
	c.transfer("10.9.0.2:80", 1<<20)
	c.chainOf(toServers(), element(17, 18))
	c.transfer("10.9.0.2:80", 1<<20)
	if c.out("n2", 17) == 0 {
		t.Error("instance 17 got nothing")
	}
	for _, n := range c.nodes {
		c.must(n.dp.Close())
		n.dp = c.open(n)
		c.must(n.dp.Remove(t.Context()))
		c.in(n.ns, func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				if l.Attrs().Name == "onpath0" {
					t.Errorf("%s: the tunnel device is still there", n.name)
				}
				if qs, _ := netlink.QdiscList(l); len(qs) > 1 {
					t.Errorf("%s: device %s still has %v", n.name, l.Attrs().Name, qs)
				}
			}
			return err
		})
	}
	c.transfer("10.9.0.2:80", 1000)
}

// TestOutlives: traffic goes on when the driver's process is gone, a new one
// takes over without touching it, and Remove by yet another one restores
// ordinary forwarding.
func TestOutlives(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("gw", 16)
	c.serve("tcp4", "10.9.0.2:80")
	c.chainOf(toServers(), element(16, 16))
	c.transfer("10.9.0.2:80", 1000)
	gw := c.nodes["gw"]
	c.must(gw.dp.Close()) // what a killed process leaves: pins and nothing else
	c.transfer("10.9.0.2:80", 1000)

	gw.dp = c.open(gw)
	before := c.out("gw", 16)
	c.transfer("10.9.0.2:80", 1000)
	after := c.out("gw", 16)
	if after <= before {
		t.Errorf("instance 16 got no packet before Apply of the new process: %d, then %d", before, after)
	}
	c.chainOf(toServers(), element(16, 16))
	c.transfer("10.9.0.2:80", 1000)
	if got := c.out("gw", 16); got <= after {
		t.Errorf("instance 16 got no packet after Apply of the new process: %d, then %d", after, got)
	}
	c.must(gw.dp.Close())
	c.in(gw.ns, func() error { return ebpf.Remove(t.Context(), ebpf.Options{Name: c.name + "-gw"}) })
	c.transfer("10.9.0.2:80", 1000)
	gw.dp = c.open(gw)
	if got := c.out("gw", 16); got != 0 {
		t.Errorf("after Remove instance 16 has %d packets, must have none", got)
	}
}

// TestRepick: when the instance that carries a connection dies, a stateless one
// takes over, and the connection goes on.
func TestRepick(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("gw", 16)
	c.routed("n2", 17)
	c.serve("tcp4", "10.9.0.2:80")
	c.chainOf(toServers(), element(16, 16, 17, 17))
	var enough atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done) // also if it fails
		c.stream("10.9.0.2:80", func(int) int {
			if enough.Load() {
				return 0
			}
			return 64 << 10
		})
	}()
	got := map[onpath.VportID]func() uint64{
		16: func() uint64 { return c.out("gw", 16) }, 17: func() uint64 { return c.out("n2", 17) },
	}
	until := func(what func() bool) {
		for end := time.Now().Add(time.Minute); !what() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		}
	}
	until(func() bool { return got[16]() > 100 || got[17]() > 100 })
	victim, heir := onpath.VportID(16), onpath.VportID(17)
	if got[17]() > 100 {
		victim, heir = heir, victim
	}
	for i := range c.instances {
		if c.instances[i].ID == victim {
			c.instances[i].State = onpath.VportClosed
		}
	}
	start := time.Now()
	c.chainOf(toServers(), element(16, 16, 17, 17))
	t.Logf("closing vport %d on both nodes took %v", victim, time.Since(start))
	until(func() bool { return got[heir]() > 100 })
	enough.Store(true)
	<-done
	if a, b := got[16](), got[17](); a < 100 || b < 100 {
		t.Errorf("the instances got %d and %d packets; the connection must have used both", a, b)
	}
}

// TestWaitingIsReset: the client of a dead instance that ends TCP is reset though
// it only waits and says nothing, whatever stands before that instance, and where.
func TestWaitingIsReset(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		name string
		make func(c *testbed) (before [][]onpath.VportID)
	}{
		{"first", func(*testbed) [][]onpath.VportID { return nil }},
		{"behind a routed one", func(c *testbed) [][]onpath.VportID {
			c.routed("gw", 17)
			return [][]onpath.VportID{{17, 17}}
		}},
		{"behind a bridged and a routed one elsewhere", func(c *testbed) [][]onpath.VportID {
			c.routed("n2", 17)
			c.bridged("n2", 18, 19)
			return [][]onpath.VportID{{17, 17}, {18, 19}}
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			c := newTestbed(t)
			c.routed("n2", 16)
			row := append(k.make(c), []onpath.VportID{16, 16})
			for _, addr := range []string{"10.9.0.2:81", "[2001:db8:9::2]:81"} {
				c.waitingIsReset(addr, row)
			}
		})
	}
}

// waitingIsReset has instance 16, the last of a row of elements, die under a
// connection that rests.
func (c *testbed) waitingIsReset(addr string, row [][]onpath.VportID) {
	c.t.Helper()
	var l net.Listener
	c.in(c.server, func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	defer l.Close()
	reset := func(cfg *onpath.DatapathConfig) {
		for i := range cfg.Groups {
			if _, element, _ := cfg.Groups[i].ID.Split(); element == len(row)-1 {
				cfg.Groups[i].Lost = onpath.LostReset
			}
		}
	}
	var elements [][][2]onpath.VportID
	for _, sides := range row {
		elements = append(elements, element(sides...))
	}
	c.instances[0].State = onpath.VportUp
	c.apply(toServers(), reset, elements...)
	var conn net.Conn
	c.in(c.client, func() (err error) {
		conn, err = net.DialTimeout("tcp", addr, time.Minute)
		return err
	})
	defer conn.Close()
	far, err := l.Accept()
	c.must(err)
	defer far.Close()
	_, err = far.Write(make([]byte, 1000))
	c.must(err)
	_, err = io.ReadFull(conn, make([]byte, 1000))
	c.must(err)
	c.instances[0].State = onpath.VportClosed
	c.apply(toServers(), reset, elements...)
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		c.t.Errorf("the waiting client of %s got %v, must be reset", addr, err)
		c.dump()
	}
}

// TestHandedOn: while only the node of a dead instance knows that it is dead,
// that node hands packets for it on to the instance that takes over.
func TestHandedOn(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("gw", 16)
	c.routed("n2", 17)
	c.serve("tcp4", "10.9.0.2:80")
	c.chainOf(toServers(), element(16, 16, 17, 17))
	for range 8 {
		c.transfer("10.9.0.2:80", 1000)
	}
	if c.out("gw", 16) == 0 || c.out("n2", 17) == 0 {
		t.Skip("chance gave all connections to one instance")
	}
	before := c.out("n2", 17)
	c.apply(toServers(), func(cfg *onpath.DatapathConfig) {
		for i := range cfg.Vports {
			if v := &cfg.Vports[i]; v.ID == 17 && v.Kind == onpath.VportInstance {
				v.State = onpath.VportClosed
			}
		}
	}, element(16, 16, 17, 17))
	for range 8 {
		c.transfer("10.9.0.2:80", 1000)
	}
	if got := c.out("n2", 17); got != before {
		t.Errorf("the closed instance got %d packets more", got-before)
	}
}

// TestRewrite: nftables in an instance on another node rewrites the destination.
func TestRewrite(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("n2", 16)
	c.instances[0].Packets, c.instances[0].Emit = onpath.PacketsRewrite, onpath.EmitTableOf(16)
	c.in(c.dir+"/i16", func() error { return dnat("203.0.113.10", "10.9.0.2") })
	c.route(c.nodes["gw"].ns, "up1", netip.MustParsePrefix("203.0.113.10/32"), netip.MustParseAddr("10.9.0.2"))
	c.serve("tcp4", "10.9.0.2:80")
	match := onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("203.0.113.10/32"), netip.MustParsePrefix("10.9.0.2/32")}}
	c.apply(match, func(cfg *onpath.DatapathConfig) {
		back := onpath.Match{Src: match.Dst}
		cfg.Tables = append(cfg.Tables, onpath.Table{
			ID: onpath.EmitTableOf(16), Miss: onpath.Action{Kind: onpath.ActionExit},
			Rules: []onpath.Rule{
				{Match: match, Path: 1, Action: onpath.Action{Kind: onpath.ActionTable, Table: onpath.TableOf(1, 0, false)}},
				{Match: back, Path: 1, Reverse: true, Action: onpath.Action{Kind: onpath.ActionTable, Table: onpath.TableOf(1, 0, true)}},
			},
		})
	}, element(16, 16))
	c.transfer("203.0.113.10:80", 5<<20)
}

// dnat makes the namespace rewrite a destination.
func dnat(from, to string) error {
	nft, err := nftables.New()
	if err != nil {
		return err
	}
	t := nft.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "nat"})
	ch := nft.AddChain(&nftables.Chain{
		Table: t, Name: "pre", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	nft.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: net.ParseIP(from).To4()},
		&expr.Immediate{Register: 1, Data: net.ParseIP(to).To4()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	}})
	return nft.Flush()
}
