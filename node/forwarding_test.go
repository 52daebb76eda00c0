package node_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/packet"
	"github.com/onpath/onpath/node"
)

// What listens in an instance that gets copies only sees each packet once: its kernel sends
// none back. One that is an element in the way, too, forwards, before and after.
func TestMirrorsForwardNothing(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	generation := uint64(0)
	serve := func(mirror bool) {
		generation++
		p := planOf(generation, routed("ids", 16, "10.9.0.5/24", "fd00::5/64"))
		p.Datapath.Vports[0].Mirror = mirror
		r.plan(p)
		want := map[bool]string{true: "0", false: "1"}[mirror]
		b.until("forwarding is "+want, func() bool {
			in := b.nsOf("ids")
			return readSysctl(t, in, "net.ipv4.ip_forward") == want && readSysctl(t, in, "net.ipv6.conf.all.forwarding") == want
		})
	}
	r.plan(planOf(1, routed("ids", 16, "10.9.0.5/24", "fd00::5/64")))
	generation = 1
	r.untilState("ids", onpath.InstanceReady)
	for _, step := range []struct {
		mirror bool
		seen   int
	}{{false, 2}, {true, 1}, {false, 2}, {true, 1}} {
		serve(step.mirror)
		if got := b.seenInside(b.nsOf("ids"), 16, step.seen); got != step.seen {
			t.Errorf("who listens saw a packet %d times, must %d times; mirror: %v", got, step.seen, step.mirror)
		}
	}
	if got := readSysctl(t, b.nsOf("ids"), "net.ipv4.conf.all.accept_redirects"); got != "0" {
		t.Errorf("the kernel of a mirror takes redirects: %s", got)
	}

	// Another agent finds it as it is, and a kernel that was told otherwise is told again.
	r.stop()
	sysctl(t, b.nsOf("ids"), "net.ipv4.ip_forward", "1")
	r = b.run()
	serve(true)
}

// seenInside sends one packet into the instance and counts how often AF_PACKET sees it there,
// coming and going: it waits for so many, and whether more come.
func (b *fixture) seenInside(ns string, v onpath.VportID, want int) (seen int) {
	b.t.Helper()
	inside, out := b.rawSocket(ns, "eth0"), b.rawSocket(b.host, onpath.DeviceName(v))
	defer unix.Close(inside)
	defer unix.Close(out)
	p := packet.Blank(false, packet.UDP, 8, netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.2.0.2"))
	p[len(p)-8+5] = 8 // the length of the datagram
	from, _ := net.ParseMAC(onpath.HostMAC(v))
	to, _ := net.ParseMAC(onpath.InstanceMAC(v))
	frame := append(append(append([]byte{}, to...), from...), 8, 0)
	if _, err := unix.Write(out, append(frame, p...)); err != nil {
		b.t.Fatal(err)
	}
	buf := make([]byte, 2048)
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		n, _, err := unix.Recvfrom(inside, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case err != nil:
			b.t.Fatal(err)
		case n >= 34 && bytes.Equal(buf[26:34], p[12:20]):
			if seen++; seen == want {
				until = time.Now().Add(200 * time.Millisecond)
			}
		}
	}
	return seen
}

// rawSocket is an AF_PACKET socket at a device of a namespace, with which one waits for 20 ms.
func (b *fixture) rawSocket(ns, device string) (fd int) {
	b.t.Helper()
	const all = 0x0300 // ETH_P_ALL, in network order
	err := netnsrun.Do(ns, func() (err error) {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20000}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return fd
}

// The kernel of an instance whose process takes whole frames forwards nothing, so that what
// is queued when the process dies goes nowhere.
func TestKernelOfEngineForwardsNothing(t *testing.T) {
	b := newFixture(t)
	b.edit = func(o *node.Options) { o.Runtimes[onpath.WasmFunction] = b.runtime }
	r := b.run()
	p := routed("module", 16, "10.9.0.5/24", "fd00::5/64")
	p.Spec = onpath.FunctionSpec{Wasm: &onpath.WasmSpec{Modules: []onpath.WasmModule{{Name: "m", Module: "./m.wasm"}}}}
	r.plan(planOf(1, p))
	var in string
	b.until("the instance is wired", func() bool { // the fixture has no engine to be started
		all, _ := filepath.Glob(filepath.Join(b.dir, "netns", "*"))
		if len(all) != 1 || !netnsrun.Is(all[0]) {
			return false
		}
		in = all[0]
		h := b.netlink(in)
		defer h.Close()
		routes, err := h.RouteList(nil, netlink.FAMILY_V4)
		return err == nil && len(routes) > 0
	})
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		if got := readSysctl(t, in, key); got != "0" {
			t.Errorf("%s is %s", key, got)
		}
	}
	if got := b.seenInside(in, 16, 1); got != 1 {
		t.Errorf("a packet that no engine takes was seen %d times, must come in and go nowhere", got)
	}
}
