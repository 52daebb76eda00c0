package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tcpServer answers each connection in origin by handler; it notes who called.
type tcpServer struct {
	port    int
	mu      sync.Mutex
	callers []netip.AddrPort
}

func serveTCP(t *testing.T, handler func(*net.TCPConn)) *tcpServer {
	t.Helper()
	s := &tcpServer{}
	var l *net.TCPListener
	in(t, "origin", func() (err error) {
		l, err = net.ListenTCP("tcp", &net.TCPAddr{})
		return err
	})
	s.port = l.Addr().(*net.TCPAddr).Port
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
			s.mu.Lock()
			s.callers = append(s.callers, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
			s.mu.Unlock()
			wg.Go(func() { defer c.Close(); handler(c) })
		}
	})
	return s
}

func (s *tcpServer) lastCaller() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.callers) == 0 {
		return netip.AddrPort{}
	}
	return s.callers[len(s.callers)-1]
}

// dialTCP connects from the client.
func dialTCP(t *testing.T, to string, port int, timeout time.Duration) (conn *net.TCPConn, err error) {
	t.Helper()
	in(t, "client", func() error {
		var c net.Conn
		if c, err = (&net.Dialer{Timeout: timeout}).Dial("tcp", net.JoinHostPort(to, fmt.Sprint(port))); err == nil {
			conn = c.(*net.TCPConn)
		}
		return nil
	})
	return conn, err
}

// transfer sends size random bytes each way over one connection to an origin
// that hashes what it gets and sends it back, and compares. It gives the client's own
// address and port.
func transfer(t *testing.T, s *tcpServer, to string, size int64) (from netip.AddrPort) {
	t.Helper()
	c, err := dialTCP(t, to, s.port, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	seed := [32]byte{1}
	sent := sha256.New()
	errs := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.MultiWriter(c, sent), rand.NewChaCha8(seed), size)
		errs <- errors.Join(err, c.CloseWrite())
	}()
	got := sha256.New()
	n, err := io.Copy(got, c)
	if sendErr := <-errs; sendErr != nil || err != nil {
		t.Fatalf("transfer of %d bytes to %s: sent: %v; received %d: %v", size, to, sendErr, n, err)
	}
	if n != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Fatalf("transfer to %s: %d of %d bytes came back, equal: %t", to, n, size, bytes.Equal(sent.Sum(nil), got.Sum(nil)))
	}
	return addrPort(c.LocalAddr())
}

// echo sends everything back.
func echo(c *net.TCPConn) { _, _ = io.Copy(c, c) }

// udpEcho answers datagrams in origin on the address, until the test ends.
func udpEcho(t *testing.T, address string) int {
	t.Helper()
	var c *net.UDPConn
	in(t, "origin", func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address)})
		return err
	})
	deepen(t, c)
	var wg sync.WaitGroup
	t.Cleanup(func() { c.Close(); wg.Wait() })
	wg.Go(func() {
		b := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(b[:n], from)
		}
	})
	return c.LocalAddr().(*net.UDPAddr).Port
}

// dialUDP opens a socket of the client to origin.
func dialUDP(t *testing.T, to string, port int) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	in(t, "client", func() (err error) {
		c, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: net.ParseIP(to), Port: port})
		return err
	})
	deepen(t, c)
	return c
}

// deepen lets a socket hold what arrives while this program does not run: what
// counts is what the network loses.
func deepen(t *testing.T, c *net.UDPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			for _, buffer := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
				if e := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, buffer, 64<<20); e != nil {
					t.Error(e)
				}
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ask sends one datagram and waits for its echo.
func ask(c *net.UDPConn, timeout time.Duration) error {
	if _, err := c.Write([]byte("ping")); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(timeout))
	b := make([]byte, 16)
	n, err := c.Read(b)
	if err == nil && string(b[:n]) != "ping" {
		err = fmt.Errorf("got %q back", b[:n])
	}
	return err
}

// stream is sequence-numbered UDP from the client to origin and back, at a
// steady rate; it knows what was lost and when nothing came.
type stream struct {
	conn     *net.UDPConn
	interval time.Duration
	began    time.Time
	sent     atomic.Uint64
	stop     chan struct{}
	sender   sync.WaitGroup
	receiver sync.WaitGroup

	mu      sync.Mutex
	got     []bool        // by sequence number, from 1
	last    time.Time     // an answer came
	longest time.Duration // between two answers
}

func startStream(t *testing.T, to string, port, perSecond int) *stream {
	t.Helper()
	s := &stream{conn: dialUDP(t, to, port), interval: time.Second / time.Duration(perSecond), stop: make(chan struct{}), began: time.Now(), last: time.Now()}
	s.sender.Go(s.send)
	s.receiver.Go(s.receive)
	t.Cleanup(func() { s.conn.Close() })
	return s
}

