package ebpf_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
)

// element puts a container in the place of a chain's element.
func (c *crossing) element(at int, id onpath.VportID) {
	c.t.Helper()
	c.AddInstance("gw", id)
	c.cfg.Vports = append(c.cfg.Vports, onpath.Vport{ID: id, Kind: onpath.VportInstance, State: onpath.VportUp, Instance: "t/c",
		Tenant: "t", Other: id, MAC: onpath.InstanceMAC(id), HostMAC: onpath.HostMAC(id), Attach: onpath.Routed, Packets: onpath.PacketsKeep, Entry: 1})
	for i := range c.cfg.Groups {
		if g := &c.cfg.Groups[i]; int(g.ID>>1&31) == at {
			g.Members = []onpath.Member{{Vport: id, Key: uint32(id), Weight: 1}}
		}
	}
}

// toPort is a datagram for a port, or the answer to it.
func toPort(port uint16, answer bool) []byte {
	b := datagram(1)
	b[22], b[23] = byte(port>>8), byte(port)
	if answer {
		copy(b[12:], []byte{10, 9, 0, 2, 10, 1, 0, 2, byte(port >> 8), byte(port), 0x10, 1})
	}
	b[10], b[11] = 0, 0
	s := ipSum(b[:20])
	b[10], b[11] = byte(s>>8), byte(s)
	return b
}

// hop sends a packet in at one device and wants it out of another, unchanged but for
// its hop limit.
func (c *crossing) hop(from, to string, p []byte, ttl byte) []byte {
	c.t.Helper()
	c.Send("gw", from, datapathtest.Frame{Packet: p})
	f, ok := c.Receive("gw", to, 2*time.Second)
	if !ok {
		c.t.Fatalf("a packet that came in at %s did not leave at %s", from, to)
	}
	if f.Packet[8] != ttl || !bytes.Equal(f.Packet[12:], p[12:]) {
		c.t.Fatalf("at %s came %x with hop limit %d, must be %x with %d", to, f.Packet[12:], f.Packet[8], p[12:], ttl)
	}
	return f.Packet
}

// TestRedirect: a function sends packets to a later element, function or container,
// past those between; answers come back the same way; and what cannot be is dropped.
func TestRedirect(t *testing.T) {
	t.Parallel()
	c := newCrossing(t, onpath.FastAlways)
	first := c.object(32, datapathtest.RedirectObject)
	between, behind := c.Function("gw", 33), c.Function("gw", 34)
	container := onpath.VportID(35)
	c.through(first, between, behind, c.Function("gw", 36))
	c.cfg.Functions, c.cfg.Vports = c.cfg.Functions[:3], c.cfg.Vports[:3]
	c.element(3, container)
	c.apply()
	dev := onpath.DeviceName(container)

	// through all, past one function, and past both
	for n, passed := range map[uint16][2]uint64{53: {2, 2}, 7003: {0, 2}, 7004: {0, 0}} {
		before := c.functions()
		for range 3 {
			p := c.hop("up0", dev, toPort(n, false), 64)
			c.hop(dev, "up1", p, 63)
			p = c.hop("up1", dev, toPort(n, true), 64)
			c.hop(dev, "up0", p, 63)
		}
		after := c.functions()
		for i, f := range []onpath.InlineFunction{between, behind} {
			if got := after[f.Vport].Passed.Packets - before[f.Vport].Passed.Packets; got != 3*passed[i] {
				t.Errorf("port %d: function %d passed %d packets, must pass %d", n, f.Vport, got, 3*passed[i])
			}
		}
		if got := after[32].Passed.Packets - before[32].Passed.Packets; got != 6 {
			t.Errorf("port %d: the function that redirects passed %d packets, must pass 6", n, got)
		}
	}
	for _, port := range []uint16{7001, 7005, 7099} { // itself, none, none
		c.Send("gw", "up0", datapathtest.Frame{Packet: toPort(port, false)})
		if f, ok := c.Receive("gw", dev, 100*time.Millisecond); ok {
			t.Errorf("a packet redirected to element %d came through: %x", port-7000, f.Packet)
		}
	}
	if n := c.uplink("up0").Ran; n != 0 {
		t.Errorf("%d packets were given to functions at XDP, where not all elements can be reached", n)
	}
}
