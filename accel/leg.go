package accel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	connectTimeout = 8 * time.Second // three SYNs and their answers
	synRetries     = 3
	noCookie       = 34 // TCP_FASTOPEN_NO_COOKIE, since Linux 4.15
)

// keepAlive finds ends that are gone without a word.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 60 * time.Second, Interval: 15 * time.Second, Count: 4}

// lifetime sets what decides how a socket ends, or those that a listening one takes: by a reset,
// also where the process is killed, until join says that all went well; keepAlive; and that
// urgent data stays in the stream, where splice(2) finds its end. A leg has no
// TCP_USER_TIMEOUT: it would also end a transfer whose reader rests. See endGone.
func lifetime(fd int) error {
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return fmt.Errorf("have connections end by a reset: %w", err)
	}
	for _, o := range [][3]int{
		{unix.SOL_SOCKET, unix.SO_OOBINLINE, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAlive.Idle / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAlive.Interval / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAlive.Count},
	} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return fmt.Errorf("have connections send keep-alives and keep urgent data: %w", err)
		}
	}
	return nil
}

// dialRelay opens a leg to another node's relay. The SYN carries the header, so the relay
// there goes on half a round trip later; where a box on the way or the kernel does not let
// data pass in a SYN, the header follows by itself.
func dialRelay(ctx context.Context, to netip.AddrPort, first []byte, o legOptions) (conn, error) {
	d := net.Dialer{Timeout: connectTimeout, KeepAliveConfig: keepAlive, Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			// Both are a gain in time alone: kernels without them connect as usual.
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, noCookie, 1)
			return common(fd, o)
		})
	}}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(first); err != nil {
		c.Close()
		return nil, fmt.Errorf("write to relay %s: %w", to, err)
	}
	return c.(*net.TCPConn), nil
}

// conn is a connection of either kind: *net.TCPConn, or a socket that was made here.
type conn interface {
	syscall.Conn
	io.ReadCloser
	CloseWrite() error
	SetLinger(seconds int) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// socket is a TCP socket that is not one of net's, which would ask the kernel a dozen times
// about each connection before its first byte.
type socket struct{ *os.File }

func (s socket) with(do func(fd int) error) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, do)
}

// CloseWrite implements conn.
func (s socket) CloseWrite() error {
	return s.with(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
}

// SetLinger implements conn.
func (s socket) SetLinger(seconds int) error {
	l := unix.Linger{Linger: int32(max(seconds, 0))}
	if seconds >= 0 {
		l.Onoff = 1
	}
	return s.with(func(fd int) error { return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &l) })
}

// beginOrigin sends the last leg's SYN. With a client's address the origin sees the client
// itself: only where the origin's answers pass this relay, that is, where it lies on the path.
// It runs where the leg begins, and does not wait there for an answer (awaitOrigin): that would
// keep a thread.
func beginOrigin(client, origin netip.AddrPort, transparent bool, o legOptions) (conn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a leg to %s: %w", origin, err)
	}
	err = errors.Join(common(fd, o), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	if err == nil && transparent {
		err = bindAs(fd, client)
	}
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(origin.Port()), Addr: origin.Addr().As4()})
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		unix.Close(fd)
		return nil, fmt.Errorf("open a leg to %s: %w", origin, err)
	}
	return socket{os.NewFile(uintptr(fd), "leg")}, nil
}

// bindAs has a leg begin at the client's own address.
func bindAs(fd int, client netip.AddrPort) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1); err != nil {
		return fmt.Errorf("allow the client's address as one's own: %w", err)
	}
	// A client may have one port for connections to several origins, or use it again.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("share the client's port among its connections: %w", err)
	}
	return unix.Bind(fd, &unix.SockaddrInet4{Port: int(client.Port()), Addr: client.Addr().As4()})
}

// awaitOrigin waits until the origin has answered the SYN, or c is closed.
func awaitOrigin(c conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	answered := func(fd uintptr) bool {
		if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0); n == 0 {
			return false
		}
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if failed = err; err == nil && code != 0 {
			failed = unix.Errno(code)
		}
		return true
	}
	already := false
	if err := raw.Control(func(fd uintptr) { already = answered(fd) }); err != nil || already {
		return errors.Join(err, failed)
	}
	if err := c.SetWriteDeadline(now().Add(connectTimeout)); err != nil {
		return err
	}
	err = raw.Write(answered)
	return errors.Join(err, failed, c.SetWriteDeadline(time.Time{}))
}

func control(c syscall.RawConn, set func(fd int) error) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = set(int(fd)) }); e != nil {
		return e
	}
	return err
}

// legOptions are a leg's own.
type legOptions struct {
	congestion string
	segment    int // the largest that it may take, bytes; 0: any
}

// common sets what every leg has.
func common(fd int, o legOptions) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT, synRetries); err != nil {
		return err
	}
	if err := lifetime(fd); err != nil {
		return err
	}
	wideWindow(fd)
	if o.segment > 0 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, o.segment) // out of range: the relay stays
	}
	_ = congestionOf(fd, o.congestion) // a relay of another node may know others: this leg keeps the kernel's default
	return nil
}

// mayCongest reports why a congestion control cannot be had on this machine.
func mayCongest(congestion string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return congestionOf(fd, congestion)
}

func setCongestion(c *net.TCPConn, congestion string) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, func(fd int) error { return congestionOf(fd, congestion) })
}

// window is how many bytes a leg takes before the kernel has learnt its rate. The kernel's
// default of 64 KiB ends slow start's doubling in the fourth round: window and round trip
// and no longer the sender would decide. This holds the fifth round; by then the kernel has
// learnt. It is what each connection of a client that reads nothing costs in memory, or twice
// that with the kernel's overhead.
const window = 256 << 10

// wideWindow widens the receive window of a socket, or of those that a listening one takes.
// A low-water mark makes room for as many bytes and, unlike SO_RCVBUF, leaves it to the
// kernel to make more; the mark itself is taken back. Without it a leg is slower, not wrong.
func wideWindow(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, window)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
}

func congestionOf(fd int, congestion string) error {
	if congestion == "" {
		return nil
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion); err != nil {
		return fmt.Errorf("congestion control %q: %w (see /proc/sys/net/ipv4/tcp_available_congestion_control)", congestion, err)
	}
	return nil
}