func (s *stream) send() {
	tick := time.NewTicker(max(s.interval, time.Millisecond))
	defer tick.Stop()
	start := time.Now()
	var b [8]byte
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		for due := uint64(time.Since(start) / s.interval); s.sent.Load() < due; {
			binary.BigEndian.PutUint64(b[:], s.sent.Add(1))
			_, _ = s.conn.Write(b[:]) // an ICMP error shows as a loss
		}
	}
}

func (s *stream) receive() {
	b := make([]byte, 64)
	for {
		n, err := s.conn.Read(b)
		if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil || n != 8 {
			continue
		}
		now := time.Now()
		s.mu.Lock()
		s.mark(binary.BigEndian.Uint64(b[:8]))
		s.longest = max(s.longest, now.Sub(s.last))
		s.last = now
		s.mu.Unlock()
	}
}

// end stops sending, waits for stragglers, and returns what was sent, how much
// of it got no answer, and the longest time without any. Under load seconds of
// answers wait in the sockets: what still comes is late, not lost. So the wait ends
// when all came, or nothing did for a second behind the answer to one more datagram.
func (s *stream) end() (sent, lost uint64, longest time.Duration) {
	close(s.stop)
	s.sender.Wait() // or one more is sent after the last look
	s.mu.Lock()
	s.longest = max(s.longest, time.Since(s.last))
	s.mu.Unlock()
	for stopped := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		s.mu.Lock()
		all, quiet, drained := s.lost(s.sent.Load()) == 0, time.Since(later(s.last, stopped)), len(s.got) > 0 && s.got[0]
		s.mu.Unlock()
		if all || quiet > time.Second && (drained || time.Since(stopped) > 20*time.Second) {
			break
		}
		if !drained {
			_, _ = s.conn.Write(make([]byte, 8)) // number 0 is not counted
		}
	}
	_ = s.conn.SetReadDeadline(time.Now())
	s.receiver.Wait()
	sent = s.sent.Load()
	return sent, s.lost(sent), s.longest
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// mark notes an answer. s.mu is held.
func (s *stream) mark(n uint64) {
	for uint64(len(s.got)) <= n {
		s.got = append(s.got, make([]bool, 1<<16)...)
	}
	s.got[n] = true
}

// lost is how many of the first n got no answer yet. s.mu is held, or nothing
// runs any more.
func (s *stream) lost(n uint64) (lost uint64) {
	for i := uint64(1); i <= n; i++ {
		if i >= uint64(len(s.got)) || !s.got[i] {
			lost++
		}
	}
	return lost
}

// answered is how many of the packets behind number from, up to number to, got an
// answer. It is for a stream that ended.
func (s *stream) answered(from, to uint64) uint64 {
	return to - from - (s.lost(to) - s.lost(from))
}

// lostSoFar gives what is under way time to arrive, and counts what did not; it
// also says at which rate was sent.
func (s *stream) lostSoFar() (lost uint64, perSecond int) {
	n, took := s.sent.Load(), time.Since(s.began)
	time.Sleep(300 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost(n), int(float64(n) / took.Seconds())
}

// steady finds the highest rate at which nothing is lost for the time hold, and
// returns a stream that goes on at that rate.
func steady(t *testing.T, to string, port int, hold time.Duration) (s *stream, perSecond int) {
	t.Helper()
	const first, least = 5000, 1000
	try := func(rate int, d time.Duration) (*stream, bool) {
		s := startStream(t, to, port, rate)
		for {
			time.Sleep(min(time.Second, max(0, d-time.Since(s.began))))
			lost, sent := s.lostSoFar()
			if lost > 0 || sent <= rate*9/10 {
				return s, false
			}
			if time.Since(s.began) >= d {
				return s, true
			}
		}
	}
	good := first
	for rate := first * 2; ; rate *= 2 { // roughly
		s, ok := try(rate, time.Second)
		s.end()
		if !ok {
			break
		}
		good = rate
	}
	for rate := good * 7 / 4; ; rate = rate * 6 / 7 { // and from above
		s, ok := try(rate, hold)
		if ok || rate < least {
			return s, rate
		}
		s.end()
	}
}

// when says which packets were lost, by the tenth of a second in which they were
// due since the stream began. It is for a stream that ended.
func (s *stream) when() string {
	n := s.sent.Load()
	tenths := map[int]int{}
	for i := uint64(1); i <= n; i++ {
		if i >= uint64(len(s.got)) || !s.got[i] {
			tenths[int(time.Duration(i)*s.interval/(100*time.Millisecond))]++
		}
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(tenths)) {
		fmt.Fprintf(&b, "%.1fs:%d ", float64(k)/10, tenths[k])
	}
	return b.String()
}
