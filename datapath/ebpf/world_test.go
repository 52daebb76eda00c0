package ebpf_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// needKernel skips where the tests cannot work, saying what is lacking.
func needKernel(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to make network namespaces and load programs")
	}
}

var worlds atomic.Int32

// world is a set of namespaces of one test, removed at its end.
type world struct {
	t    testing.TB
	name string
	dir  string
}

func newWorld(t testing.TB) *world {
	needKernel(t)
	w := &world{t: t, name: fmt.Sprintf("ot-ebpf-%d-%d", os.Getpid(), worlds.Add(1))}
	w.dir = filepath.Join("/run", w.name)
	t.Cleanup(func() { os.RemoveAll(w.dir) })
	return w
}

// must ends the test if the machinery breaks.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// ns makes a namespace and gives its path.
func (w *world) ns(name string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	w.must(netnsrun.Create(path))
	w.t.Cleanup(func() { netnsrun.Remove(path) })
	w.in(path, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		// No duplicate address detection: addresses work at once.
		for _, s := range []string{"ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0",
			"ipv6/conf/default/router_solicitations=0", "ipv4/icmp_ratelimit=0"} {
			if err := setting(s); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(lo)
	})
	return path
}

func (w *world) in(path string, fn func() error) {
	w.t.Helper()
	w.must(netnsrun.Do(path, fn))
}

func setting(s string) error {
	k, v, _ := strings.Cut(s, "=")
	err := os.WriteFile("/proc/sys/net/"+k, []byte(v), 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// end is one end of a veth pair.
type end struct {
	ns, dev, mac string
	addrs        []string
	mtu          int
	silent       bool // no IPv6 of its own
}

// pair makes a veth pair.
func (w *world) pair(a, b end) {
	w.t.Helper()
	w.in(a.ns, func() error {
		peer, err := netns.GetFromPath(b.ns)
		if err != nil {
			return err
		}
		defer peer.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = a.dev
		attrs.MTU = max(a.mtu, b.mtu)
		if attrs.MTU == 0 {
			attrs.MTU = 1500
		}
		attrs.HardwareAddr = hw(a.mac)
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: b.dev, PeerNamespace: netlink.NsFd(int(peer)), PeerHardwareAddr: hw(b.mac),
		})
	})
	w.setUp(a)
	w.setUp(b)
	w.awaitUp(a) // the first end up gets its carrier, and with it its queue, later
	w.awaitUp(b)
}

// awaitUp waits until a device sends: before that it drops without a word.
func (w *world) awaitUp(e end) {
	w.t.Helper()
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var state netlink.LinkOperState
		w.in(e.ns, func() error {
			l, err := netlink.LinkByName(e.dev)
			if err == nil {
				state = l.Attrs().OperState
			}
			return err
		})
		if state == netlink.OperUp {
			return
		}
		if time.Now().After(until) {
			w.t.Fatalf("%s is %s, must be up", e.dev, state)
		}
	}
}

func hw(mac string) net.HardwareAddr {
	h, _ := net.ParseMAC(mac)
	return h
}

func (w *world) setUp(e end) {
	w.t.Helper()
	w.in(e.ns, func() error {
		l, err := netlink.LinkByName(e.dev)
		if err != nil {
			return err
		}
		if e.silent {
			if err := setting("ipv6/conf/" + e.dev + "/disable_ipv6=1"); err != nil {
				return err
			}
		}
		if e.mtu != 0 {
			if err := netlink.LinkSetMTU(l, e.mtu); err != nil {
				return err
			}
		}
		for _, a := range e.addrs {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			addr.Flags |= unix.IFA_F_NODAD
			if err := netlink.AddrAdd(l, addr); err != nil {
				return fmt.Errorf("add %s to %s: %w", a, e.dev, err)
			}
		}
		return netlink.LinkSetUp(l)
	})
}

// neighbour adds a permanent one.
func (w *world) neighbour(ns, dev string, ip netip.Addr, mac string) {
	w.t.Helper()
	w.in(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, IP: ip.AsSlice(), HardwareAddr: hw(mac), State: netlink.NUD_PERMANENT,
		})
	})
}

// route adds a route, onlink.
func (w *world) route(ns, dev string, to netip.Prefix, via netip.Addr) {
	w.t.Helper()
	w.in(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		r := &netlink.Route{
			LinkIndex: l.Attrs().Index, Gw: via.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
		}
		return netlink.RouteAdd(r)
	})
}

// socket opens a raw socket that gets what comes in at a device.
func (w *world) socket(ns, dev string) int {
	w.t.Helper()
	fd := -1
	w.in(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		for opt, v := range map[int]int{unix.PACKET_AUXDATA: 1, unix.PACKET_IGNORE_OUTGOING: 1} {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, opt, v); err != nil {
				return err
			}
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index})
	})
	w.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// setGRO switches generic receive offload on, by which a veth device takes what XDP
// redirects into its peer.
func setGRO(dev string) error {
	const set = 0x2c // ETHTOOL_SGRO
	value := struct{ cmd, data uint32 }{set, 1}
	return ethtool(dev, unsafe.Pointer(&value))
}

// setQueues has a veth device receive in so many queues: what CPUs send to it they
// handle themselves.
func setQueues(dev string, n int) error {
	const set = 0x3d // ETHTOOL_SCHANNELS
	value := struct{ cmd, maxRX, maxTX, maxOther, maxCombined, rx, tx, other, combined uint32 }{cmd: set, rx: uint32(n), tx: 1}
	return ethtool(dev, unsafe.Pointer(&value))
}

// ethtool does one request of the kernel's interface of that name.
func ethtool(dev string, value unsafe.Pointer) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var ifr struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(ifr.name[:], dev)
	ifr.data = value
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
		return fmt.Errorf("set up %s: %w", dev, errno)
	}
	return nil
}

func (w *world) forwarding(ns string) {
	w.t.Helper()
	w.in(ns, func() error {
		return errors.Join(setting("ipv4/ip_forward=1"), setting("ipv6/conf/all/forwarding=1"),
			setting("ipv4/conf/all/rp_filter=0"), setting("ipv4/conf/default/rp_filter=0"),
			setting("ipv4/conf/all/send_redirects=0"), setting("ipv4/conf/default/send_redirects=0"))
	})
}
