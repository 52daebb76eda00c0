package measure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// reflectRate bounds what strangers may have a node check, packets/s; the nodes of an
// operator need far less.
const reflectRate = 10_000

// Reflector answers other nodes' questions.
type Reflector struct {
	conn    *net.UDPConn
	request []byte
	reply   []byte
	rate    *rate.Limiter
	done    chan struct{}
}

// NewReflector answers at an address until it is closed. Packets that are not signed with
// the nodes' secret are dropped.
func NewReflector(at netip.AddrPort, secret []byte) (*Reflector, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("answer measurements at %s: %w", at, err)
	}
	if err := askHopLimit(conn); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("answer measurements at %s: %w", at, err)
	}
	r := &Reflector{conn: conn, request: requestKey(secret), reply: replyKey(secret),
		rate: rate.NewLimiter(reflectRate, reflectRate/10), done: make(chan struct{})}
	go r.serve()
	return r, nil
}

// Close ends it.
func (r *Reflector) Close() error {
	err := r.conn.Close()
	<-r.done
	return err
}

// serve keeps no state of its senders: an answer has the number of its request (RFC 8762
// §4.2, stateless mode).
func (r *Reflector) serve() {
	defer close(r.done)
	buf, control := make([]byte, packetSize+1), make([]byte, 64)
	for {
		n, c, _, from, err := r.conn.ReadMsgUDPAddrPort(buf, control)
		received := time.Now()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || !r.rate.Allow() {
			continue
		}
		asked, err := decodeRequest(buf[:n], r.request)
		if err != nil {
			continue
		}
		asked.ttl = hopLimit(control[:c])
		answer := reply{sequence: asked.sequence, received: ntp(received), request: asked}
		answer.sent = ntp(time.Now())
		_, _ = r.conn.WriteToUDPAddrPort(answer.encode(r.reply), from) // who asked counts a lost answer
	}
}

// askHopLimit has the kernel tell the hop limit of each packet of either family.
func askHopLimit(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var err4, err6 error
	if err := raw.Control(func(fd uintptr) {
		err4 = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
		err6 = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
	}); err != nil {
		return err
	}
	if err4 != nil && err6 != nil {
		return err4
	}
	return nil
}

// hopLimit is what the kernel told with a packet; 0 if nothing.
func hopLimit(control []byte) byte {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		level, kind := m.Header.Level, m.Header.Type
		if (level == unix.IPPROTO_IP && kind == unix.IP_TTL || level == unix.IPPROTO_IPV6 && kind == unix.IPV6_HOPLIMIT) && len(m.Data) >= 4 {
			return byte(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}
