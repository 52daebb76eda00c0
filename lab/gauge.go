package lab

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/onpath/onpath"
	"golang.org/x/sys/unix"
)

// GaugeSpec says which flows to send to measure blackouts.
type GaugeSpec struct {
	From, To  string     // hosts
	Address   netip.Addr // of To; zero: its first interface's first
	Port      int        // UDP; 0: any free one
	Flows     int        // each with a source port of its own; 0: 1
	PerSecond int        // packets of each flow; 0: 1,000
}

// Gauge sends numbered UDP from one host to another at a steady rate, and notes
// when each packet was sent and when the kernel received it.
type Gauge struct {
	spec  GaugeSpec
	in    *os.File
	out   []*net.UDPConn
	stop  chan struct{}
	ended chan struct{} // closed behind the last packet, of total
	total uint64
	once  sync.Once
	wg    sync.WaitGroup
	sent  [][]int64 // by flow and number, ns of the real-time clock
	mu    sync.Mutex
	got   []map[uint32]int64
	wrong error
}

// GaugeReport is what came of it.
type GaugeReport struct {
	Flows []GaugeFlow `json:"flows"`
	// Blackout and Gap are the longest of all flows'.
	Blackout onpath.Duration `json:"blackout"`
	Gap      onpath.Duration `json:"gap"`
	Sent     uint64          `json:"sent"`
	Lost     uint64          `json:"lost"`
	// Resolution is the time between two packets of a flow: nothing shorter
	// can be seen.
	Resolution onpath.Duration `json:"resolution"`
}

// GaugeFlow is one flow of a report.
type GaugeFlow struct {
	Port uint16 `json:"port"` // source
	Sent int    `json:"sent"`
	Lost int    `json:"lost"`
	// Blackout is the longest time from when a packet was sent that was not
	// delivered before the next one was, until something was delivered again.
	Blackout onpath.Duration `json:"blackout"`
	// Gap is the longest time from when a packet was sent that did not come
	// through, or only behind later ones, until one was sent that did. Delays are
	// no part of it, as of functions that wait for a CPU.
	Gap onpath.Duration `json:"gap"`
	// Silent: nothing was delivered after that until the end.
	Silent bool `json:"silent,omitempty"`
}

const gaugePacket = 16 // bytes: flow, number

// late is how long nothing may come in after the last packet was sent before what
// is missing counts as lost: on a busy machine packets wait in functions and sockets.
const late = time.Second

// StartGauge begins to send; Stop ends it and reports.
func (l *Lab) StartGauge(s GaugeSpec) (*Gauge, error) {
	s.Flows, s.PerSecond = max(s.Flows, 1), max(s.PerSecond, 0)
	if s.PerSecond == 0 {
		s.PerSecond = 1000
	}
	for _, h := range []string{s.From, s.To} {
		if l.state.Topology.Host(h) == nil {
			return nil, l.Command(h, "").Err
		}
	}
	if !s.Address.IsValid() {
		for _, f := range l.state.Topology.Host(s.To).Interfaces {
			if len(f.Addresses) > 0 && !s.Address.IsValid() {
				s.Address = f.Addresses[0].Addr()
			}
		}
	}
	if !s.Address.IsValid() {
		return nil, onpath.Errorf(onpath.CodeInvalid, "host %s of lab %s has no address to send to", s.To, l.Name())
	}
	g := &Gauge{spec: s, stop: make(chan struct{}), ended: make(chan struct{})}
	err := inNetNS(l.dir.net(s.To), g.listen)
	if err == nil {
		err = inNetNS(l.dir.net(s.From), g.dial)
	}
	if err != nil {
		g.close()
		return nil, fmt.Errorf("measure from %s to %s: %w", s.From, s.To, err)
	}
	for range s.Flows {
		g.sent = append(g.sent, make([]int64, 0, 30*s.PerSecond))
		g.got = append(g.got, map[uint32]int64{})
	}
	g.wg.Go(g.send)
	g.wg.Go(g.receive)
	return g, nil
}

func (g *Gauge) listen() error {
	family := unix.AF_INET
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{}, Port: g.spec.Port}
	if g.spec.Address.Is6() {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: g.spec.Address.As16(), Port: g.spec.Port}
	} else {
		to.(*unix.SockaddrInet4).Addr = g.spec.Address.As4()
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	g.in = os.NewFile(uintptr(fd), "gauge")
	timeout := unix.Timeval{Usec: 50_000}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.Bind(fd, to))
	if err != nil {
		return fmt.Errorf("listen on %s: %w", g.spec.Address, err)
	}
	name, err := unix.Getsockname(fd)
	switch n := name.(type) {
	case *unix.SockaddrInet4:
		g.spec.Port = n.Port
	case *unix.SockaddrInet6:
		g.spec.Port = n.Port
	}
	return err
}

func (g *Gauge) dial() error {
	for range g.spec.Flows {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(g.spec.Address, uint16(g.spec.Port))))
		if err != nil {
			return err
		}
		g.out = append(g.out, c)
	}
	return nil
}

