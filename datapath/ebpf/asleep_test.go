package ebpf_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// TestWakesInOrder: while an instance wakes under a stream of datagrams, none of them is lost
// and none overtakes another, whatever the agent is late by.
func TestWakesInOrder(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("gw", 16)
	var sink net.PacketConn
	c.in(c.server, func() (err error) {
		sink, err = net.ListenPacket("udp4", "10.9.0.2:80")
		return err
	})
	defer sink.Close()
	raw, err := sink.(*net.UDPConn).SyscallConn()
	c.must(err)
	c.must(raw.Control(func(fd uintptr) { // beyond what the kernel gives everybody
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	}))
	c.must(err)
	var conn net.Conn
	c.in(c.client, func() (err error) {
		conn, err = net.Dial("udp4", "10.9.0.2:80")
		return err
	})
	defer conn.Close()
	dp := c.nodes["gw"].dp
	asleep := func(is bool) {
		c.instances[0].Hold, c.instances[0].Asleep = onpath.MaxHold, is
		c.chainOf(toServers(), element(16, 16))
	}
	k := &keeper{}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = dp.Punted(ctx, k.take)
	}()
	defer func() { stop(); <-over }()
	const count = 1000
	sent := uint32(0)
	for range 20 {
		asleep(true)
		done := make(chan error)
		go func() {
			for n := range uint32(count) {
				if _, err := conn.Write(binary.BigEndian.AppendUint32(nil, sent+n)); err != nil {
					done <- err
					return
				}
				for began := time.Now(); time.Since(began) < 20*time.Microsecond; {
				}
			}
			done <- nil
		}()
		c.must(k.wait(100))
		inlet, err := dp.Inlet(16)
		c.must(err)
		c.must(k.letIn(inlet))
		c.must(inlet.Open())
		asleep(false)
		c.must(<-done)
		c.must(inlet.Close())
		k.close()
		b := make([]byte, 16)
		for n := range uint32(count) {
			_ = sink.SetReadDeadline(time.Now().Add(time.Minute))
			l, _, err := sink.ReadFrom(b)
			if err != nil {
				t.Fatalf("of %d datagrams number %d does not come: %v", count, n, err)
			}
			if got := binary.BigEndian.Uint32(b[:l]); got != sent+n {
				t.Fatalf("datagram %d came, must be %d, which comes %d later (-1: never)", got-sent, n, later(sink, sent+n))
			}
		}
		sent += count
	}
}

// later is how many datagrams come before the one with a number; -1: it does not come.
func later(sink net.PacketConn, number uint32) int {
	b := make([]byte, 16)
	for n := 0; ; n++ {
		_ = sink.SetReadDeadline(time.Now().Add(time.Second))
		l, _, err := sink.ReadFrom(b)
		if err != nil {
			return -1
		}
		if binary.BigEndian.Uint32(b[:l]) == number {
			return n
		}
	}
}

// keeper keeps what is for a sleeping instance, as an agent does.
type keeper struct {
	mu     sync.Mutex
	frames [][]byte
	inlet  onpath.Inlet
}

func (k *keeper) take(p onpath.Punted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.inlet != nil {
		_ = k.inlet.Deliver(p.Frame)
		return
	}
	k.frames = append(k.frames, bytes.Clone(p.Frame))
}

// wait returns once so many packets have come.
func (k *keeper) wait(n int) error {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
		k.mu.Lock()
		come := len(k.frames)
		k.mu.Unlock()
		if come >= n {
			return nil
		}
	}
	return errors.New("the agent gets no packets")
}

func (k *keeper) letIn(in onpath.Inlet) (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.frames {
		err = errors.Join(err, in.Deliver(f))
	}
	k.inlet, k.frames = in, nil
	return err
}

func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inlet = nil
}
