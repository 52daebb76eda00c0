package dns

import (
	"net"
	"net/netip"
	"sync"
)

// ofNetwork is how many of the connections one network may have.
const ofNetwork = mostConnections / 16

// shared is a listener whose connections no network has all of: those above its share are
// closed at once.
type shared struct {
	net.Listener

	mu   sync.Mutex
	open map[netip.Prefix]int // connections by network
}

func newShared(l net.Listener) *shared { return &shared{Listener: l, open: map[netip.Prefix]int{}} }

// Accept implements net.Listener.
func (l *shared) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := networkOf(addressOf(c.RemoteAddr()))
		if l.take(from) {
			return &sharedConn{Conn: c, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		_ = c.Close()
	}
}

func (l *shared) take(from netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from] >= ofNetwork {
		return false
	}
	l.open[from]++
	return true
}

func (l *shared) leave(from netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from]--; l.open[from] == 0 {
		delete(l.open, from)
	}
}

type sharedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *sharedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
