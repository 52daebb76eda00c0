package accel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// fastOpenBacklog is how many connections with data in their SYN may wait.
const fastOpenBacklog = 256

// ListenRelays opens the port where other nodes' relays connect. It takes the header in the
// SYN where net.ipv4.tcp_fastopen allows servers to (bit 2), and behind the handshake
// otherwise. No cookie is asked for: a header that is not signed opens nothing.
func ListenRelays(at netip.AddrPort) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN, fastOpenBacklog)
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, noCookie, 1)
			wideWindow(fd)
			return lifetime(fd)
		})
	}, KeepAlive: -1}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen for other relays at %s: %w", at, err)
	}
	return l.(*net.TCPListener), nil
}
