package ebpf_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// linkMTUs are those of a host's link and of the nodes' underlay.
type linkMTUs struct{ link, underlay int }

// mtus are a sender's link larger than, equal to and hardly larger than what the underlay
// holds; long runs have the others, too.
func mtus() []linkMTUs {
	short := []linkMTUs{{9000, 1500}, {1500, 1500}, {1500, 1330}}
	if os.Getenv("ONPATH_SOAK") == "" {
		return short
	}
	return append(short, linkMTUs{9000, 9000}, linkMTUs{1500, 9000}, linkMTUs{1280, 1500})
}

// TestNoBlackHole: whatever the links, the underlay and the element's slot carry,
// and whether or not the ends hear ICMP, large transfers arrive in both directions.
func TestNoBlackHole(t *testing.T) {
	needKernel(t)
	for _, m := range mtus() {
		for _, place := range []string{"gw", "n2"} {
			for _, deaf := range []bool{false, true} {
				t.Run(fmt.Sprintf("link=%d,underlay=%d,element=%s,deaf=%v", m.link, m.underlay, place, deaf), func(t *testing.T) {
					t.Parallel()
					c := newTestbedWith(t, testbedOptions{linkMTU: m.link, underlayMTU: m.underlay})
					c.routed(place, 16)
					c.steerWithin(place, time.Time{})
					c.crossBothWays(deaf)
					if least := min(m.link, c.pathMTUOf(place)); !deaf && least < m.link {
						c.pathMTU(c.client, "10.9.0.2:9", least)
					}
				})
			}
		}
	}
}

// TestNoBlackHoleWithoutDF: datagrams that a tunnel does not hold, of senders that do
// not ask for errors, arrive in both directions, in one packet or in fragments.
func TestNoBlackHoleWithoutDF(t *testing.T) {
	needKernel(t)
	t.Parallel()
	c := newTestbedWith(t, testbedOptions{linkMTU: 1500, underlayMTU: 1500})
	c.routed("n2", 16)
	c.steerWithin("n2", time.Time{})
	conns := [2]*net.UDPConn{}
	for i, ns := range []string{c.client, c.server} {
		c.in(ns, func() (err error) {
			conns[i], err = net.ListenUDP("udp4", &net.UDPAddr{Port: 4000})
			if err != nil {
				return err
			}
			raw, err := conns[i].SyscallConn()
			if err != nil {
				return err
			}
			var set error
			err = raw.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
			})
			return errors.Join(err, set)
		})
		defer conns[i].Close()
	}
	for _, length := range []int{100, 1463, 1472, 4000} { // of payload; the tunnel holds 1,450 bytes of IP
		c.arrives(conns[0], conns[1], "10.9.0.2:4000", length)
		c.arrives(conns[1], conns[0], "10.1.0.2:4000", length)
	}
	if n := c.out("n2", 16); n < 8 {
		t.Errorf("the instance got %d packets", n)
	}
}

// arrives sends five datagrams and counts those that come.
func (c *testbed) arrives(from, to *net.UDPConn, at string, length int) {
	c.t.Helper()
	for range 5 {
		if _, err := from.WriteToUDPAddrPort(make([]byte, length), netip.MustParseAddrPort(at)); err != nil {
			c.t.Fatal(err)
		}
	}
	got, b := 0, make([]byte, 1<<16)
	c.must(to.SetReadDeadline(time.Now().Add(time.Minute)))
	for ; got < 5; got++ {
		if n, err := to.Read(b); err != nil || n != length {
			break
		}
	}
	if got < 5 {
		c.t.Errorf("of 5 datagrams with %d bytes to %s, %d arrived", length, at, got)
	}
}

// TestNoBlackHoleForOlder: a connection older than the chain may have larger segments
// than the chain carries, and nobody tells it. It goes on past the chain.
func TestNoBlackHoleForOlder(t *testing.T) {
	needKernel(t)
	for _, m := range mtus() {
		for _, place := range []string{"gw", "n2"} {
			for _, deaf := range []bool{false, true} {
				t.Run(fmt.Sprintf("link=%d,underlay=%d,element=%s,deaf=%v", m.link, m.underlay, place, deaf), func(t *testing.T) {
					t.Parallel()
					c := newTestbedWith(t, testbedOptions{linkMTU: m.link, underlayMTU: m.underlay})
					c.routed(place, 16)
					if deaf {
						c.deafen()
					}
					c.serve("tcp4", "10.9.0.2:80")
					c.olderGoesOn(place)
				})
			}
		}
	}
}

// olderGoesOn begins a connection before there is a chain, and one after.
func (c *testbed) olderGoesOn(place string) {
	c.t.Helper()
	const whole = 4 << 20
	begun := false
	c.stream("10.9.0.2:80", func(sent int) int {
		if sent > whole/4 && !begun {
			begun = true
			c.steerWithin(place, time.Now())
		}
		return whole - sent
	})
	if n := c.out(place, 16); n != 0 {
		c.t.Errorf("the instance got %d packets of the older connection", n)
	}
	const newer = 1 << 20
	c.transfer("10.9.0.2:80", newer)
	if n, least := c.out(place, 16), uint64(newer/c.pathMTUOf(place)); n < least {
		c.t.Errorf("the instance got %d packets of the newer connection, must be over %d", n, least)
	}
}

// pathMTUOf is what the planner finds for a chain of one element there.
func (c *testbed) pathMTUOf(place string) int {
	if place == "gw" {
		return c.interfaceMTU()
	}
	return c.tunnelMTU()
}

// steerWithin applies a chain of element 16 whose packets are as long as fits.
func (c *testbed) steerWithin(place string, began time.Time) {
	c.t.Helper()
	c.apply(toServers(), func(cfg *onpath.DatapathConfig) {
		cfg.Paths[0].MTU = c.pathMTUOf(place)
		if !began.IsZero() {
			cfg.Paths[0].Began, cfg.Paths[0].Adopt = began, onpath.Duration(time.Minute)
			cfg.Paths[0].AdoptFor = onpath.Duration(max(0, time.Until(began.Add(time.Minute))))
		}
	}, element(16, 16))
}

// crossBothWays sends from the client to the server and the other way round.
func (c *testbed) crossBothWays(deaf bool) {
	c.t.Helper()
	if deaf {
		c.deafen()
	}
	for _, to := range []struct{ v4, v6 string }{{"10.9.0.2:80", "[2001:db8:9::2]:80"}, {"10.1.0.2:80", "[2001:db8:1::2]:80"}} {
		c.serve("tcp4", to.v4)
		c.serve("tcp6", to.v6)
		c.transfer(to.v4, 2<<20)
		c.transfer(to.v6, 2<<20)
		c.client, c.server = c.server, c.client
	}
}

// deafen lets client and server hear no ICMP that tells them sizes.
func (c *testbed) deafen() {
	c.t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		c.t.Skip("needs nft to block ICMP")
	}
	rules := `table inet deaf {
	chain input {
		type filter hook input priority 0
		icmp type destination-unreachable drop
		icmpv6 type packet-too-big drop
	}
}`
	for _, ns := range []string{c.client, c.server} {
		c.must(netnsrun.Do(ns, func() error {
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(rules)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		}))
	}
}
