package accel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// interceptTable is the routing table that makes packets to anybody local; it lies in the
// network namespace of the intercepting device alone.
const interceptTable = 4799

// Interceptor takes over every TCP connection whose packets come in by one device of the
// calling thread's network namespace.
type Interceptor struct {
	Listener *net.TCPListener
	syns     *synWatch
	answers  *answerer
	holds    atomic.Bool
	program  *ebpf.Program
	sockets  *ebpf.Map
	link     *link.NetNsLink
	undo     []func() error
}

// Intercept begins. onSYN is told of each connection that a SYN begins; it must not block.
// With hold, the kernel answers no SYN before it is told to; see Hold.
// It is called in the namespace, on a thread of its own; the kernel needs sk_lookup (5.9).
func Intercept(device string, hold bool, onSYN func(SYN)) (*Interceptor, error) {
	i := &Interceptor{}
	if err := i.start(device, hold, onSYN); err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return i, nil
}

func (i *Interceptor) start(device string, hold bool, onSYN func(SYN)) (err error) {
	if i.Listener, err = listenTransparent(); err != nil {
		return err
	}
	if i.answers, err = newAnswerer(); err != nil {
		return err
	}
	if err := i.Hold(hold); err != nil {
		return err
	}
	if err := i.routes(device); err != nil {
		return err
	}
	if err := i.lookup(); err != nil {
		return fmt.Errorf("have the kernel look connections up for the relay: %w", err)
	}
	i.syns, err = watchSYNs(device, func(client, origin netip.AddrPort, syn []byte) {
		s := SYN{Client: client, Origin: origin, Segment: segmentOf(syn)}
		if i.holds.Load() {
			syn = slices.Clone(syn)
			s.Answer = func(failed error) { _ = i.answers.answer(syn, failed) } // lost, it is asked again
		}
		onSYN(s)
	})
	return err
}

// Hold has the kernel leave SYNs unanswered until SYN.Answer, or answer them at once again.
// While that changes, a SYN may be answered twice, which is one of no effect, but not lost.
func (i *Interceptor) Hold(hold bool) error {
	raw, err := i.Listener.SyscallConn()
	if err != nil {
		return err
	}
	if hold {
		i.holds.Store(true)
		filter, err := heldFilter()
		if err == nil {
			err = control(raw, func(fd int) error { return attachFilter(fd, filter) })
		}
		if err != nil {
			i.holds.Store(false)
			return fmt.Errorf("have the kernel hold SYNs: %w", err)
		}
		return nil
	}
	err = control(raw, noFilter)
	i.holds.Store(false)
	return err
}

// noFilter takes a socket's filter away. Connections have it from their listener; to a SYN
// within a connection the kernel has to answer (RFC 5961).
func noFilter(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Close ends it; connections that it took stay with whoever has them.
func (i *Interceptor) Close() error {
	var errs []error
	if i.syns != nil {
		i.syns.close()
	}
	if i.answers != nil {
		errs = append(errs, i.answers.close())
	}
	if i.link != nil {
		errs = append(errs, i.link.Close())
	}
	if i.program != nil {
		i.program.Close()
	}
	if i.sockets != nil {
		i.sockets.Close()
	}
	if i.Listener != nil {
		errs = append(errs, i.Listener.Close())
	}
	for _, undo := range i.undo {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// listenTransparent opens a listener on any free port. Its connections may have any local
// address, that is, the origin's. The listener's own is one that no client has: where it
// listened at all addresses, no leg could begin at the client's port of the same number.
func listenTransparent() (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1), lifetime(fd))
		})
	}, KeepAlive: -1}
	lc.SetMultipathTCP(false) // a sockets map takes plain TCP alone
	l, err := lc.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for connections to any address: %w", err)
	}
	return l.(*net.TCPListener), nil
}

// routes makes what comes in by the device local, whatever its destination.
func (i *Interceptor) routes(device string) error {
	nl, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	i.undo = append(i.undo, func() error { nl.Close(); return nil })
	lo, err := nl.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := nl.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Table: interceptTable,
		Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
	if err := nl.RouteReplace(route); err != nil {
		return fmt.Errorf("write the route that makes packets local: %w", err)
	}
	i.undo = append([]func() error{func() error { return nl.RouteDel(route) }}, i.undo...)
	for _, ends := range [][2]string{{device, ""}, {"", "lo"}} { // what clients send, and SYNs that were held
		rule := netlink.NewRule()
		rule.IifName, rule.OifName = ends[0], ends[1]
		rule.Table, rule.Priority, rule.Family = interceptTable, 10, unix.AF_INET
		_ = nl.RuleDel(rule) // one that a killed relay left
		if err := nl.RuleAdd(rule); err != nil {
			return fmt.Errorf("write the rule for what clients of %s send: %w", device, err)
		}
		i.undo = append([]func() error{func() error { return nl.RuleDel(rule) }}, i.undo...)
	}
	return nil
}

// Offsets in struct bpf_sk_lookup.
const (
	lookupFamily   = 8
	lookupProtocol = 12
)

// lookup attaches the program that gives IPv4 TCP connections to the listener.
func (i *Interceptor) lookup() (err error) {
	i.sockets, err = ebpf.NewMap(&ebpf.MapSpec{Name: "relay_socket", Type: ebpf.SockMap, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return err
	}
	raw, err := i.Listener.SyscallConn()
	if err != nil {
		return err
	}
	if err := control(raw, func(fd int) error { return i.sockets.Put(uint32(0), uint64(fd)) }); err != nil {
		return fmt.Errorf("write the listener into the map: %w", err)
	}
	const pass = 1
	i.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "relay_lookup", Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R2, asm.R6, lookupFamily, asm.Word),
			asm.JNE.Imm(asm.R2, unix.AF_INET, "pass"),
			asm.LoadMem(asm.R2, asm.R6, lookupProtocol, asm.Word),
			asm.JNE.Imm(asm.R2, unix.IPPROTO_TCP, "pass"),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, i.sockets.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "pass"),
			asm.Mov.Reg(asm.R7, asm.R0),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Reg(asm.R2, asm.R7),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnSkAssign.Call(),
			asm.Mov.Reg(asm.R1, asm.R7),
			asm.FnSkRelease.Call(),
			asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
			asm.Return(),
		},
	})
	if err != nil {
		return err
	}
	ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	i.link, err = link.AttachNetNs(ns, i.program)
	return err
}
