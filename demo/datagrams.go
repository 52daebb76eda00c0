package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Tick is what a source of datagrams tells ten times a second.
type Tick struct {
	At     time.Time `json:"at"`
	Sent   int64     `json:"sent"`   // so far
	Served int64     `json:"served"` // answered so far
}

// tickEvery is how often a source tells.
const tickEvery = 100 * time.Millisecond

// answerTime is how long an answer is waited for.
const answerTime = time.Second

// RunDatagrams sends a datagram of its own flow as often in a second as the last line of
// in says, and writes a Tick ten times a second, until in ends.
func RunDatagrams(ctx context.Context, address string, in io.Reader, out io.Writer) error {
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return err
	}
	var rate, sent, served atomic.Int64
	var port atomic.Uint32
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		for s := bufio.NewScanner(in); s.Scan(); {
			if n, err := strconv.ParseInt(strings.TrimSpace(s.Text()), 10, 64); err == nil {
				rate.Store(n)
			}
		}
	}()
	go func() {
		due := time.Now()
		for ctx.Err() == nil {
			n := rate.Load()
			if n <= 0 {
				time.Sleep(10 * time.Millisecond)
				due = time.Now()
				continue
			}
			due = due.Add(time.Second / time.Duration(n))
			time.Sleep(time.Until(due))
			sent.Add(1)
			go func() {
				if askOnce(to, &port) {
					served.Add(1)
				}
			}()
		}
	}()
	enc := json.NewEncoder(out)
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case at := <-tick.C:
			if err := enc.Encode(Tick{At: at.UTC(), Sent: sent.Load(), Served: served.Load()}); err != nil {
				return nil // nobody listens any more
			}
		}
	}
}

// fromNext dials from the next port in turn: one that is drawn at random comes again while the
// data path knows its flow, which then goes to the instance that it went to before.
func fromNext(to *net.UDPAddr, port *atomic.Uint32) (c *net.UDPConn, err error) {
	const first, ports = 1024, 1<<16 - 1024
	for range 100 {
		n := first + (port.Add(1)-1)%ports
		if c, err = net.DialUDP("udp", &net.UDPAddr{Port: int(n)}, to); err == nil {
			break
		}
	}
	return c, err
}

// askOnce sends one datagram from a port of its own and waits for the answer.
func askOnce(to *net.UDPAddr, port *atomic.Uint32) bool {
	c, err := fromNext(to, port)
	if err != nil {
		return false
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, 100)); err != nil {
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(answerTime))
	_, err = c.Read(make([]byte, 200))
	return err == nil
}

// inspectReady is the port at which it answers once packets pass.
const inspectReady = 9000

// RunInspect is a bump in the wire that spends work of processor time on each packet
// between eth0 and eth1, as a function does that looks into packets.
func RunInspect(ctx context.Context, work time.Duration) error {
	var ends [2]int
	for i, name := range []string{"eth0", "eth1"} {
		fd, err := packetSocket(name)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		ends[i] = fd
	}
	ready, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", inspectReady))
	if err != nil {
		return err
	}
	defer ready.Close()
	go func() {
		for {
			probe, err := ready.Accept()
			if err != nil {
				return
			}
			_ = probe.Close()
		}
	}()
	runtime.LockOSThread() // its processor time is what is counted
	defer runtime.UnlockOSThread()
	buf := make([]byte, 64<<10)
	poll := []unix.PollFd{{Fd: int32(ends[0]), Events: unix.POLLIN}, {Fd: int32(ends[1]), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		if _, err := unix.Poll(poll, 200); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
		for i := range poll {
			if poll[i].Revents&unix.POLLIN != 0 {
				handOn(ends[i], ends[1-i], buf, work)
			}
		}
	}
	return nil
}

// vnetHeader is the length of struct virtio_net_hdr, which stands before each frame.
const vnetHeader = 10

func packetSocket(name string) (int, error) {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	const all = uint16(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	// Checksums may be partial, and packets larger than the wire's.
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<10), // a short queue: what waits for longer is lost
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}))
	return fd, err
}

// handOn takes a packet from one end to the other, after the work.
func handOn(from, to int, buf []byte, work time.Duration) {
	n, source, err := unix.Recvfrom(from, buf, unix.MSG_DONTWAIT)
	if err != nil || n <= vnetHeader {
		return
	}
	if l, ok := source.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
		return // what we have sent ourselves
	}
	buf[0] &= 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM is all that holds for what is sent
	for began := threadTime(); threadTime()-began < work; {
	}
	_, _ = unix.Write(to, buf[:n])
}

// threadTime is the processor time of this thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}
