package ebpf_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
)

// TestStraight: packets go straight to the far end of an instance's devices, across
// nodes too, unless something stands between that they would pass by.
func TestStraight(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("gw", 16)
	c.bridged("n2", 17, 18)
	c.serve("tcp4", "10.9.0.2:80")
	c.chainOf(toServers(), element(16, 16), element(17, 18))
	near := map[onpath.VportID]string{16: c.nodes["gw"].ns, 17: c.nodes["n2"].ns}
	// queued is how many of the packets of a transfer took the queue of a device.
	queued := func(id onpath.VportID) uint64 {
		dev := onpath.DeviceName(id)
		before := c.link(near[id], dev).Statistics.TxPackets
		c.transfer("10.9.0.2:80", 1<<20)
		return c.link(near[id], dev).Statistics.TxPackets - before
	}
	await := func(what string, id onpath.VportID, ok func(n uint64) bool) {
		t.Helper()
		var n uint64
		for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(200 * time.Millisecond) {
			if n = queued(id); ok(n) {
				return
			}
		}
		t.Fatalf("%s: %d packets of a transfer took the queue of %s", what, n, onpath.DeviceName(id))
	}
	none := func(n uint64) bool { return n == 0 }
	some := func(n uint64) bool { return n > 20 } // a transfer is many more, in segments or not
	for id := range near {
		await("with nothing in the way", id, none)
	}

	free := c.occupyXDP(c.inside(17), "eth0")
	shaper := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: c.link(near[16], onpath.DeviceName(16)).Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       1e9, Limit: 1 << 20, Buffer: 1 << 20,
	}
	c.in(near[16], func() error { return netlink.QdiscAdd(shaper) })
	await("with a program on the far end's XDP", 17, some)
	await("with a shaper on the device", 16, some)

	free()
	c.in(near[16], func() error { return netlink.QdiscDel(shaper) })
	for id := range near {
		await("with nothing in the way again", id, none)
	}
}

// inside is the namespace of an instance.
func (c *testbed) inside(id onpath.VportID) string {
	return filepath.Join(c.dir, fmt.Sprintf("i%d", id))
}

// occupyXDP puts another program on a device; the answer takes it off again.
func (w *world) occupyXDP(ns, dev string) func() {
	w.t.Helper()
	prog, err := bpf.NewProgram(&bpf.ProgramSpec{
		Type: bpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	w.must(err)
	var l link.Link
	w.in(ns, func() error {
		to, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		l, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: to.Attrs().Index})
		return err
	})
	return func() {
		w.must(l.Close())
		w.must(prog.Close())
	}
}
