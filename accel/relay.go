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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Route says how a new connection goes on.
type Route struct {
	Tenant      string
	Next        []netip.AddrPort // relays to come, in order; none: the origin is next
	Transparent bool             // the origin is to see the client's address
	Congestion  string           // of all legs, the client's too; "" is the kernel's default

	wait bool // the client is answered once the origin has answered
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

	// StepOut is where the relay may step out of connections; nil: nowhere.
	StepOut *StepOut

	// Shared is another relay of the process, whose limits and counters this one shares.
	Shared *Relay

	gone time.Duration // goneAfter, but for tests

	dialIn func(func() error) error // where all other legs begin; nil: where the process is
}

const (
	headerTimeout = 5 * time.Second
	claimTimeout  = 3 * time.Second // a SYN whose handshake does not end loses its leg
	standsFor     = time.Second     // how long a queue may keep a connection from its leg
	lateSYN       = time.Second     // by which a SYN may be read after its connection was taken
)

// Relay relays connections until it is closed.
type Relay struct {
	cfg     Config
	pipes   *pipes
	count   *counters
	nonces  nonces
	headers headers
	wait    atomic.Bool // answer clients once their origin has answered

	mu        sync.Mutex
	legs      map[ends]*leg // next legs of clients' connections, from the SYN to the end
	unclaimed int           // of them, those begun by a SYN whose connection is not complete
	waiting   int           // clients' connections that were taken and have no leg yet
	waiters   []waiter      // of them, those that found no place, the oldest first
	live      map[conn]struct{}
	closed    bool
	work      sync.WaitGroup
	watch     sync.Once
	ctx       context.Context
	cancel    context.CancelFunc
}

// ends name a client's connection.
type ends struct{ client, origin netip.AddrPort }

// waiter is a client's connection that waits for a place.
type waiter struct {
	conn
	ends
}

// leg is the next leg of a connection, while it is opened and after.
type leg struct {
	done        chan struct{} // closed when the next three are valid
	conn        conn
	unanswered  bool // the leg's SYN may be (awaitOrigin)
	segment     int  // the largest that the end before takes, bytes; 0: any
	transparent bool // it begins where clients' connections arrive, with the client's address
	err         error
	congestion  string
	work        *work
	token       *use        // the connection's place under the limits
	timer       *time.Timer // ends a leg that no connection claims
	claimed     bool        // guarded by Relay.mu, as the next one
	answered    time.Time   // when its client's SYN was; zero: not yet
	held        bool        // no connection is there before the leg is
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
	r.pipes = &r.count.pipes
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
	if r.cfg.Shared == nil {
		r.pipes.close()
	}
}

// Wait has clients' SYNs answered once the origin has answered, or at once again.
func (r *Relay) Wait(wait bool) {
	r.wait.Store(wait)
	r.count.wake()
}

// Serve takes the connections that are intercepted until the listener is closed: their local
// address is the origin's.
func (r *Relay) Serve(in *Interceptor) error {
	ended := make(chan struct{})
	defer close(ended)
	go r.hold(in, ended)
	return r.accept(in.Listener, clients, r.ingress)
}

// hold has SYNs held while they wait for origins, or for one of the last places.
func (r *Relay) hold(in *Interceptor, ended <-chan struct{}) {
	for {
		scarce, changed := r.count.scarcity()
		if hold := scarce || r.wait.Load(); hold != in.holds.Load() {
			if err := in.Hold(hold); err != nil && !errors.Is(err, net.ErrClosed) {
				r.cfg.Log.Warn("SYNs are answered as before", "hold", hold, "err", err)
			}
		}
		select {
		case <-changed:
		case <-ended:
			return
		}
	}
}

// ServeRelays takes other relays' legs from a listener until it is closed.
func (r *Relay) ServeRelays(l *net.TCPListener) error { return r.accept(l, relayed, r.onward) }

