// Package testnet makes the networks in which is measured: namespaces, veth pairs,
// routes and neighbours that never age, the same offloads for all. All of it
// goes with Close, and what a crash left goes with Sweep.
package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// Network is a set of namespaces.
type Network struct {
	dir   string
	paths []string
	after []func() error
}

// New makes an empty testnet in a folder of its own below root.
func New(root, name string) (*Network, error) {
	dir := filepath.Join(root, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a bed for measurements: %w", err)
	}
	return &Network{dir: dir}, nil
}

// Dir is the testnet's folder; files there go with it.
func (b *Network) Dir() string { return b.dir }

// After has fn called by Close, the last one first.
func (b *Network) After(fn func() error) { b.after = append(b.after, fn) }

// Close removes everything.
func (b *Network) Close() error {
	var errs []error
	for len(b.after) > 0 {
		last := len(b.after) - 1
		errs = append(errs, b.after[last]())
		b.after = b.after[:last]
	}
	for _, p := range b.paths {
		errs = append(errs, netnsrun.Remove(p))
	}
	b.paths = nil
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}

// Sweep removes the networks that a crash left below root. Nobody else may use root.
func Sweep(root string) error {
	var errs []error
	paths, err := filepath.Glob(filepath.Join(root, "*", "*"))
	errs = append(errs, err)
	for _, p := range paths {
		if netnsrun.Is(p) {
			errs = append(errs, netnsrun.Remove(p))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(root))...)
}

// settings of every namespace: addresses work at once, and the kernel keeps
// quiet about itself.
var settings = []string{
	"ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0", "ipv6/conf/default/router_solicitations=0",
	"ipv6/conf/default/disable_ipv6=1", "ipv4/conf/all/rp_filter=0", "ipv4/conf/default/rp_filter=0",
	"ipv4/conf/all/send_redirects=0", "ipv4/conf/default/send_redirects=0", "ipv4/icmp_ratelimit=0",
}

// Namespace makes one and gives its path.
func (b *Network) Namespace(name string) (string, error) {
	path := filepath.Join(b.dir, name)
	if err := netnsrun.Create(path); err != nil {
		return "", err
	}
	b.paths = append(b.paths, path)
	return path, netnsrun.Do(path, func() error {
		for _, s := range settings {
			if err := set(s); err != nil {
				return err
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
}

// Set writes sysctls below net, such as ipv4/ip_forward=1.
func Set(ns string, list ...string) error {
	return netnsrun.Do(ns, func() error {
		for _, s := range list {
			if err := set(s); err != nil {
				return err
			}
		}
		return nil
	})
}

func set(s string) error {
	k, v, _ := strings.Cut(s, "=")
	err := os.WriteFile("/proc/sys/net/"+k, []byte(v), 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("set net/%s: %w", s, err)
	}
	return nil
}

// End is one end of a veth pair.
type End struct {
	NS, Dev string
	MAC     net.HardwareAddr
	Addrs   []netip.Prefix
	MTU     int // bytes; 0: 1500
	// GRO makes the device receive in batches, which XDP frames need that come
	// from the other end; a device with an XDP program does so anyway.
	GRO bool
	// NoChecksum has packets leave with complete checksums and unsegmented: what
	// the device at a real wire would do.
	NoChecksum bool
}

// Pair makes a veth pair with one queue at each end, and waits until both send.
func Pair(a, b End) error {
	err := netnsrun.Do(a.NS, func() error {
		peer, err := netns.GetFromPath(b.NS)
		if err != nil {
			return err
		}
		defer peer.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = a.Dev, a.MAC
		attrs.NumRxQueues, attrs.NumTxQueues = 1, 1
		attrs.MTU = a.mtu()
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: b.Dev, PeerNamespace: netlink.NsFd(int(peer)),
			PeerHardwareAddr: b.MAC, PeerMTU: uint32(b.mtu()), PeerNumRxQueues: 1, PeerNumTxQueues: 1})
	})
	if err != nil {
		return fmt.Errorf("make veth pair %s–%s: %w", a.Dev, b.Dev, err)
	}
	for _, e := range []End{a, b} {
		if err := e.start(); err != nil {
			return fmt.Errorf("set up %s: %w", e.Dev, err)
		}
	}
	return errors.Join(AwaitUp(a.NS, a.Dev), AwaitUp(b.NS, b.Dev))
}

func (e End) mtu() int {
	if e.MTU == 0 {
		return 1500
	}
	return e.MTU
}

func (e End) start() error {
	return netnsrun.Do(e.NS, func() error {
		l, err := netlink.LinkByName(e.Dev)
		if err != nil {
			return err
		}
		for _, a := range e.Addrs {
			addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}}
			if err := netlink.AddrAdd(l, addr); err != nil {
				return fmt.Errorf("add %s: %w", a, err)
			}
		}
		if err := setGRO(e.Dev, e.GRO); err != nil {
			return err
		}
		if e.NoChecksum {
			if err := noTransmitOffload(e.Dev); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(l)
	})
}

// AwaitUp waits until a device sends: before, it drops without a word.
func AwaitUp(ns, dev string) error {
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		up := false
		err := netnsrun.Do(ns, func() error {
			l, err := netlink.LinkByName(dev)
			if err == nil {
				up = l.Attrs().OperState == netlink.OperUp
			}
			return err
		})
		if err != nil || up {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("device %s has not come up within ten seconds", dev)
		}
	}
}

// Neighbour adds one that never ages.
func Neighbour(ns, dev string, ip netip.Addr, mac net.HardwareAddr) error {
	return netnsrun.Do(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: ip.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
	})
}

// Route adds a route; via need not be on a subnet of the device.
func Route(ns, dev string, to netip.Prefix, via netip.Addr) error {
	return netnsrun.Do(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Gw: via.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("add route to %s: %w", to, err)
		}
		return nil
	})
}
