package accel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/accel/vanish"
)

// StepOut is where packets of a relay's connections come in, so that the relay may step out of them
// once it has shortened their slow start.
type StepOut struct {
	Clients *vanish.Translator // where clients' connections arrive; nil: the relay is no ingress
	Device  int                // there
	MTU     func() int         // of that device; nil: what the client announces
	// Hold keeps a port of the node's from new connections while a half is there; nil: nobody does.
	Hold  func(in *vanish.Translator, half vanish.Key)
	Legs  *vanish.Translator // where all other legs are
	Vport *vanish.Vport      // the way from the one to the other; nil: they are one

	Wanted func(tenant string, origin netip.AddrPort) bool // nil: always

	when func() time.Duration // after its begin, but for tests
}

// A direction has left slow start once it has moved so many bytes, and so many rounds in a row have
// not carried a quarter more than the best one before.
const (
	leastMoved  = 256 << 10
	levelRounds = 3
	leastRound  = 10 * time.Millisecond
)

// stepper has the relay step out of a connection after slow start.
type stepper struct {
	relay       *Relay
	c           *vanish.Connection // nil: the relay stays
	sockets     [2]conn
	ends        ends
	transparent bool
	legs        [2]pace
	counts      [2]func(int64)
	cancel      context.CancelFunc
	ctx         context.Context
	begun       sync.Once
	work        sync.WaitGroup
	vanished    atomic.Bool
}

// pace finds out when a direction stops growing.
type pace struct {
	round       time.Duration
	since       time.Time
	moved       int64
	now, best   int64
	levelRounds int
}

// level notes bytes and reports whether slow start is over.
func (p *pace) level(n int64, at time.Time) bool {
	p.moved += n
	p.now += n
	if p.since.IsZero() {
		p.since = at
	}
	if at.Sub(p.since) < p.round {
		return false
	}
	if p.now*4 > p.best*5 {
		p.best, p.levelRounds = p.now, 0
	} else {
		p.levelRounds++
	}
	p.now, p.since = 0, at
	return p.moved >= leastMoved && p.levelRounds >= levelRounds
}

// stepper prepares a connection of which both sockets are there. What it returns may be of no effect.
func (r *Relay) stepper(c *net.TCPConn, l *leg, route Route, k ends, there, back func(int64)) *stepper {
	s := &stepper{relay: r, sockets: [2]conn{c, l.conn}, ends: k, transparent: l.transparent, counts: [2]func(int64){there, back}}
	s.ctx, s.cancel = context.WithCancel(r.ctx)
	if !r.cfg.StepOut.wants(route, k.origin) {
		return s
	}
	var sockets [2]syscall.RawConn
	for i, x := range s.sockets {
		raw, err := x.SyscallConn()
		if err != nil {
			return s
		}
		sockets[i] = raw
	}
	s.c = vanish.New(sockets)
	for i := range s.legs {
		s.legs[i].round = s.round()
	}
	if when := r.cfg.StepOut.when; when != nil {
		s.work.Go(func() {
			select {
			case <-after(when()):
				s.begin()
			case <-s.ctx.Done():
			}
		})
	}
	return s
}

func (at *StepOut) wants(route Route, origin netip.AddrPort) bool {
	return at != nil && (at.Wanted == nil || at.Wanted(route.Tenant, origin))
}

// round is a round trip of the slower half.
func (s *stepper) round() time.Duration {
	longest := leastRound
	for _, c := range s.sockets {
		if raw, err := c.SyscallConn(); err == nil {
			_ = control(raw, func(fd int) error {
				is, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
				if err == nil {
					longest = max(longest, time.Duration(is.Rtt)*time.Microsecond)
				}
				return err
			})
		}
	}
	return longest
}

func (s *stepper) connection() *vanish.Connection { return s.c }

func (s *stepper) there(n int64) { s.count(0, n) }
func (s *stepper) back(n int64)  { s.count(1, n) }

func (s *stepper) count(direction int, n int64) {
	s.counts[direction](n)
	if s.c != nil && s.legs[direction].level(n, now()) {
		s.begin()
	}
}

// begin has the relay step out, once.
func (s *stepper) begin() {
	s.begun.Do(func() { s.work.Go(s.stepOut) })
}

