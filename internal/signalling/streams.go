package signalling

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/onpath/onpath/signal/gist"
)

// Bounds of connections. What is taken from one network is bounded as well. Where there are too
// many, the network that has most loses one: a peer can have this machine open some, too.
const (
	maxStreams   = 128      // that others opened, and as many that this machine opened
	streamsOfOne = 8        // of one address, or of one /64
	maxQueued    = 64 << 10 // octets that wait for one peer
	// connectPatience is how long this machine tries to connect.
	connectPatience = 3 * time.Second
	// How many messages are taken by all connections together, a second.
	messagesTaken = 500
)

// StreamsConfig is what Streams need.
type StreamsConfig struct {
	// Listener takes connections; nil: none are taken.
	Listener net.Listener
	// In calls do where connections are to be made; nil: here.
	In func(do func() error) error
	// Take is told of each message, Ended of each connection that ended, or could not be made.
	Take  func(gist.Packet)
	Ended func(remote netip.AddrPort, failed bool)
	// Patience is what a peer has for its first message, for the rest of one that has begun, and
	// to take what is sent; Hold is what it may be silent. 0: as RFC 5971 says, and 5 s.
	Patience, Hold time.Duration
}

// Streams are the TCP connections of signalling (RFC 5971 §5.4).
type Streams struct {
	StreamsConfig
	ctx  context.Context
	rate *rate.Limiter
	wg   sync.WaitGroup

	mu   sync.Mutex
	open map[streamKey]*stream
}

// streamKey names a connection: whoever opens one from a peer's port has not that peer's.
type streamKey struct {
	remote  netip.AddrPort
	dialled bool
}

type stream struct {
	key    streamKey
	send   chan []byte
	done   chan struct{} // closed: it is to end
	queued int
	heard  time.Time
	conn   net.Conn // nil: it is not made yet
}

// NewStreams makes them; they end with ctx, and Wait waits for that.
func NewStreams(ctx context.Context, c StreamsConfig) *Streams {
	s := &Streams{StreamsConfig: c, ctx: ctx, rate: rate.NewLimiter(messagesTaken, messagesTaken/4), open: map[streamKey]*stream{}}
	s.Patience, s.Hold = cmp.Or(s.Patience, 5*time.Second), cmp.Or(s.Hold, gist.Hold)
	if s.In == nil {
		s.In = func(do func() error) error { return do() }
	}
	if s.Listener != nil {
		s.wg.Go(s.accept)
	}
	context.AfterFunc(ctx, func() {
		if s.Listener != nil {
			s.Listener.Close()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range s.open {
			s.end(c)
		}
	})
	return s
}

// Wait waits until all has ended.
func (s *Streams) Wait() { s.wg.Wait() }

func (s *Streams) accept() {
	for s.ctx.Err() == nil {
		conn, err := s.Listener.Accept()
		if err != nil {
			select {
			case <-s.ctx.Done():
			case <-time.After(100 * time.Millisecond): // as when there are too many files
			}
			continue
		}
		remote := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
		remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
		c := s.add(streamKey{remote, false}, conn)
		if c == nil {
			conn.Close()
			continue
		}
		s.wg.Go(func() { s.serve(c, s.Patience) })
	}
}

// add keeps a connection, if there may be one more.
func (s *Streams) add(k streamKey, conn net.Conn) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || !s.room(k) {
		return nil
	}
	c := &stream{key: k, send: make(chan []byte, 64), done: make(chan struct{}), heard: clock(), conn: conn}
	s.open[k] = c
	return c
}

// room makes room for one more connection, if it may. Callers hold mu.
func (s *Streams) room(k streamKey) bool {
	all, by := 0, map[netip.Prefix]int{}
	for o := range s.open {
		if o.dialled == k.dialled {
			all++
			by[network(o.remote.Addr())]++
		}
	}
	own := by[network(k.remote.Addr())]
	switch {
	case !k.dialled && own >= streamsOfOne:
		return false
	case all < maxStreams:
		return true
	}
	var oldest *stream
	for _, c := range s.open {
		if n := by[network(c.key.remote.Addr())]; c.key.dialled != k.dialled || n <= own+1 {
			continue
		} else if most := 0; oldest != nil {
			most = by[network(oldest.key.remote.Addr())]
			if n < most || n == most && c.heard.After(oldest.heard) {
				continue
			}
		}
		oldest = c
	}
	if oldest == nil {
		return false
	}
	s.end(oldest)
	return true
}

