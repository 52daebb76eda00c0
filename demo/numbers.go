package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// NumbersSpec says what to send: numbered datagrams to who echoes them.
type NumbersSpec struct {
	To   string        `json:"to"`
	Rate int           `json:"rate"` // a second
	For  time.Duration `json:"for"`  // ns
}

// NumbersResult is how many of them came back.
type NumbersResult struct {
	Sent int `json:"sent"`
	Back int `json:"back"` // each once
}

// Lost is how many did not come back.
func (r NumbersResult) Lost() int { return r.Sent - r.Back }

// lateNumbers is how long the last echoes are waited for.
const lateNumbers = 500 * time.Millisecond

// RunNumbers sends numbered datagrams and counts echoes.
func RunNumbers(ctx context.Context, s NumbersSpec) (r NumbersResult, err error) {
	c, err := net.Dial("udp", s.To)
	if err != nil {
		return r, err
	}
	defer c.Close()
	lateIsNotLost(c)
	seen := map[uint32]bool{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 64)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			if n >= 4 {
				seen[binary.BigEndian.Uint32(b)] = true
			}
		}
	}()
	start := time.Now()
	for time.Since(start) < s.For && ctx.Err() == nil {
		due := int(time.Since(start).Seconds() * float64(s.Rate))
		for ; r.Sent < due; r.Sent++ {
			var b [32]byte
			binary.BigEndian.PutUint32(b[:], uint32(r.Sent))
			if _, err := c.Write(b[:]); err != nil {
				return r, fmt.Errorf("send to %s: %w", s.To, err)
			}
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(lateNumbers)
	_ = c.SetReadDeadline(time.Now())
	<-done
	r.Back = len(seen)
	return r, nil
}

// lateIsNotLost has a socket keep what comes while its process waits for a processor: what
// is counted as lost was lost on the way.
func lateIsNotLost(c any) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) })
	}
}

// RunEcho sends datagrams back from addresses until ctx ends.
func RunEcho(ctx context.Context, addresses []string) error {
	errs := make(chan error, len(addresses))
	for _, a := range addresses {
		c, err := net.ListenPacket("udp", a)
		if err != nil {
			return err
		}
		defer c.Close()
		lateIsNotLost(c)
		go func() {
			b := make([]byte, 2048)
			for {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					errs <- err
					return
				}
				_, _ = c.WriteTo(b[:n], from)
			}
		}()
	}
	select {
	case err := <-errs:
		return err
	case <-ctx.Done():
		return nil
	}
}
