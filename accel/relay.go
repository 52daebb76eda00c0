package accel

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Route says how a new connection goes on.
type Route struct {
	Tenant      string
	Next        []netip.AddrPort // relays to come, in order; none: the origin is next
	Transparent bool             // the origin is to see the client's address
	Congestion  string           // of all legs, the client's too; "" is the kernel's default
}

// Router looks up the route of a connection to an origin. It is asked once for each new
// connection, from many goroutines. An error refuses the connection.
type Router interface {
	Route(client, origin netip.AddrPort) (Route, error)
}

// Config is what a relay is made of.
type Config struct {
	Secret []byte     // shared by the relays of one operator
	Self   netip.Addr // this node's address, as the other nodes' routes name it
	Router Router     // nil: this relay is no ingress
	// Origin says whether this relay may open a leg to an origin for a tenant; nil: none.
	Origin func(tenant string, origin netip.AddrPort) error
	Limits Limits
	Log    *slog.Logger
	// Enter runs a function where clients' connections arrive: in the network namespace of
	// the intercepting device. Legs to an origin that sees the client's address begin there.
	Enter func(func() error) error

	// work is whose work a connection to an origin is; nil: nobody's.
	work func(tenant string, origin netip.AddrPort) *work

	// Shared is another relay of the process, whose limits and counters this one shares.
	Shared *Relay

	gone time.Duration // goneAfter, but for tests

	dialIn func(func() error) error // where all other legs begin; nil: where the process is
}

const (
	headerTimeout = 5 * time.Second
	claimTimeout  = 3 * time.Second // a SYN whose handshake does not end loses its leg
	lateSYN       = time.Second     // by which a SYN may be read after its connection was taken
)

// Relay relays connections until it is closed.
type Relay struct {
	cfg     Config
	pipes   pipes
	count   *counters
	nonces  nonces
	headers headers

	mu        sync.Mutex
	legs      map[ends]*leg // next legs of clients' connections, from the SYN to the end
	unclaimed int           // of them, those begun by a SYN whose connection is not complete
	live      map[conn]struct{}
	closed    bool
	work      sync.WaitGroup
	watch     sync.Once
	ctx       context.Context
	cancel    context.CancelFunc
}

// ends name a client's connection.
type ends struct{ client, origin netip.AddrPort }

// leg is the next leg of a connection, while it is opened and after.
type leg struct {
	done       chan struct{} // closed when the next three are valid
	conn       conn
	unanswered bool // the leg's SYN may be (awaitOrigin)
	err        error
	congestion string
	work       *work
	token      *use        // the connection's place under the limits
	timer      *time.Timer // ends a leg that no connection claims
	claimed    bool        // guarded by Relay.mu
}

