package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// Ports of the server: it answers at all but one.
const (
	churnDNS, churnTalk, churnMute = 53, 7000, 9
	churnEcho                      = 8080
)

// A datagram of churn: the number of the exchange in its flow, what the server saw of the
// packet's DSCP, what it saw of the flow's first, and when it was sent, in ms.
const (
	atTurn = iota
	atSeen
	atFirst
	atTime
	churnBytes = atTime + 4
)

const (
	churnSockets = 64
	// churnBuffer is how much waits at a socket, bytes, some hundred datagrams. What its reader
	// comes too late for is lost: a machine that is too slow for this load would else answer
	// after seconds, when flows that have just begun made room for others long ago.
	churnBuffer = 256 << 10
	// churnRest is before the last exchange of an answered flow.
	churnRest = 5 * time.Second
	patience  = 10 * time.Second
)

// churned is what came of the flows of one run.
type churned struct {
	udp, tcp                                    float64 // new flows, a second
	failed, moved, unanswered, followed, second int64
	asked, connected                            int64
	slowest                                     int64 // answer, ms
	why                                         *reasons
}

// reasons are why connections and questions failed, and how often.
type reasons struct {
	mu sync.Mutex
	of map[string]int
}

func (r *reasons) add(what string, err error) {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next // without addresses
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[what+": "+err.Error()]++
}

// answerChurn serves in the server's namespace until the site is closed.
func (t *site) answerChurn() error {
	for _, port := range []int{churnDNS, churnTalk, churnMute} {
		fd, err := udpSocket(t.server, port)
		if err != nil {
			return err
		}
		done := make(chan struct{})
		t.After(func() error {
			err := unix.Shutdown(fd, unix.SHUT_RD)
			<-done
			if errors.Is(err, unix.ENOTCONN) {
				err = nil
			}
			return errors.Join(err, unix.Close(fd))
		})
		if port == churnMute {
			close(done)
			continue
		}
		go func() {
			defer close(done)
			answerAll(fd)
		}()
	}
	return t.serve(netip.AddrPortFrom(churnServer, churnEcho), func(c net.Conn) { _, _ = io.Copy(c, c) })
}

// answerAll sends each datagram back, with the DSCP that it came with.
func answerAll(fd int) {
	b, oob := make([]byte, 64), make([]byte, 64)
	for {
		n, k, _, from, err := unix.Recvmsg(fd, b, oob, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil || from == nil {
			return
		}
		if n < churnBytes {
			continue
		}
		b[atSeen] = dscpIn(oob[:k])
		_ = unix.Sendmsg(fd, b[:n], nil, from, 0)
	}
}

func dscpIn(oob []byte) byte {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range list {
		if m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TOS && len(m.Data) > 0 {
			return m.Data[0] >> 2
		}
	}
	return 0
}

// udpSocket takes datagrams to any address of a namespace.
func udpSocket(ns string, port int) (fd int, err error) {
	err = netnsrun.Do(ns, func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		wait := unix.NsecToTimeval((200 * time.Millisecond).Nanoseconds())
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, churnBuffer),
			unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
			unix.Bind(fd, &unix.SockaddrInet4{Port: port}))
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("open a socket at UDP port %d: %w", port, err)
	}
	return fd, nil
}

// talk is an answered flow that rests before its last exchange.
type talk struct {
	socket int
	from   [4]byte
	first  byte
	due    time.Time
}

// crowd are clients that begin flows of UDP.
type crowd struct {
	sockets                               [churnSockets]int
	next                                  uint32
	asked, heard, followed, moved, second atomic.Int64
	slowest                               atomic.Int64
	mu                                    sync.Mutex
	rest                                  []talk
}

// flowsBegun is how many there were of earlier runs: no flow comes twice.
var flowsBegun atomic.Uint32