// network is what one peer can have all addresses of.
func network(a netip.Addr) netip.Prefix {
	p, _ := a.Prefix(min(a.BitLen(), 64))
	return p
}

// end ends a connection; its goroutines say so. Callers hold mu.
func (s *Streams) end(c *stream) {
	if s.open[c.key] != c {
		return
	}
	delete(s.open, c.key)
	close(c.done)
	if c.conn != nil {
		c.conn.Close()
	}
}

func (s *Streams) finish(c *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(c)
}

// End ends the connection that a peer opened.
func (s *Streams) End(remote netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.open[streamKey{remote, false}]; c != nil {
		s.end(c)
	}
}

// Send sends a message by a connection, which is made if it may be. A peer for which too much
// waits loses it.
func (s *Streams) Send(d *gist.Datagram) {
	s.mu.Lock()
	c := s.open[streamKey{d.To, false}]
	if d.Dial || c == nil {
		c = s.open[streamKey{d.To, true}]
	}
	s.mu.Unlock()
	if c == nil && d.Dial {
		if c = s.add(streamKey{d.To, true}, nil); c == nil {
			s.wg.Go(func() { s.Ended(d.To, true) })
			return
		}
		s.wg.Go(func() { s.connect(c, d.From) })
	}
	if c == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.queued+len(d.Payload) > maxQueued {
		s.end(c)
		return
	}
	select {
	case c.send <- d.Payload:
		c.queued += len(d.Payload)
	default:
		s.end(c)
	}
}

// connect opens a connection by an address of this machine.
func (s *Streams) connect(c *stream, from netip.Addr) {
	d := net.Dialer{Timeout: connectPatience}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	var conn net.Conn
	err := s.In(func() (err error) {
		conn, err = d.DialContext(s.ctx, "tcp", c.key.remote.String())
		return err
	})
	s.mu.Lock()
	ended := s.open[c.key] != c
	if err == nil && !ended {
		c.conn = conn
	}
	s.mu.Unlock()
	if err != nil || ended {
		if err == nil {
			conn.Close()
		}
		s.finish(c)
		s.Ended(c.key.remote, true)
		return
	}
	s.serve(c, s.Hold)
}

// serve reads and writes until the connection ends. Who is silent, or slow, is ended.
func (s *Streams) serve(c *stream, first time.Duration) {
	s.wg.Go(func() {
		defer s.finish(c)
		s.write(c)
	})
	s.read(c, first)
	s.finish(c)
	s.Ended(c.key.remote, false)
}

func (s *Streams) write(c *stream) {
	for {
		select {
		case <-c.done:
			return
		case b := <-c.send:
			if c.conn.SetWriteDeadline(clock().Add(s.Patience)) != nil {
				return
			}
			if _, err := c.conn.Write(b); err != nil {
				return
			}
			s.mu.Lock()
			c.queued -= len(b)
			s.mu.Unlock()
		}
	}
}

func (s *Streams) read(c *stream, wait time.Duration) {
	local, _ := netip.ParseAddrPort(c.conn.LocalAddr().String())
	header := make([]byte, 8)
	for {
		if c.conn.SetReadDeadline(clock().Add(wait)) != nil {
			return
		}
		if _, err := io.ReadFull(c.conn, header[:1]); err != nil {
			return
		}
		if c.conn.SetReadDeadline(clock().Add(s.Patience)) != nil {
			return
		}
		if _, err := io.ReadFull(c.conn, header[1:]); err != nil {
			return
		}
		length := gist.StreamLength(header)
		if header[0] != gist.Version || length > gist.MaxStreamMessage {
			return // where the next message begins cannot be told
		}
		b := make([]byte, length)
		copy(b, header)
		if _, err := io.ReadFull(c.conn, b[8:]); err != nil {
			return
		}
		if s.rate.Wait(s.ctx) != nil {
			return
		}
		s.mu.Lock()
		c.heard = clock()
		s.mu.Unlock()
		s.Take(gist.Packet{From: c.key.remote, To: netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), Payload: b, Stream: true})
		wait = s.Hold
	}
}