func (s *stepper) stepOut() {
	ends, port, err := s.relay.endsOf(s.sockets, s.transparent)
	if err != nil {
		s.relay.stays(vanish.StayKernel, s.ends, err)
		return
	}
	err = s.c.TakeOver(s.ctx, ends, port)
	var stay vanish.Stay
	switch {
	case errors.As(err, &stay):
		s.relay.stays(stay, s.ends, err)
		return
	case err == nil:
		err = s.c.Silence()
	}
	if err != nil {
		s.relay.cfg.Log.Debug("a connection ended while the relay stepped out",
			"client", s.ends.client, "origin", s.ends.origin, "err", err)
		return
	}
	s.vanished.Store(true)
	s.relay.count.vanished.Add(1)
	for _, c := range s.sockets {
		c.Close()
	}
	if hold := s.relay.cfg.StepOut.Hold; hold != nil && !s.transparent {
		hold(ends[1].Translator, vanish.NewKey(ends[1].Ifindex, ends[1].Peer, ends[1].Local))
	}
}

// end waits until nothing is on, and reports whether the relay has stepped out.
func (s *stepper) end() bool {
	s.cancel()
	s.work.Wait()
	if s.c != nil && !s.vanished.Load() {
		s.c.Forget()
	}
	return s.vanished.Load()
}

// stays counts a connection in which the relay stays.
func (r *Relay) stays(why vanish.Stay, k ends, err error) {
	r.count.stay(why)
	r.cfg.Log.Debug("the relay stays in a connection", "client", k.client, "origin", k.origin, "why", string(why), "err", err)
}

// endsOf finds where packets of both halves come in, and has the translator stand there.
func (r *Relay) endsOf(sockets [2]conn, transparent bool) (ends [2]vanish.End, port *vanish.Vport, err error) {
	at := r.cfg.StepOut
	inside := [2]bool{r.cfg.Router != nil, transparent} // where clients' connections arrive
	for i, x := range sockets {
		raw, err := x.SyscallConn()
		if err != nil {
			return ends, nil, err
		}
		e := &ends[i]
		if err := control(raw, func(fd int) (err error) { e.Local, e.Peer, err = addresses(fd); return err }); err != nil {
			return ends, nil, err
		}
		enter := r.cfg.dialIn
		if e.Translator = at.Legs; inside[i] {
			e.Translator, enter = at.Clients, r.cfg.Enter
			e.Ifindex = at.Device
		}
		if err := enter(func() (err error) {
			if e.Ifindex == 0 || i == 1 && at.Clients == at.Legs {
				e.Ifindex, err = deviceTo(e.Peer.Addr())
			}
			if err != nil {
				return err
			}
			return e.Translator.Attach(e.Ifindex)
		}); err != nil {
			return ends, nil, err
		}
	}
	if ends[0].Translator == ends[1].Translator {
		return ends, nil, nil
	}
	if at.Vport == nil {
		return ends, nil, errors.New("no device leads from the one network namespace to the other")
	}
	err = r.cfg.dialIn(func() error { return at.Legs.Attach(at.Vport.Ifindex) })
	return ends, at.Vport, err
}

// addresses are those of a socket.
func addresses(fd int) (local, peer netip.AddrPort, err error) {
	a, err := unix.Getsockname(fd)
	if err != nil {
		return local, peer, err
	}
	b, err := unix.Getpeername(fd)
	if err != nil {
		return local, peer, err
	}
	if local, err = addrPort4(a); err == nil {
		peer, err = addrPort4(b)
	}
	return local, peer, err
}

func addrPort4(a unix.Sockaddr) (netip.AddrPort, error) {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
	case *unix.SockaddrInet6:
		if ip := netip.AddrFrom16(a.Addr).Unmap(); ip.Is4() {
			return netip.AddrPortFrom(ip, uint16(a.Port)), nil
		}
	}
	return netip.AddrPort{}, errors.New("the connection is not of IPv4")
}

// deviceTo is the device by which packets to an address leave.
func deviceTo(a netip.Addr) (int, error) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil {
		return 0, fmt.Errorf("find the device toward %s: %w", a, err)
	}
	if len(routes) == 0 || routes[0].LinkIndex == loopback {
		return 0, fmt.Errorf("no device leads to %s", a)
	}
	return routes[0].LinkIndex, nil
}

// segment is the largest that the next leg may take, so that the end before may take it as well: 0,
// any, where the relay stays.
func (at *StepOut) segment(route Route, origin netip.AddrPort, announced int) int {
	if announced == 0 || !at.wants(route, origin) {
		return 0
	}
	if at.MTU != nil {
		announced = min(announced, at.MTU()-headers4)
	}
	return announced
}

const (
	headers4   = 40 // IPv4 and TCP headers without options
	stampsSize = 12 // the timestamps option, filled up
)

// segmentTo is the largest that the other end of a connection takes.
func segmentTo(c conn) (size int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = control(raw, func(fd int) error {
		is, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return err
		}
		const timestamps = 1
		if size = int(is.Snd_mss); is.Options&timestamps != 0 {
			size += stampsSize
		}
		return nil
	})
	return size
}