// churn begins flows for a time, and has half called beside that in the middle of it.
func (t *site) churn(ctx context.Context, long time.Duration, half func() error) (got churned, err error) {
	c := &crowd{}
	for i := range c.sockets {
		if c.sockets[i], err = udpSocket(t.client, 20000+i); err != nil {
			return got, err
		}
		defer unix.Close(c.sockets[i])
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for i := range c.sockets {
		wg.Go(func() { c.hear(ctx, i) })
	}
	short := make(chan churned, 1)
	go func() { short <- connectShortly(ctx, t.client, clientOf, churnServer, churnTCP, long) }()
	begun := time.Now()
	sent, err := c.begin(ctx, long, half)
	took := time.Since(begun).Seconds()
	got = <-short
	c.finish(ctx)
	stop()
	wg.Wait()
	got.udp, got.tcp = float64(sent)/took, float64(got.connected)/took
	got.moved, got.followed, got.unanswered = c.moved.Load(), c.followed.Load(), c.asked.Load()-c.heard.Load()
	got.second, got.slowest = c.second.Load(), c.slowest.Load()
	return got, err
}

// begin sends the first datagrams of flows: of ten six are questions of DNS, and of those
// left every third is to a port that nobody answers at.
func (c *crowd) begin(ctx context.Context, long time.Duration, half func() error) (sent int, err error) {
	const every = 5 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	begun := time.Now()
	done := make(chan error, 1)
	if half == nil {
		done <- nil
	}
	for time.Since(begun) < long {
		select {
		case <-ctx.Done():
			return sent, ctx.Err()
		case <-tick.C:
		}
		if half != nil && time.Since(begun) > long/2 {
			go func(half func() error) { done <- half() }(half)
			half = nil
		}
		for want := int(time.Since(begun).Seconds() * churnUDP); sent < want; sent++ {
			n, port := flowsBegun.Add(1), churnDNS
			if sent%10 >= 6 {
				port = churnTalk
				if sent%15 >= 10 {
					port = churnMute
				}
			}
			c.send(int(n%churnSockets), fromOf(n/churnSockets), port, 0, 0)
			if port != churnMute {
				c.asked.Add(1)
			}
		}
		c.goOn(time.Now())
	}
	return sent, <-done
}

func fromOf(n uint32) (a [4]byte) {
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(churnClients.Addr().AsSlice())|n&0xffff)
	return a
}

// begunAt is what the times in datagrams count from.
var begunAt = time.Now()

// send sends from one of the clients' addresses.
func (c *crowd) send(socket int, from [4]byte, port int, turn, first byte) {
	b := binary.BigEndian.AppendUint32([]byte{turn, 0, first}, uint32(time.Since(begunAt).Milliseconds()))
	var oob [unix.SizeofCmsghdr + 16]byte
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
	h.Level, h.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
	h.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
	copy(oob[unix.CmsgLen(0)+4:], from[:])
	to := &unix.SockaddrInet4{Port: port, Addr: churnServer.As4()}
	_ = unix.Sendmsg(c.sockets[socket], b, oob[:unix.CmsgSpace(unix.SizeofInet4Pktinfo)], to, 0)
}

// goOn sends the last datagram of flows that have rested.
func (c *crowd) goOn(now time.Time) {
	c.mu.Lock()
	n := 0
	for n < len(c.rest) && now.After(c.rest[n].due) {
		n++
	}
	due := c.rest[:n:n]
	c.rest = c.rest[n:]
	c.mu.Unlock()
	for _, f := range due {
		c.send(f.socket, f.from, churnTalk, 2, f.first)
	}
}

// finish waits for the last exchanges.
func (c *crowd) finish(ctx context.Context) {
	for end := time.Now().Add(churnRest + time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		c.goOn(time.Now())
	}
}

// hear takes answers, and goes on with flows that have more to say.
func (c *crowd) hear(ctx context.Context, socket int) {
	b, oob := make([]byte, 64), make([]byte, 128)
	for ctx.Err() == nil {
		n, k, _, from, err := unix.Recvmsg(c.sockets[socket], b, oob, 0)
		at, is := from.(*unix.SockaddrInet4)
		if err != nil || n < churnBytes || !is {
			continue
		}
		took := time.Since(begunAt).Milliseconds() - int64(binary.BigEndian.Uint32(b[atTime:]))
		for was := c.slowest.Load(); took > was && !c.slowest.CompareAndSwap(was, took); was = c.slowest.Load() {
		}
		if b[atTurn] == 0 {
			c.heard.Add(1)
			b[atFirst] = b[atSeen]
			c.second.Add(int64(b[atSeen] & 1))
		} else if b[atSeen] != b[atFirst] {
			c.moved.Add(1)
		}
		if at.Port != churnTalk {
			continue
		}
		us := addressedTo(oob[:k])
		switch b[atTurn] {
		case 0:
			c.send(socket, us, churnTalk, 1, b[atFirst])
		case 1:
			c.mu.Lock()
			c.rest = append(c.rest, talk{socket, us, b[atFirst], time.Now().Add(churnRest)})
			c.mu.Unlock()
		default:
			c.followed.Add(1)
		}
	}
}

