package wasm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/afxdp"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/internal/netnsrun"
)

const (
	device = "eth0"
	frames = 2048 // of 2 KiB: 4 MiB
	// localTable is the routing table by which all that the stack is given is its own.
	localTable = 100
)

// openDevice opens, in an instance's network namespace, what its engine takes packets
// and serves by.
func openDevice(ns string, ports []onpath.ServedPort) (d control.Device, files []*os.File, err error) {
	err = netnsrun.Do(ns, func() error {
		defer func() {
			if err != nil {
				closeAll(files)
				files = nil
			}
		}()
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find device %s of the instance: %w", device, err)
		}
		d = control.Device{MAC: link.Attrs().HardwareAddr, Served: ports}
		if d.NextHop, err = nextHop(link); err != nil {
			return err
		}
		stack, err := stackOf(link, ports)
		if err != nil {
			return err
		}
		x, err := afxdp.Open(afxdp.Config{Device: device, Frames: frames, Stack: stack})
		if err != nil {
			return err
		}
		files = []*os.File{x.Socket, x.Memory, x.Link}
		if len(ports) > 0 {
			if err := keepAll(); err != nil {
				return err
			}
		}
		own, err := datagrams("0")
		if err != nil {
			return err
		}
		files = append(files, own)
		for _, p := range ports {
			f, err := serve(p)
			if err != nil {
				return fmt.Errorf("serve %s: %w", p, err)
			}
			files = append(files, f)
		}
		return nil
	})
	return d, files, err
}

// nextHop is the node's hardware address, which the agent entered for the gateways.
func nextHop(link netlink.Link) ([]byte, error) {
	list, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the instance's neighbours: %w", err)
	}
	for _, n := range list {
		if n.State&netlink.NUD_PERMANENT != 0 && len(n.HardwareAddr) == 6 {
			return n.HardwareAddr, nil
		}
	}
	return nil, fmt.Errorf("device %s of the instance has no next hop", device)
}

func stackOf(link netlink.Link, ports []onpath.ServedPort) (s afxdp.Stack, err error) {
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return s, fmt.Errorf("list the instance's addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			s.Addresses = append(s.Addresses, ip.Unmap())
		}
	}
	s.Ports = stackPorts(ports)
	return s, nil
}

func stackPorts(ports []onpath.ServedPort) (out []afxdp.Port) {
	for _, p := range ports {
		protocol := uint8(unix.IPPROTO_UDP)
		if p.Protocol == "tcp" {
			protocol = unix.IPPROTO_TCP
		}
		out = append(out, afxdp.Port{Protocol: protocol, Number: p.Port})
	}
	return out
}

// openPorts opens sockets at ports, in an instance's network namespace.
func openPorts(ns string, ports []onpath.ServedPort) (files []*os.File, err error) {
	err = netnsrun.Do(ns, func() error {
		if err := keepAll(); err != nil {
			return err
		}
		for _, p := range ports {
			f, err := serve(p)
			if err != nil {
				return fmt.Errorf("serve %s: %w", p, err)
			}
			files = append(files, f)
		}
		return nil
	})
	return files, err
}

// giveStack has an instance's stack given what comes to these ports, and to no others.
func giveStack(ns string, ports []onpath.ServedPort) error {
	return netnsrun.Do(ns, func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find device %s of the instance: %w", device, err)
		}
		x := link.Attrs().Xdp
		if x == nil || x.ProgId == 0 {
			return fmt.Errorf("device %s of the instance has no program", device)
		}
		return afxdp.SetPorts(int(x.ProgId), stackPorts(ports))
	})
}

// keepAll has the stack take what it is given for its own, whatever the address: the XDP
// program gives it nothing else.
func keepAll() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, any := range []string{"0.0.0.0/0", "::/0"} {
		_, dst, _ := net.ParseCIDR(any)
		family := netlink.FAMILY_V4
		if dst.IP.To4() == nil {
			family = netlink.FAMILY_V6
		}
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: localTable, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}
		rule := netlink.NewRule()
		rule.IifName, rule.Table, rule.Family, rule.Priority = device, localTable, family, 100
		err := netlink.RouteReplace(route)
		if e := netlink.RuleAdd(rule); e != nil && !errors.Is(e, unix.EEXIST) {
			err = errors.Join(err, e)
		}
		if err != nil && !(family == netlink.FAMILY_V6 && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP))) {
			return fmt.Errorf("take %s for the instance's own: %w", any, err)
		}
	}
	return nil
}

// transparent lets a socket answer from addresses that are not the instance's, and has it
// tell to which of them a datagram went.
func transparent(_, _ string, c syscall.RawConn) (err error) {
	control := func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
		if unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1) != nil { // of one that is IPv4's
			_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
		}
	}
	return errors.Join(c.Control(control), err)
}

func serve(p onpath.ServedPort) (*os.File, error) {
	if p.Protocol == "udp" {
		return datagrams(fmt.Sprint(p.Port))
	}
	lc := net.ListenConfig{Control: transparent}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", p.Port))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.(*net.TCPListener).File()
}

func datagrams(port string) (*os.File, error) {
	lc := net.ListenConfig{Control: transparent}
	c, err := lc.ListenPacket(context.Background(), "udp", ":"+port)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.(*net.UDPConn).File()
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