// New returns a relay that does nothing yet: Serve gives it connections.
func New(cfg Config) (*Relay, error) {
	switch {
	case len(cfg.Secret) < 16:
		return nil, errors.New("the relays' secret has fewer than 16 bytes")
	case cfg.Log == nil:
		return nil, errors.New("a relay needs a logger")
	}
	if cfg.Enter == nil {
		cfg.Enter = func(f func() error) error { return f() }
	}
	if cfg.work == nil {
		cfg.work = func(string, netip.AddrPort) *work { return nil }
	}
	if cfg.dialIn == nil {
		cfg.dialIn = func(f func() error) error { return f() }
	}
	cfg.gone = cmp.Or(cfg.gone, goneAfter)
	r := &Relay{cfg: cfg, legs: map[ends]*leg{}, live: map[conn]struct{}{}}
	if cfg.Shared != nil {
		r.count = cfg.Shared.count
	} else {
		r.count = newCounters(cfg.Limits)
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Close resets all connections and waits until nothing runs.
func (r *Relay) Close() {
	r.mu.Lock()
	r.closed = true
	for c := range r.live {
		reset(c)
	}
	r.mu.Unlock()
	r.cancel()
	r.work.Wait()
	r.mu.Lock()
	for k, l := range r.legs {
		r.drop(k, l)
	}
	r.mu.Unlock()
	r.pipes.close()
}

// Serve takes clients' connections from a listener until it is closed: their local address
// is the origin's.
func (r *Relay) Serve(l *net.TCPListener) error { return r.accept(l, r.ingress) }

// ServeRelays takes other relays' legs from a listener until it is closed.
func (r *Relay) ServeRelays(l *net.TCPListener) error { return r.accept(l, r.onward) }

func (r *Relay) accept(l *net.TCPListener, handle func(*net.TCPConn)) error {
	r.watch.Do(func() { go r.endGone() })
	for {
		c, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			// Out of files or memory: the connections there are go on, and so does this one.
			r.cfg.Log.Warn("cannot take a connection", "err", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if !r.enter(c) {
			reset(c)
			return nil
		}
		go func() {
			defer r.leave(c)
			handle(c)
		}()
	}
}

// enter notes a connection, so that Close can end it.
func (r *Relay) enter(c conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.live[c] = struct{}{}
	r.work.Add(1)
	return true
}

func (r *Relay) leave(c conn) {
	c.Close()
	r.mu.Lock()
	delete(r.live, c)
	r.mu.Unlock()
	r.work.Done()
}

// SYN begins the next leg of a connection whose first SYN has been seen. Under a flood of
// SYNs, legs begin only with complete connections.
func (r *Relay) SYN(client, origin netip.AddrPort) {
	route, err := r.route(client, origin)
	if err != nil {
		return // the connection itself is told
	}
	if l := r.reserve(route, ends{client, origin}); l != nil {
		r.open(l, route, client, origin)
	}
}

// reserve notes a leg that is about to begin with a SYN; nil: it must not.
func (r *Relay) reserve(route Route, k ends) *leg {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.legs[k] != nil || r.unclaimed >= r.count.limits.Opening {
		return nil
	}
	l, err := r.newLeg(route, k.client, k.origin)
	if err != nil {
		return nil
	}
	r.legs[k] = l
	r.unclaimed++
	l.timer = time.AfterFunc(claimTimeout, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.drop(k, l)
	})
	return l
}

// drop forgets a leg that nobody claimed. Callers hold mu.
func (r *Relay) drop(k ends, l *leg) {
	if r.legs[k] == l && !l.claimed {
		delete(r.legs, k)
		r.unclaimed--
		go l.discard()
	}
}

func (l *leg) discard() {
	<-l.done
	if l.conn != nil {
		reset(l.conn)
	}
	l.release()
}

// release ends a leg's place under the limits.
func (l *leg) release() {
	l.work.hold(-1)
	l.token.release()
}

// claim returns the leg of a connection: the one that its SYN began, or a new one.
func (r *Relay) claim(client, origin netip.AddrPort) (*leg, error) {
	route, err := r.route(client, origin)
	if err != nil {
		return nil, err
	}
	l, begun, err := r.take(route, ends{client, origin})
	if err == nil && !begun {
		r.open(l, route, client, origin)
	}
	return l, err
}

// take claims a leg that a SYN has begun, or one that is to be opened.
func (r *Relay) take(route Route, k ends) (l *leg, begun bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l = r.legs[k]; l != nil && !l.claimed {
		l.claimed = true
		l.timer.Stop()
		r.unclaimed--
		return l, true, nil
	}
	if l, err = r.newLeg(route, k.client, k.origin); err != nil {
		return nil, false, err
	}
	l.claimed = true
	r.legs[k] = l
	return l, false, nil
}

// forget ends the memory of a connection that is over, a moment later: a SYN that is read
// late finds the leg there, and begins no second one.
func (r *Relay) forget(client, origin netip.AddrPort, l *leg) {
	time.AfterFunc(lateSYN, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if k := (ends{client, origin}); r.legs[k] == l {
			delete(r.legs, k)
		}
	})
}

func (r *Relay) route(client, origin netip.AddrPort) (Route, error) {
	if r.cfg.Router == nil {
		return Route{}, errors.New("this relay takes no clients' connections")
	}
	return r.cfg.Router.Route(client, origin)
}

// ingress handles a client's connection.
func (r *Relay) ingress(c *net.TCPConn) {
	client, origin := addrPort(c.RemoteAddr()), addrPort(c.LocalAddr())
	l, err := r.claim(client, origin)
	if err != nil {
		r.refuse(c, "a connection", client, origin, err)
		return
	}
	defer r.forget(client, origin, l)
	r.carry(c, l, client, origin)
}

// onward handles a leg from another relay.
func (r *Relay) onward(c *net.TCPConn) {
	_ = c.SetReadDeadline(time.Now().Add(headerTimeout))
	r.headers.enter(c)
	h, err := readHeader(c, r.cfg.Secret, r.cfg.Self)
	r.headers.leave(c)
	if err == nil && !r.nonces.add(h.nonce) {
		err = errors.New("the header has been used before")
	}
	if err == nil && len(h.next) == 0 {
		err = r.mayOpen(h)
	}
	if err != nil {
		r.refuse(c, "a leg of another relay", addrPort(c.RemoteAddr()), addrPort(c.LocalAddr()), err)
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	route := Route{Tenant: h.tenant, Next: h.next, Congestion: h.congestion}
	l, err := r.newLeg(route, h.client, h.origin)
	if err != nil {
		r.refuse(c, "a leg of another relay", h.client, h.origin, err)
		return
	}
	r.open(l, route, h.client, h.origin)
	r.carry(c, l, h.client, h.origin)
}

func (r *Relay) mayOpen(h *header) error {
	if r.cfg.Origin == nil {
		return errors.New("this relay opens no legs to origins")
	}
	return r.cfg.Origin(h.tenant, h.origin)
}

func (r *Relay) refuse(c conn, what string, client, origin netip.AddrPort, err error) {
	r.count.refused.Add(1)
	r.cfg.Log.Debug("refused "+what, "client", client, "origin", origin, "err", err)
	reset(c)
}

// newLeg is a leg that is not opened yet, under the limits of tenant and client.
func (r *Relay) newLeg(route Route, client, origin netip.AddrPort) (*leg, error) {
	work := r.cfg.work(route.Tenant, origin)
	work.add(synWork) // refused or not
	token, err := r.count.take(route.Tenant, client.Addr())
	if err != nil {
		return nil, err
	}
	work.hold(1)
	return &leg{done: make(chan struct{}), token: token, work: work, congestion: route.Congestion}, nil
}

// open opens a leg, and does not wait for the other end.
func (r *Relay) open(l *leg, route Route, client, origin netip.AddrPort) {
	if len(route.Next) > 0 {
		go func() {
			defer close(l.done)
			l.conn, l.err = r.openRelay(route, client, origin)
		}()
		return
	}
	defer close(l.done)
	where := r.cfg.dialIn
	if route.Transparent {
		where = r.cfg.Enter
	}
	l.unanswered = true
	l.err = where(func() (err error) {
		l.conn, err = beginOrigin(client, origin, route.Transparent, route.Congestion)
		return err
	})
}

func (r *Relay) openRelay(route Route, client, origin netip.AddrPort) (c conn, err error) {
	next := route.Next[0]
	h := &header{client: client, origin: origin, tenant: route.Tenant, next: route.Next[1:], congestion: route.Congestion}
	_, _ = rand.Read(h.nonce[:]) // never fails: crypto/rand ends the program instead
	first, err := h.encode(r.cfg.Secret, next.Addr())
	if err != nil {
		return nil, err
	}
	err = r.cfg.dialIn(func() (err error) {
		c, err = dialRelay(r.ctx, next, first, route.Congestion)
		return err
	})
	return c, err
}

// carry waits for the next leg and relays until both directions have ended.
func (r *Relay) carry(c *net.TCPConn, l *leg, client, origin netip.AddrPort) {
	<-l.done
	defer l.release()
	l.work.add(connectionWork)
	if l.err != nil {
		r.refuse(c, "a connection", client, origin, fmt.Errorf("open the next leg: %w", l.err))
		return
	}
	if !r.enter(l.conn) {
		reset(l.conn)
		return
	}
	defer r.leave(l.conn)
	if l.unanswered {
		if err := awaitOrigin(l.conn); err != nil {
			r.refuse(c, "a connection", client, origin, fmt.Errorf("open a leg to %s: %w", origin, err))
			return
		}
	}
	if err := setCongestion(c, l.congestion); err != nil {
		r.cfg.Log.Debug("the client's leg keeps its congestion control", "client", client, "err", err)
	}
	r.count.opened.Add(1)
	there := func(n int64) { l.token.tenant.there.Add(n); l.work.add(turnWork + n) }
	back := func(n int64) { l.token.tenant.back.Add(n); l.work.add(turnWork + n) }
	if err := r.pipes.join(c, l.conn, there, back); err != nil {
		r.count.reset.Add(1)
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return unmap(tcp.AddrPort())
}

// maxHeaders is how many connections may wait for their header at a time. It comes with the SYN
// or right behind the handshake: one more ends the wait of the one that has waited longest.
const maxHeaders = 256

// headers are the connections whose header has not come, in the order in which they came.
type headers struct {
	mu   sync.Mutex
	list []*net.TCPConn
}

func (h *headers) enter(c *net.TCPConn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.list) >= maxHeaders {
		reset(h.list[0])
		h.list = h.list[1:]
	}
	h.list = append(h.list, c)
}

func (h *headers) leave(c *net.TCPConn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.list, c); i >= 0 {
		h.list = slices.Delete(h.list, i, i+1)
	}
}
