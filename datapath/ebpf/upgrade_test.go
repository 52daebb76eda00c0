package ebpf_test

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
)

// formerObject is what bpf/ made before layouts of maps changed last.
//
//go:embed testdata/former_bpfel.o
var formerObject []byte

// TestUpgrade: programs and maps of an older version carry flows, with layouts that
// are no more. The new version takes over under traffic: no packet is lost, the
// flows stay at their instance although new ones would go to others too, counters
// go on, and what the older version left goes when it is of no use any more.
func TestUpgrade(t *testing.T) {
	for _, noTCX := range []bool{false, true} {
		t.Run(fmt.Sprintf("noTCX=%v", noTCX), func(t *testing.T) {
			t.Parallel()
			c := newTestbedWith(t, testbedOptions{noTCX: noTCX})
			c.routed("gw", 16)
			c.routed("gw", 17)
			c.upgrade()
		})
	}
}

func (c *testbed) upgrade() {
	t, gw := c.t, c.nodes["gw"]
	short := func(cfg *onpath.DatapathConfig) {
		cfg.Paths[0].Idle = onpath.DefaultIdle
		cfg.Paths[0].Idle.UDP = onpath.Duration(4 * time.Second)
	}
	c.apply(toServers(), short, element(16, 16))
	c.answer("10.9.0.2:5000", "[2001:db8:9::2]:5000")
	live := c.talk(20, "10.9.0.2:5000", "[2001:db8:9::2]:5000")
	idle := c.talk(2, "10.9.0.2:5000")
	idle.more(t, 10)
	live.more(t, 10)
	idle.end()
	before := c.out("gw", 16)
	c.in(gw.ns, func() error { return gw.dp.BecomeFormer(formerObject) })
	live.more(t, 10)

	gw.dp = c.open(gw)
	live.more(t, 10) // the older version goes on
	c.must(gw.dp.Close())
	if gw.dp = c.open(gw); !gw.dp.Succeeds() {
		t.Fatal("the maps of the older version are taken for this one's")
	}
	c.apply(toServers(), short, element(16, 16, 17, 17))
	live.more(t, 20)
	if sent, lost := live.end(), live.lost(); lost != 0 {
		t.Errorf("%d of %d packets were lost", lost, sent)
		c.dump()
	} else {
		t.Logf("0 of %d packets were lost", sent)
	}
	if n := c.out("gw", 17); n != 0 {
		t.Errorf("the instance that is newer than all flows got %d packets", n)
	}
	if n := c.out("gw", 16); n <= before {
		t.Errorf("the counter of instance 16 went from %d to %d", before, n)
	}
	fresh := c.talk(20, "10.9.0.2:5000")
	fresh.more(t, 5)
	fresh.end()
	if fresh.lost() != 0 || c.out("gw", 17) == 0 {
		t.Errorf("%d packets of new flows were lost, and instance 17 got %d", fresh.lost(), c.out("gw", 17))
	}
	c.awaitNoFormer(gw.dp)
	c.must(gw.dp.Close())
	if gw.dp = c.open(gw); gw.dp.Succeeds() {
		t.Error("the same version takes its own maps for an older one's")
	}
}

// TestUpgradeFunctions: between the moment that the new maps have their names and that in
// which a device gets the new program, the older program still runs functions, at tc and XDP.
// A process that dies in between changes nothing.
func TestUpgradeFunctions(t *testing.T) {
	t.Parallel()
	c := newCrossing(t, onpath.FastAlways)
	c.apply()
	c.settle(1)
	for i := range byte(2) {
		c.w.must(c.dp.Close())
		c.w.must(ebpf.ChangeLayout(c.options("gw")))
		d := driverOf(c.Reopen("gw"))
		if c.dp = (examDriver{d}); !d.Succeeds() {
			t.Fatal("the maps of the older version are taken for this one's")
		}
		c.w.must(d.Turn())
		for flow := range byte(10) { // the kernel empties maps of programs some time after their last pin is gone
			time.Sleep(10 * time.Millisecond)
			c.cross(1)
			c.cross(10*i + flow + 2) // of a flow that the fast path does not know
		}
	}
	c.apply()
	c.settle(1)
	names, err := driverOf(c.dp).Pinned()
	c.w.must(err)
	for _, n := range names {
		if strings.HasPrefix(n, "next-") || strings.HasPrefix(n, "past-") {
			t.Errorf("%s is left of the upgrade", n)
		}
	}
}