func (r *Relay) accept(l *net.TCPListener, who whose, handle func(*net.TCPConn)) error {
	r.watch.Do(func() { go r.endGone() })
	for {
		for !r.mayTake(l, who) { // what the kernel has answered waits there, and takes no file
			r.rest()
		}
		c, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			// The connections there are go on, and so does this one.
			if r.count.shortOf() {
				r.cfg.Log.Warn("cannot take more connections; until some end, new ones have to wait", "err", err)
			}
			r.rest()
			continue
		}
		if !r.enter(c) {
			reset(c)
			return nil
		}
		if who == clients {
			r.await(c, 1) // until ingress
		}
		go func() {
			defer r.leave(c)
			handle(c)
		}()
	}
}

// mayTake reports whether the next connection may be taken: there is room for one more, or it may
// be one that gets a place though others do not. Connections that got theirs with a SYN may stand
// behind any number of others. If one stands there for a while, the connection that has waited
// longest without a place makes room.
func (r *Relay) mayTake(l *net.TCPListener, who whose) bool {
	free, waiting := r.count.room(who)
	last, most := r.count.spare()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed || free > waiting:
		return true
	case who == relayed:
		return false
	case r.waiting < most:
		return last > 0 || r.unclaimed > 0
	}
	return r.stands() && hasQueue(l) && r.endOldest()
}

// stands reports whether a leg has been there for a while, and its answered client's connection
// has not come. Callers hold mu.
func (r *Relay) stands() bool {
	since := now().Add(-standsFor)
	for _, l := range r.legs {
		if !l.claimed && !l.answered.IsZero() && l.answered.Before(since) {
			return true
		}
	}
	return false
}

// hasQueue reports whether connections that nobody has taken are complete.
func hasQueue(l *net.TCPListener) (has bool) {
	raw, err := l.SyscallConn()
	if err != nil {
		return false
	}
	_ = control(raw, func(fd int) error {
		is, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		has = err == nil && is.Unacked > 0 // of a listener, the length of its queue
		return err
	})
	return has
}

// endOldest ends the wait of the connection that has waited longest without a place. Callers hold mu.
func (r *Relay) endOldest() bool {
	i := slices.IndexFunc(r.waiters, func(w waiter) bool { l := r.legs[w.ends]; return l == nil || l.claimed })
	if i < 0 {
		return false
	}
	reset(r.waiters[i].conn)
	r.waiters = slices.Delete(r.waiters, i, i+1)
	return true
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
	r.forgo(c)
}

func (r *Relay) forgo(c conn) {
	r.mu.Lock()
	delete(r.live, c)
	r.mu.Unlock()
	r.work.Done()
}

// SYN begins the next leg of a connection whose first SYN has been seen. Under a flood of
// SYNs, legs begin only with complete connections. One that is held is answered with its place
// and, where the relay waits for it, with its leg: a client that hears nothing asks again.
func (r *Relay) SYN(s SYN) {
	route, err := r.route(s.Client, s.Origin)
	if err != nil {
		return // the connection itself is told
	}
	k := ends{s.Client, s.Origin}
	l, flood := r.reserve(route, k, s.Answer != nil)
	if l != nil {
		l.segment = r.cfg.StepOut.segment(route, s.Origin, s.Segment)
		r.open(l, route, s.Client, s.Origin)
	}
	switch {
	case s.Answer == nil:
	case l == nil && flood, l != nil && !route.wait:
		s.Answer(nil)
	case l != nil:
		go r.settle(s, k, l)
	}
}

// settle answers a SYN as its leg has been answered.
func (r *Relay) settle(s SYN, k ends, l *leg) {
	<-l.done
	if l.err == nil {
		r.mu.Lock()
		l.answered = now()
		r.mu.Unlock()
		l.timer.Reset(claimTimeout)
		s.Answer(nil)
		return
	}
	r.lacking(l.err)
	r.mu.Lock()
	r.drop(k, l)
	r.mu.Unlock()
	r.cfg.Log.Debug("an origin is not there", "client", k.client, "origin", k.origin, "err", l.err)
	s.Answer(l.err)
}