func addressedTo(oob []byte) (a [4]byte) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return a
	}
	for _, m := range list {
		if m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo {
			copy(a[:], m.Data[8:12])
		}
	}
	return a
}

// paced calls fn so many times a second, from several threads of a namespace.
func paced(ctx context.Context, ns string, rate int, long time.Duration, fn func(n int)) {
	const workers = 32
	var wg sync.WaitGroup
	begun := time.Now()
	for w := range workers {
		wg.Go(func() {
			_ = netnsrun.Do(ns, func() error {
				for n := w; ctx.Err() == nil; n += workers {
					due := begun.Add(time.Duration(n) * time.Second / time.Duration(rate))
					if due.After(begun.Add(long)) {
						return nil
					}
					time.Sleep(time.Until(due))
					fn(n)
				}
				return nil
			})
		})
	}
	wg.Wait()
}

// clientOf is one of the clients' addresses.
func clientOf(n int) netip.Addr { return netip.AddrFrom4(fromOf(uint32(n))) }

// connectShortly begins connections that ask once and end, the nth from an address.
func connectShortly(ctx context.Context, ns string, from func(n int) netip.Addr, to netip.Addr, rate int, long time.Duration) churned {
	var connected, failed atomic.Int64
	why := &reasons{of: map[string]int{}}
	paced(ctx, ns, rate, long, func(n int) {
		d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: from(n).AsSlice()}}
		connected.Add(1)
		if err := exchange(&d, "tcp4", netip.AddrPortFrom(to, churnEcho)); err != nil && ctx.Err() == nil {
			failed.Add(1)
			why.add("connection", err)
		}
	})
	return churned{connected: connected.Load(), failed: failed.Load(), why: why}
}

// askAndConnect has instances ask a resolver and connect to an origin, together each so often
// a second.
func askAndConnect(ctx context.Context, from []instance, to netip.Addr, rate int, long time.Duration) (sum churned) {
	var asked, unanswered atomic.Int64
	why := &reasons{of: map[string]int{}}
	short := make(chan churned, len(from))
	var wg sync.WaitGroup
	for _, i := range from {
		own := func(int) netip.Addr { return i.Addresses[0].Addr() }
		go func() { short <- connectShortly(ctx, i.ns, own, to, rate/len(from), long) }()
		wg.Go(func() {
			paced(ctx, i.ns, rate/len(from), long, func(int) {
				asked.Add(1)
				if err := exchange(&net.Dialer{}, "udp4", netip.AddrPortFrom(to, churnDNS)); err != nil && ctx.Err() == nil {
					unanswered.Add(1)
					why.add("question", err)
				}
			})
		})
	}
	wg.Wait()
	for range from {
		got := <-short
		sum.connected, sum.failed = sum.connected+got.connected, sum.failed+got.failed
		for what, n := range got.why.of {
			why.of[what] += n
		}
	}
	sum.why, sum.asked, sum.unanswered = why, asked.Load(), unanswered.Load()
	return sum
}

// exchange says something once, and waits for the answer.
func exchange(d *net.Dialer, network string, to netip.AddrPort) error {
	c, err := d.Dial(network, to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(make([]byte, churnBytes)); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, churnBytes))
	return err
}

// kept are connections that stay open, and speak now and then.
type kept struct {
	conns []net.Conn
	gone  atomic.Int64
	stop  chan struct{}
	wg    sync.WaitGroup
}

func (t *site) keepOpen(n int) (*kept, error) {
	k := &kept{stop: make(chan struct{})}
	for range n {
		var c net.Conn
		err := netnsrun.Do(t.client, func() (err error) {
			c, err = net.DialTimeout("tcp4", netip.AddrPortFrom(churnServer, churnEcho).String(), patience)
			return err
		})
		if err != nil {
			k.close()
			return nil, fmt.Errorf("a connection that stays open: %w", err)
		}
		k.conns = append(k.conns, c)
		k.wg.Go(func() { k.speak(c) })
	}
	return k, nil
}

func (k *kept) speak(c net.Conn) {
	b := make([]byte, 1)
	for {
		c.SetDeadline(time.Now().Add(patience))
		_, err := c.Write(b)
		if err == nil {
			_, err = io.ReadFull(c, b)
		}
		select {
		case <-k.stop:
			return
		case <-time.After(500 * time.Millisecond):
		}
		if err != nil {
			k.gone.Add(1)
			return
		}
	}
}

func (k *kept) lost() int64 { return k.gone.Load() }

func (k *kept) close() {
	close(k.stop)
	for _, c := range k.conns {
		c.Close()
	}
	k.wg.Wait()
}