// Tuples are the flows'.
func (g *Gauge) Tuples() (out []onpath.Tuple) {
	for _, c := range g.out {
		from, to := c.LocalAddr().(*net.UDPAddr).AddrPort(), c.RemoteAddr().(*net.UDPAddr).AddrPort()
		out = append(out, onpath.Tuple{
			Protocol: unix.IPPROTO_UDP, Src: from.Addr().Unmap(), Dst: to.Addr().Unmap(), SrcPort: from.Port(), DstPort: to.Port(),
		})
	}
	return out
}

// send keeps the rate: what a busy machine held up is sent late, not at once
// but at most twice as fast.
func (g *Gauge) send() {
	runtime.LockOSThread() // never unlocked: it has a priority of its own
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20)
	every := time.Second / time.Duration(g.spec.PerSecond)
	defer close(g.ended)
	b := make([]byte, gaugePacket)
	next := time.Now()
	for {
		select {
		case <-g.stop:
			return
		default:
		}
		for f, c := range g.out {
			n := len(g.sent[f])
			binary.BigEndian.PutUint64(b, uint64(f))
			binary.BigEndian.PutUint64(b[8:], uint64(n))
			g.sent[f] = append(g.sent[f], time.Now().UnixNano())
			_, _ = c.Write(b) // an ICMP error shows as a loss
			g.total++
		}
		next = next.Add(every)
		if late := time.Since(next); late > 0 {
			next = time.Now().Add(every / 2)
		}
		ts := unix.NsecToTimespec(int64(time.Until(next)))
		if ts.Nano() > 0 {
			_ = unix.Nanosleep(&ts, nil)
		}
	}
}

func (g *Gauge) receive() {
	fd := int(g.in.Fd())
	b, control := make([]byte, gaugePacket), make([]byte, 64)
	last := time.Now() // something came, or was still sent
	for {
		n, cn, _, _, err := unix.Recvmsg(fd, b, control, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			select {
			case <-g.ended:
				if uint64(g.Delivered()) >= g.total || time.Since(last) > late {
					return
				}
			default:
				last = time.Now()
			}
			continue
		}
		last = time.Now()
		if err != nil {
			g.mu.Lock()
			g.wrong = err
			g.mu.Unlock()
			return
		}
		f := binary.BigEndian.Uint64(b)
		if n != gaugePacket || f >= uint64(len(g.got)) {
			continue
		}
		g.mu.Lock()
		g.got[f][uint32(binary.BigEndian.Uint64(b[8:]))] = stamped(control[:cn])
		g.mu.Unlock()
	}
}

// stamped is when the kernel received a packet, ns of the real-time clock.
func stamped(control []byte) int64 {
	list, err := unix.ParseSocketControlMessage(control)
	if err == nil {
		for _, m := range list {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
				ts := (*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
				return ts.Nano()
			}
		}
	}
	return time.Now().UnixNano()
}

// Delivered is how many packets of these flows, or of all, have arrived so far.
func (g *Gauge) Delivered(flows ...int) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, m := range g.got {
		if len(flows) == 0 || slices.Contains(flows, i) {
			n += len(m)
		}
	}
	return n
}

// Stop ends it, waits for what is on its way, and reports.
func (g *Gauge) Stop(ctx context.Context) (*GaugeReport, error) {
	g.once.Do(func() { close(g.stop) })
	g.wg.Wait()
	defer g.close()
	if g.wrong != nil {
		return nil, fmt.Errorf("measure from %s to %s: %w", g.spec.From, g.spec.To, g.wrong)
	}
	r := &GaugeReport{Resolution: onpath.Duration(time.Second / time.Duration(g.spec.PerSecond))}
	for f, t := range g.Tuples() {
		one := checkFlow(g.sent[f], g.got[f])
		one.Port = t.SrcPort
		r.Flows = append(r.Flows, one)
		r.Blackout, r.Gap = max(r.Blackout, one.Blackout), max(r.Gap, one.Gap)
		r.Sent += uint64(one.Sent)
		r.Lost += uint64(one.Lost)
	}
	return r, ctx.Err()
}

// checkFlow finds the longest blackout from the times of sending by number, and
// of delivery. The times are of one clock.
func checkFlow(sent []int64, got map[uint32]int64) GaugeFlow {
	f := GaugeFlow{Sent: len(sent), Lost: len(sent) - len(got)}
	numbers := make([]uint32, 0, len(got))
	for n := range got {
		numbers = append(numbers, n)
	}
	slices.SortFunc(numbers, func(a, b uint32) int { return cmp.Or(cmp.Compare(got[a], got[b]), cmp.Compare(a, b)) })
	next := uint32(0) // the first that is not delivered
	for _, n := range numbers {
		if n >= next {
			f.Blackout = max(f.Blackout, onpath.Duration(got[n]-sent[next]))
			f.Gap = max(f.Gap, onpath.Duration(sent[n]-sent[next]))
			next = n + 1
		}
	}
	if int(next) < len(sent) {
		d := onpath.Duration(sent[len(sent)-1] - sent[next])
		if d > f.Blackout {
			f.Blackout, f.Silent = d, true
		}
		f.Gap = max(f.Gap, d)
	}
	return f
}

func (g *Gauge) close() {
	for _, c := range g.out {
		c.Close()
	}
	if g.in != nil {
		g.in.Close()
	}
}
