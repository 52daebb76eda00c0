package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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
// that hashes what it gets and sends it back, and compares.
func transfer(t *testing.T, s *tcpServer, to string, size int64) {
	t.Helper()
	c, err := dialTCP(t, to, s.port, 5*time.Second)
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
	_ = c.SetReadBuffer(8 << 20)
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
	_ = c.SetReadBuffer(8 << 20)
	return c
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
	sent     atomic.Uint64
	stop     chan struct{}
	wg       sync.WaitGroup

	mu      sync.Mutex
	got     map[uint64]bool
	last    time.Time     // an answer came
	longest time.Duration // between two answers
}

func startStream(t *testing.T, to string, port, perSecond int) *stream {
	t.Helper()
	s := &stream{conn: dialUDP(t, to, port), interval: time.Second / time.Duration(perSecond), stop: make(chan struct{}), got: map[uint64]bool{}, last: time.Now()}
	s.wg.Go(s.send)
	s.wg.Go(s.receive)
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
		s.got[binary.BigEndian.Uint64(b[:8])] = true
		s.longest = max(s.longest, now.Sub(s.last))
		s.last = now
		s.mu.Unlock()
	}
}

// end stops sending, waits for stragglers, and returns what was sent, how much
// of it got no answer, and the longest time without any.
func (s *stream) end() (sent, lost uint64, longest time.Duration) {
	close(s.stop)
	s.mu.Lock()
	s.longest = max(s.longest, time.Since(s.last))
	s.mu.Unlock()
	time.Sleep(300 * time.Millisecond)
	_ = s.conn.SetReadDeadline(time.Now())
	s.wg.Wait()
	sent = s.sent.Load()
	return sent, sent - uint64(len(s.got)), s.longest
}
