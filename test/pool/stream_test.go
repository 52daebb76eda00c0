package pool

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// Bytes of a datagram, without and with its headers of UDP and IP.
const (
	payload = 1200
	packet  = payload + 28
)

// longestBurst is for how long a sender that did not run makes up; an instance's queue
// holds more.
const longestBurst = 20 * time.Millisecond

// stream is UDP from the laboratory's client to its origin, at a rate of IP bits a second.
type stream struct {
	from, to *net.UDPConn
	arrived  map[uint64]bool
	sent     uint64
	done     sync.WaitGroup
}

func (l *laboratory) openStream(t *testing.T, port int) *stream {
	t.Helper()
	s := &stream{arrived: map[uint64]bool{}}
	address := &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: port}
	err := netnsrun.Do(l.Lab.NetNS("origin"), func() (err error) {
		s.to, err = net.ListenUDP("udp", address)
		return err
	})
	if err == nil {
		err = netnsrun.Do(l.Lab.NetNS("client"), func() (err error) {
			s.from, err = net.DialUDP("udp", nil, address)
			return err
		})
	}
	if err == nil {
		err = deepen(s.to)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// deepen lets a socket hold what arrives while this program does not run: what counts is
// what the network loses.
func deepen(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) })
	return errors.Join(err, set)
}

// run sends until a time, waits for what is under way, and says how many of how many
// datagrams were lost.
func (s *stream) run(t *testing.T, rate int64, until time.Time) (lost, sent uint64) {
	t.Helper()
	s.done.Go(func() {
		b := make([]byte, payload+1)
		for {
			n, err := s.to.Read(b)
			if err != nil {
				return
			}
			if n == payload {
				s.arrived[binary.BigEndian.Uint64(b)] = true
			}
		}
	})
	b := make([]byte, payload)
	every := time.Duration(packet * 8 * int64(time.Second) / rate)
	for due := time.Now(); due.Before(until); due = due.Add(every) {
		time.Sleep(time.Until(due))
		if now := time.Now(); now.Sub(due) > longestBurst {
			due = now // what could not be sent is not made up for: that would be more than the rate
		}
		binary.BigEndian.PutUint64(b, s.sent)
		if _, err := s.from.Write(b); err != nil {
			t.Errorf("send: %v", err)
			break
		}
		s.sent++
	}
	// More than the longest queue on the way holds back.
	_ = s.to.SetReadDeadline(time.Now().Add(time.Second))
	s.done.Wait()
	s.from.Close()
	s.to.Close()
	return s.sent - uint64(len(s.arrived)), s.sent
}
