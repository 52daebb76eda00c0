package ebpf_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
)

// TestEndUnderTraffic: flows whose chain ends together with its instance, again and
// again, while their packets are under way, go the ordinary way at once: packets that
// come back from the other node in that moment leave nothing that leads to the
// instance.
func TestEndUnderTraffic(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("n2", 17)
	c.slow(17, 2*time.Millisecond, 5*time.Millisecond)
	c.answer("10.9.0.2:7")
	// Without tcx the kernel stops a device for a moment when programs get to it first.
	c.must(c.nodes["gw"].dp.Apply(t.Context(), c.bare("gw")))
	chain := [][][2]onpath.VportID{element(17, 17)}
	c.undisturbed(50*time.Millisecond, func() *conversation {
		v := c.talkEvery(200*time.Microsecond, c.client, 2, "10.9.0.2:7")
		c.comeAndGo(chain)
		return v
	})
}

// comeAndGo has a chain begin and end again and again.
func (c *testbed) comeAndGo(chain [][][2]onpath.VportID) {
	t := c.t
	for i := range 24 {
		for _, name := range []string{"n2", "gw"} {
			c.must(c.nodes[name].dp.Apply(t.Context(), c.config(name, toServers(), chain)))
		}
		time.Sleep(30 * time.Millisecond)
		none := c.bare("gw")
		if i%2 == 0 { // the chain's path stays for a while: its flows keep it
			kept := c.config("gw", toServers(), chain)
			kept.Tables[0].Rules = nil
			c.must(c.nodes["gw"].dp.Apply(t.Context(), kept))
			time.Sleep(5 * time.Millisecond)
		}
		c.must(c.nodes["gw"].dp.Apply(t.Context(), none))
		time.Sleep(100 * time.Millisecond) // more than what is under way needs
		c.must(c.nodes["n2"].dp.Apply(t.Context(), c.bare("n2")))
	}
}

// undisturbed has a conversation lose nothing. It is repeated where it lost packets while this
// program, which holds packets, did not run for as long as most.
func (c *testbed) undisturbed(most time.Duration, attempt func() *conversation) {
	c.t.Helper()
	for until := time.Now().Add(2 * time.Minute); ; {
		var longest time.Duration
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for last := time.Now(); ; {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				now := time.Now()
				longest, last = max(longest, now.Sub(last)), now
			}
		}()
		v := attempt()
		close(stop)
		<-stopped
		sent := v.end()
		lost := v.lost()
		switch {
		case lost == 0:
			return
		case longest < most || time.Now().After(until):
			c.t.Errorf("%d of %d packets were not answered; this program did not run for %s at most", lost, sent, longest)
			c.dump()
			return
		}
		c.t.Logf("again: %d of %d packets were not answered, and this program did not run for %s", lost, sent, longest)
	}
}

// TestLeaveUnderTraffic: an instance that goes while its path stays, once the gateway
// sends it nothing more, lets out what is still in it: flows lose nothing as they move
// to another instance.
func TestLeaveUnderTraffic(t *testing.T) {
	c := newTestbed(t)
	was := ebpf.SetLastOnes(300 * time.Millisecond) // this program holds packets, and may be slow
	defer ebpf.SetLastOnes(was)
	const first, last = onpath.VportID(17), onpath.VportID(21)
	for id := first; id <= last; id++ {
		c.routed("n2", id)
		c.slow(id, 2*time.Millisecond, 5*time.Millisecond)
	}
	c.answer("10.9.0.2:7")
	use := func(nodes []string, ids ...onpath.VportID) {
		t.Helper()
		var members [][2]onpath.VportID
		for _, id := range ids {
			members = append(members, element(id, id)...)
		}
		for _, name := range nodes {
			cfg := c.config(name, toServers(), [][][2]onpath.VportID{members})
			cfg.Vports = slices.DeleteFunc(cfg.Vports, func(v onpath.Vport) bool { return v.ID != testbedEdge && !slices.Contains(ids, v.ID) })
			c.must(c.nodes[name].dp.Apply(t.Context(), cfg))
		}
	}
	c.undisturbed(100*time.Millisecond, func() *conversation {
		use([]string{"n2", "gw"}, first)
		v := c.talkEvery(time.Millisecond, c.client, 4, "10.9.0.2:7")
		for id := first; id < last; id++ {
			time.Sleep(20 * time.Millisecond)
			use([]string{"n2", "gw"}, id, id+1)
			time.Sleep(20 * time.Millisecond)
			use([]string{"gw", "n2"}, id+1)
		}
		return v
	})
}

// Offsets of frames with UDP over IPv4 without options.
const (
	udpProtocol = 14 + 9
	udpEnd      = 14 + 20 + 8
)

// slow has the instance's datagrams wait for some time, from least to most, before
// they go on.
func (c *testbed) slow(id onpath.VportID, least, most time.Duration) {
	c.t.Helper()
	ns := filepath.Join(c.dir, fmt.Sprintf("i%d", id))
	c.in(ns, func() error { return errors.Join(setting("ipv4/ip_forward=0"), setting("ipv6/conf/all/forwarding=0")) })
	fd, ifindex := c.socket(ns, "eth0"), c.link(ns, "eth0").Index
	c.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	var stop atomic.Bool
	var done sync.WaitGroup
	c.t.Cleanup(func() {
		stop.Store(true)
		done.Wait()
	})
	done.Go(func() {
		b := make([]byte, 2048)
		for n := 0; !stop.Load(); n++ {
			size, _, err := unix.Recvfrom(fd, b, 0)
			if err != nil || size < udpEnd || b[udpProtocol] != unix.IPPROTO_UDP {
				continue
			}
			frame := slices.Concat(b[6:12], b[:6], b[12:size])
			clear(frame[udpEnd-2 : udpEnd]) // the sender left its checksum to a device
			done.Add(1)
			time.AfterFunc(least+(most-least)*time.Duration(n%32)/32, func() {
				defer done.Done()
				unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: ifindex})
			})
		}
	})
}

// bare is a node's configuration without chains and instances.
func (c *testbed) bare(name string) *onpath.DatapathConfig {
	cfg := c.config(name, onpath.Match{}, nil)
	cfg.Paths, cfg.Groups = nil, nil
	cfg.Tables = cfg.Tables[:1]
	cfg.Tables[0].Rules = nil
	var own []onpath.Vport
	for _, v := range cfg.Vports {
		if v.ID == testbedEdge {
			own = append(own, v)
		}
	}
	cfg.Vports = own
	return cfg
}
