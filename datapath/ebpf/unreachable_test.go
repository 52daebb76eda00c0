package ebpf_test

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// TestUnreachable: behind a chain a sender learns as without one that nobody has the address
// which it sends to, or that no route leads there.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	needKernel(t)
	c := newTestbed(t)
	c.routed("gw", 16)
	c.chainOf(toServers(), element(16, 16))
	gw := c.nodes["gw"].ns
	c.in(gw, func() error {
		for dst, kind := range map[string]int{
			"10.9.1.0/24": unix.RTN_UNREACHABLE, "10.9.2.0/24": unix.RTN_PROHIBIT, "10.9.3.0/24": unix.RTN_BLACKHOLE,
			"2001:db8:9:1::/64": unix.RTN_UNREACHABLE, "2001:db8:9:2::/64": unix.RTN_PROHIBIT, "2001:db8:9:3::/64": unix.RTN_BLACKHOLE,
		} {
			_, to, err := net.ParseCIDR(dst)
			if err != nil {
				return err
			}
			if err := netlink.RouteAdd(&netlink.Route{Dst: to, Type: kind}); err != nil {
				return err
			}
		}
		return nil
	})
	var all sync.WaitGroup
	for to, want := range map[string]struct {
		err   error
		least time.Duration // what the kernel waits for a neighbour; the client itself waits for minutes
	}{
		"10.9.0.77:80":         {syscall.EHOSTUNREACH, 2500 * time.Millisecond},
		"[2001:db8:9::77]:80":  {syscall.EHOSTUNREACH, 2500 * time.Millisecond},
		"10.9.1.2:80":          {syscall.EHOSTUNREACH, 0},
		"10.9.2.2:80":          {syscall.EHOSTUNREACH, 0}, // 3/13, as Linux takes it
		"10.9.3.2:80":          {nil, 0},
		"10.9.4.2:80":          {syscall.ENETUNREACH, 0},
		"[2001:db8:9:1::2]:80": {syscall.ENETUNREACH, 0},
		"[2001:db8:9:2::2]:80": {syscall.EACCES, 0},
		"[2001:db8:9:3::2]:80": {nil, 0},
		"[2001:db8:9:4::2]:80": {syscall.ENETUNREACH, 0},
	} {
		all.Go(func() {
			began := time.Now()
			var err error
			failed := netnsrun.Do(c.client, func() error {
				var conn net.Conn
				patience := time.Minute
				if want.err == nil {
					patience = 5 * time.Second
				}
				conn, err = net.DialTimeout("tcp", to, patience)
				if err == nil {
					conn.Close()
				}
				return nil
			})
			took := time.Since(began)
			var timeout net.Error
			switch {
			case failed != nil:
				t.Error(failed)
			case want.err == nil && !(errors.As(err, &timeout) && timeout.Timeout()):
				t.Errorf("a connection to %s, which nobody must tell of, ends with %v after %v", to, err, took)
			case want.err != nil && !errors.Is(err, want.err):
				t.Errorf("a connection to %s ends with %v after %v, must end with %v", to, err, took, want.err)
			case want.err != nil && took < want.least:
				t.Errorf("a connection to %s ends after %v, must not before %v", to, took, want.least)
			}
		})
	}
	all.Wait()
	counters, err := c.nodes["gw"].dp.Counters(t.Context())
	c.must(err)
	var neighbour, route uint64
	for _, v := range counters.Vports {
		neighbour += v.Dropped[onpath.DropNoNeighbour]
		route += v.Dropped[onpath.DropNoRoute]
	}
	if neighbour < 2 || route < 8 {
		t.Errorf("%d packets were dropped for no-neighbour and %d for no-route, must be 2 and 8 at least", neighbour, route)
	}
	if t.Failed() {
		c.dump()
	}
	// The neighbour comes: what was refused goes on.
	c.in(c.server, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("10.9.0.77/24")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, a)
	})
	c.serve("tcp", netip.MustParseAddrPort("10.9.0.77:80").String())
	until := time.Now().Add(time.Minute)
	for {
		err := netnsrun.Do(c.client, func() error {
			conn, err := net.DialTimeout("tcp", "10.9.0.77:80", time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		})
		if err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("a minute after the neighbour came: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
