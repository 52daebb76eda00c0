// Package fairshare bounds what each network takes of a server that strangers reach, so that
// none keeps the others out: requests a second, and connections at once.
package fairshare

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
)

// Address is that of who is at ADDRESS:PORT.
func Address(at string) netip.Addr {
	p, _ := netip.ParseAddrPort(at)
	return p.Addr().Unmap().WithZone("")
}

// networkOf is what an address has its share with: IPv4 /24, IPv6 /56.
func networkOf(a netip.Addr) netip.Prefix {
	bits := 24
	if a.Is6() {
		bits = 56
	}
	p, _ := a.Prefix(bits)
	return p
}

// mostNetworks are kept in each of two generations; the older one is forgotten when the
// younger is full.
const mostNetworks = 1 << 14

// Rates bounds the requests a second of each network, in bounded memory.
type Rates struct {
	now   func() time.Time
	each  rate.Limit
	burst int

	mu         sync.Mutex
	young, old map[netip.Prefix]*network
}

type network struct {
	requests *rate.Limiter
	over     uint64
}

// NewRates gives each network so many requests a second, and after a rest burst at once.
func NewRates(now func() time.Time, perSecond, burst int) *Rates {
	return &Rates{now: now, each: rate.Limit(perSecond), burst: burst, young: map[netip.Prefix]*network{}}
}

// Allow reports whether the network of an address may have one more request answered, and
// how many of it were not.
func (r *Rates) Allow(a netip.Addr) (ok bool, over uint64) {
	p := networkOf(a)
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.young[p]
	if n == nil {
		if n = r.old[p]; n == nil {
			n = &network{requests: rate.NewLimiter(r.each, r.burst)}
		}
		if len(r.young) >= mostNetworks {
			r.old, r.young = r.young, map[netip.Prefix]*network{}
		}
		r.young[p] = n
	}
	if ok = n.requests.AllowN(r.now(), 1); !ok {
		n.over++
	}
	return ok, n.over
}

// Listen bounds the connections of a listener: most are open at once, and ofNetwork of one
// network, above which they are closed at once.
func Listen(l net.Listener, most, ofNetwork int) net.Listener {
	return &shared{Listener: netutil.LimitListener(l, most), share: ofNetwork, open: map[netip.Prefix]int{}}
}

type shared struct {
	net.Listener
	share int

	mu   sync.Mutex
	open map[netip.Prefix]int // connections by network
}

// Accept implements net.Listener.
func (l *shared) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := networkOf(Address(c.RemoteAddr().String()))
		if l.take(from) {
			return &sharedConn{Conn: c, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		_ = c.Close()
	}
}

func (l *shared) take(from netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from] >= l.share {
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