// reserve notes a leg that is about to begin with a SYN; nil: it must not. In a flood while
// there are places, the kernel may answer without one.
func (r *Relay) reserve(route Route, k ends, held bool) (l *leg, flood bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	opening, scarce := r.count.opening()
	switch {
	case r.closed || r.legs[k] != nil:
		return nil, false
	case r.unclaimed >= opening:
		return nil, !scarce
	}
	r.cfg.work(route.Tenant, k.origin).add(synWork) // refused or not
	token, err := r.count.take(route.Tenant, k.client.Addr())
	if err != nil {
		return nil, false
	}
	l = r.newLeg(route, k.origin, token)
	l.held = held
	r.legs[k] = l
	r.unclaimed++
	until := claimTimeout
	if route.wait {
		until += answerTimeout
	} else {
		l.answered = now()
	}
	l.timer = time.AfterFunc(until, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.drop(k, l)
	})
	return l, false
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

// claim returns the leg of a connection: the one that its SYN began, or a new one. Whom the
// kernel has answered waits for a place.
func (r *Relay) claim(c conn, route Route, k ends) (*leg, error) {
	for {
		l, begun, err := r.take(c, route, k)
		if l != nil && !begun {
			r.cfg.work(route.Tenant, k.origin).add(synWork)
			l.segment = r.cfg.StepOut.segment(route, k.origin, segmentTo(c))
			r.open(l, route, k.client, k.origin)
		}
		if l != nil {
			return l, nil
		}
		if r.rest(); r.ctx.Err() != nil || hasEnded(c) {
			r.cfg.work(route.Tenant, k.origin).add(synWork)
			return nil, err
		}
	}
}

// take claims the leg that a SYN has begun, else one that is to be opened if there is a place.
func (r *Relay) take(c conn, route Route, k ends) (l *leg, begun bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.waiters, func(w waiter) bool { return w.conn == c })
	if l = r.legs[k]; l != nil && !l.claimed {
		l.timer.Stop()
		r.unclaimed--
		begun = true
	} else {
		token, err := r.count.take(route.Tenant, k.client.Addr())
		if err != nil {
			if i < 0 {
				r.waiters = append(r.waiters, waiter{c, k})
			}
			return nil, false, err
		}
		l = r.newLeg(route, k.origin, token)
		r.legs[k] = l
	}
	if l.claimed = true; i >= 0 {
		r.waiters = slices.Delete(r.waiters, i, i+1)
	}
	return l, begun, nil
}

// await counts a client's connection until it has its leg, or gets none.
func (r *Relay) await(c conn, n int) {
	r.count.wait(clients, n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting += n
	r.waiters = slices.DeleteFunc(r.waiters, func(w waiter) bool { return w.conn == c })
}

// place waits for a place for a leg of another relay.
func (r *Relay) place(c conn, route Route, k ends) (token *use, err error) {
	r.cfg.work(route.Tenant, k.origin).add(synWork)
	r.count.wait(relayed, 1)
	defer r.count.wait(relayed, -1)
	for {
		token, err = r.count.takeLast(route.Tenant, k.client.Addr())
		if err == nil || r.ctx.Err() != nil || hasEnded(c) {
			return token, err
		}
		r.rest()
	}
}

// hasEnded reports whether a connection is over: one end has reset it, or its client has closed
// it before it sent anything. A client that has sent a request may close its direction and wait.
func hasEnded(c conn) (ended bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	err = control(raw, func(fd int) error {
		is := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, _ := unix.Poll(is, 0); n <= 0 {
			return nil
		}
		if ended = is[0].Revents != unix.POLLRDHUP; ended {
			return nil
		}
		unread, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
		ended = unread == 0
		return err
	})
	return ended || err != nil
}

// forget ends the memory of a connection that is over, a moment later: a SYN that is read
// late finds the leg there, and begins no second one. One that was held has been read.
func (r *Relay) forget(k ends, l *leg) {
	forget := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.legs[k] == l {
			delete(r.legs, k)
		}
	}
	if l.held {
		forget()
		return
	}
	time.AfterFunc(lateSYN, forget)
}

func (r *Relay) route(client, origin netip.AddrPort) (Route, error) {
	if r.cfg.Router == nil {
		return Route{}, errors.New("this relay takes no clients' connections")
	}
	route, err := r.cfg.Router.Route(client, origin)
	route.wait = r.wait.Load()
	return route, err
}