// TestUpgradeTranslations: flows that an instance has begun from its private addresses
// keep the ports by which they are known outside, from an older version's translations
// whose layout is no more.
func TestUpgradeTranslations(t *testing.T) {
	t.Parallel()
	const flows = 10
	c := newTestbed(t)
	gw := c.nodes["gw"]
	c.routed("gw", 16, "100.64.0.9/32", "fd77::9/128")
	c.instances[0].Own = []netip.Addr{netip.MustParseAddr("100.64.0.9"), netip.MustParseAddr("fd77::9")}
	c.instances[0].Routes = true
	translate := func(cfg *onpath.DatapathConfig) {
		if cfg.Edge != nil {
			cfg.Edge.NAT = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd77::/16")}
		}
	}
	c.apply(toServers(), translate, element(16, 16))
	sources := c.answer("10.9.0.2:5000", "[2001:db8:9::2]:5000")
	live := c.talkFrom(filepath.Join(c.dir, "i16"), flows, "10.9.0.2:5000", "[2001:db8:9::2]:5000")
	live.more(t, 10)
	before := sources.forget()
	c.in(gw.ns, func() error { return gw.dp.BecomeFormer(formerObject) })
	live.more(t, 10)
	live.pause()
	gw.dp = c.open(gw)
	if !gw.dp.Succeeds() {
		t.Fatal("the maps of the older version are taken for this one's")
	}
	c.apply(toServers(), translate, element(16, 16))
	live.sent.Add(sources.speak()) // before anybody sends who would be translated anew
	live.resume()
	live.more(t, 20)
	if sent, lost := live.end(), live.lost(); lost != 0 {
		t.Errorf("%d of %d packets were lost", lost, sent)
		c.dump()
	}
	after := sources.forget()
	if len(before) != 2*flows || !maps.Equal(before, after) {
		t.Errorf("%d flows came as %v before the upgrade, as %v across it", 2*flows, before, after)
	}
	for a := range after {
		if a := a.Addr(); a != netip.MustParseAddr("10.9.0.1") && a != netip.MustParseAddr("2001:db8:9::1") {
			t.Errorf("%v is not the gateway's address", a)
		}
	}
}

// awaitNoFormer waits until nothing of the older version is pinned.
func (c *testbed) awaitNoFormer(d *ebpf.Driver) {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		names, err := d.Pinned()
		c.must(err)
		if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "next-") }) {
			c.t.Fatalf("maps of the upgrade are left: %v", names)
		}
		if !slices.Contains(names, "lanes") {
			return
		}
		if time.Now().After(end) {
			c.t.Fatal("a map of the older version is still there")
		}
	}
}

// heard are the ends that sent datagrams.
type heard struct {
	mu   sync.Mutex
	ends map[netip.AddrPort]bool
	by   map[netip.AddrPort]net.PacketConn // at which socket
}

func (h *heard) note(a netip.AddrPort, by net.PacketConn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	h.ends[a], h.by[a] = true, by
}

// speak sends a datagram to each end that was ever heard; it tells how many.
func (h *heard) speak() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a, by := range h.by {
		by.WriteTo([]byte("unasked"), net.UDPAddrFromAddrPort(a))
	}
	return int64(len(h.by))
}

// forget gives them, and begins anew.
func (h *heard) forget() map[netip.AddrPort]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.ends
	h.ends = map[netip.AddrPort]bool{}
	return e
}