// ingress handles a client's connection.
func (r *Relay) ingress(c *net.TCPConn) {
	k := ends{addrPort(c.RemoteAddr()), addrPort(c.LocalAddr())}
	if raw, err := c.SyscallConn(); err == nil {
		_ = control(raw, noFilter)
	}
	route, err := r.route(k.client, k.origin)
	var l *leg
	if err == nil {
		l, err = r.claim(c, route, k)
	}
	r.await(c, -1)
	if err != nil {
		r.refuse(c, "a connection", k, err)
		return
	}
	defer r.forget(k, l)
	r.carry(c, l, route, k)
}

// onward handles a leg from another relay.
func (r *Relay) onward(c *net.TCPConn) {
	_ = c.SetReadDeadline(now().Add(headerTimeout))
	r.headers.enter(c, r.count.headersAtOnce())
	h, err := readHeader(c, r.cfg.Secret, r.cfg.Self)
	r.headers.leave(c)
	if err == nil && !r.nonces.add(h.nonce) {
		err = errors.New("the header has been used before")
	}
	if err == nil && len(h.next) == 0 {
		err = r.mayOpen(h)
	}
	if err != nil {
		r.refuse(c, "a leg of another relay", ends{addrPort(c.RemoteAddr()), addrPort(c.LocalAddr())}, err)
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	route, k := Route{Tenant: h.tenant, Next: h.next, Congestion: h.congestion, wait: h.wait}, ends{h.client, h.origin}
	token, err := r.place(c, route, k)
	if err != nil {
		r.refuse(c, "a leg of another relay", k, err)
		return
	}
	l := r.newLeg(route, k.origin, token)
	l.segment = r.cfg.StepOut.segment(route, k.origin, segmentTo(c))
	r.open(l, route, k.client, k.origin)
	if h.wait && !r.tell(c, l, h.nonce) {
		r.count.refused.Add(1)
		l.release()
		return
	}
	r.carry(c, l, route, k)
}

// tell says to the relay before whether the origin has answered.
func (r *Relay) tell(c *net.TCPConn, l *leg, nonce [nonceSize]byte) (answered bool) {
	<-l.done
	r.lacking(l.err)
	_, err := c.Write(encodeAnswer(l.err, nonce))
	_ = c.SetLinger(-1) // the answer arrives; join resets what ends otherwise
	if l.err == nil && err != nil {
		reset(l.conn)
	}
	return l.err == nil && err == nil
}

func (r *Relay) mayOpen(h *header) error {
	if r.cfg.Origin == nil {
		return errors.New("this relay opens no legs to origins")
	}
	return r.cfg.Origin(h.tenant, h.origin)
}

func (r *Relay) refuse(c conn, what string, k ends, err error) {
	r.count.refused.Add(1)
	r.cfg.Log.Debug("refused "+what, "client", k.client, "origin", k.origin, "err", err)
	reset(c)
}

// newLeg is a leg that is not opened yet, with its place.
func (r *Relay) newLeg(route Route, origin netip.AddrPort, token *use) *leg {
	work := r.cfg.work(route.Tenant, origin)
	work.hold(1)
	return &leg{done: make(chan struct{}), token: token, work: work, congestion: route.Congestion}
}

// open opens a leg, and does not wait for the other end.
func (r *Relay) open(l *leg, route Route, client, origin netip.AddrPort) {
	if len(route.Next) == 0 && !route.wait {
		r.dial(l, route, client, origin)
		close(l.done)
		return
	}
	go func() {
		defer close(l.done)
		r.dial(l, route, client, origin)
	}()
}

// dial opens a leg. Where the next relay is not there, the ingress goes on without relays.
func (r *Relay) dial(l *leg, route Route, client, origin netip.AddrPort) {
	if len(route.Next) > 0 {
		l.conn, l.err = r.openRelay(route, l.segment, client, origin)
		if l.err == nil || isAnswer(l.err) || isShort(l.err) || r.cfg.Router == nil || r.ctx.Err() != nil {
			return
		}
		r.cfg.Log.Debug("a connection goes on without relays", "client", client, "origin", origin, "err", l.err)
		route.Next, route.Transparent = nil, true
	}
	where := r.cfg.dialIn
	if l.transparent = route.Transparent; l.transparent {
		where = r.cfg.Enter
	}
	l.err = where(func() (err error) {
		l.conn, err = beginOrigin(client, origin, route.Transparent, legOptions{route.Congestion, l.segment})
		return err
	})
	if l.unanswered = l.err == nil && !route.wait; l.err != nil || !route.wait {
		return
	}
	if l.err = net.ErrClosed; r.enter(l.conn) {
		l.err = awaitOrigin(l.conn)
		r.forgo(l.conn)
	}
	if l.err != nil {
		reset(l.conn)
		l.conn = nil
	}
}

// openRelay opens a leg to the next relay, and waits for its answer where the route does.
func (r *Relay) openRelay(route Route, segment int, client, origin netip.AddrPort) (c conn, err error) {
	next := route.Next[0]
	h := &header{client: client, origin: origin, tenant: route.Tenant, next: route.Next[1:], congestion: route.Congestion, wait: route.wait}
	_, _ = rand.Read(h.nonce[:]) // never fails: crypto/rand ends the program instead
	first, err := h.encode(r.cfg.Secret, next.Addr())
	if err != nil {
		return nil, err
	}
	err = r.cfg.dialIn(func() (err error) {
		c, err = dialRelay(r.ctx, next, first, legOptions{route.Congestion, segment})
		return err
	})
	if err != nil && !isShort(err) {
		return nil, fmt.Errorf("open a leg to relay %s: %v", next, err) // no origin's refusal
	}
	if err != nil || !route.wait {
		return c, err
	}
	if err := readAnswer(c, h.nonce); err != nil {
		reset(c)
		return nil, fmt.Errorf("relay %s: %w", next, err)
	}
	return c, nil
}

// isShort reports whether it is the process or the machine that lacks something.
func isShort(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}

// lacking has new connections wait where one has failed for want of a file.
func (r *Relay) lacking(err error) bool {
	if !isShort(err) {
		return false
	}
	if r.count.shortOf() {
		r.cfg.Log.Warn("cannot open more legs; until some end, new connections have to wait", "err", err)
	}
	return true
}

// carry waits for the next leg and relays until both directions have ended.
func (r *Relay) carry(c *net.TCPConn, l *leg, route Route, k ends) {
	<-l.done
	defer l.release()
	l.work.add(connectionWork)
	for r.lacking(l.err) && r.ctx.Err() == nil && !hasEnded(c) {
		r.rest()
		r.dial(l, route, k.client, k.origin)
	}
	if l.err != nil {
		r.refuse(c, "a connection", k, fmt.Errorf("open the next leg: %w", l.err))
		return
	}
	if !r.enter(l.conn) {
		reset(l.conn)
		return
	}
	defer r.leave(l.conn)
	if l.unanswered {
		if err := awaitOrigin(l.conn); err != nil {
			r.refuse(c, "a connection", k, fmt.Errorf("open a leg to %s: %w", k.origin, err))
			return
		}
	}
	if err := setCongestion(c, l.congestion); err != nil {
		r.cfg.Log.Debug("the client's leg keeps its congestion control", "client", k.client, "err", err)
	}
	r.count.opened.Add(1)
	there := func(n int64) { l.token.tenant.there.Add(n); l.work.add(turnWork + n) }
	back := func(n int64) { l.token.tenant.back.Add(n); l.work.add(turnWork + n) }
	out := r.stepper(c, l, route, k, there, back)
	if err := r.pipes.join(c, l.conn, out.connection(), out.there, out.back); !out.end() && err != nil {
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

// maxHeaders is how many connections may wait for their header at a time, where there are files.
const maxHeaders = 256

// headers are the connections whose header has not come, in the order in which they came.
type headers struct {
	mu   sync.Mutex
	list []*net.TCPConn
}

func (h *headers) enter(c *net.TCPConn, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.list) >= most {
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