// answer sends datagrams back from the server, and notes whose they are.
func (c *testbed) answer(addrs ...string) *heard {
	c.t.Helper()
	h := &heard{ends: map[netip.AddrPort]bool{}, by: map[netip.AddrPort]net.PacketConn{}}
	for _, addr := range addrs {
		var conn net.PacketConn
		c.in(c.server, func() (err error) {
			if conn, err = net.ListenPacket("udp", addr); err != nil {
				return err
			}
			return patient(conn.(*net.UDPConn))
		})
		c.t.Cleanup(func() { conn.Close() })
		go func() {
			b := make([]byte, 64)
			for {
				n, from, err := conn.ReadFrom(b)
				if err != nil {
					return
				}
				h.note(from.(*net.UDPAddr).AddrPort(), conn)
				conn.WriteTo(b[:n], from)
			}
		}()
	}
	return h
}

// patient lets a socket keep what comes while its reader waits for a busy machine.
func patient(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	})
	return errors.Join(err, set)
}

// conversation is of flows in which each datagram is answered.
type conversation struct {
	every          time.Duration
	stop           chan struct{}
	done           sync.WaitGroup
	conns          []net.Conn
	sent, answered atomic.Int64
}

// talk begins n flows to each address, with fifty datagrams a second.
func (c *testbed) talk(n int, addrs ...string) *conversation {
	c.t.Helper()
	return c.talkFrom(c.client, n, addrs...)
}

// talkFrom begins them in a namespace.
func (c *testbed) talkFrom(ns string, n int, addrs ...string) *conversation {
	c.t.Helper()
	return c.talkEvery(20*time.Millisecond, ns, n, addrs...)
}

// talkEvery has each flow send a datagram in each such time.
func (c *testbed) talkEvery(every time.Duration, ns string, n int, addrs ...string) *conversation {
	c.t.Helper()
	v := &conversation{every: every, stop: make(chan struct{})}
	for i := range n * len(addrs) {
		var conn net.Conn
		c.in(ns, func() (err error) {
			u, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addrs[i%len(addrs)])))
			if err != nil {
				return err
			}
			conn = u
			return patient(u)
		})
		v.conns = append(v.conns, conn)
		go v.hear(conn)
	}
	v.done.Go(v.speak)
	return v
}

func (v *conversation) speak() {
	tick := time.NewTicker(v.every)
	defer tick.Stop()
	var b [8]byte
	for {
		select {
		case <-v.stop:
			return
		case <-tick.C:
		}
		for _, conn := range v.conns {
			binary.BigEndian.PutUint64(b[:], uint64(v.sent.Add(1)))
			conn.Write(b[:])
		}
	}
}

func (v *conversation) hear(conn net.Conn) {
	b := make([]byte, 64)
	for {
		if _, err := conn.Read(b); err != nil {
			return
		}
		v.answered.Add(1)
	}
}

// more waits until each flow has sent so many datagrams more, and as many are answered.
func (v *conversation) more(t testing.TB, n int) {
	t.Helper()
	want := int64(n * len(v.conns))
	sent, answered := v.sent.Load()+want, v.answered.Load()+want
	for end := time.Now().Add(time.Minute); v.sent.Load() < sent || v.answered.Load() < answered; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("of %d datagrams %d are answered", v.sent.Load(), v.answered.Load())
		}
	}
}

// pause and resume: nobody speaks in between.
func (v *conversation) pause() {
	close(v.stop)
	v.done.Wait()
}

func (v *conversation) resume() {
	v.stop = make(chan struct{})
	v.done.Go(v.speak)
}

// end stops it, waits for the last answers, and tells how many were sent.
func (v *conversation) end() int64 {
	close(v.stop)
	v.done.Wait()
	for was, last := v.lost(), time.Now(); v.lost() > 0 && time.Since(last) < 5*time.Second; time.Sleep(10 * time.Millisecond) {
		if now := v.lost(); now < was { // more come
			was, last = now, time.Now()
		}
	}
	for _, conn := range v.conns {
		conn.Close()
	}
	return v.sent.Load()
}

func (v *conversation) lost() int64 { return v.sent.Load() - v.answered.Load() }
