package session

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/onpath/onpath"
)

// Options of a node's end.
type Options struct {
	// Connect opens an authenticated connection to the server
	// (client.Client.Dial).
	Connect func(ctx context.Context) (net.Conn, error)
	// Hello is asked for at every connection, so that it says what is so then.
	Hello  func() onpath.NodeHello
	Logger *slog.Logger // default: none
	Clock  onpath.Clock // default: the machine's
}

// Handler does what the server asks.
type Handler interface {
	// Plan is called with each new plan, one after another; a plan that a
	// newer one overtook is left out. ctx ends with Dial's, not with the session.
	Plan(ctx context.Context, p *onpath.NodePlan)
	// Serve does one operation: it reads what the caller sends from stream and
	// writes the answer to it. ctx ends when the caller has lost interest. The
	// error, best an *onpath.Error, becomes the caller's.
	Serve(ctx context.Context, op onpath.NodeOp, request json.RawMessage, stream io.ReadWriteCloser) error
}

// The wait before the next attempt to connect: doubled from first to longest,
// and shortened by up to half at random, so that nodes do not come in step.
const (
	backoffFirst   = 50 * time.Millisecond
	backoffLongest = 2 * time.Second
	backoffRefused = 10 * time.Second // after a refusal, which the next attempt hardly changes
	// While another agent has the node's name, which somebody must see to.
	backoffRival        = time.Second
	backoffRivalLongest = 30 * time.Second
)

// backoff is how long a node has waited.
type backoff struct {
	wait, rival time.Duration
}

// next is how long to wait before the next attempt, after a session that lasted so
// long, 0 if there was none, and ended so.
func (b *backoff) next(lasted time.Duration, err error) time.Duration {
	if lasted > 0 {
		b.wait = 0
	}
	if lasted > 2*backoffRivalLongest {
		b.rival = 0
	}
	switch onpath.CodeOf(err) {
	case onpath.CodeForbidden:
		return backoffRefused
	case onpath.CodeExists, onpath.CodeConflict:
		b.rival = min(max(backoffRival, 2*b.rival), backoffRivalLongest)
		return b.rival
	}
	b.wait = min(max(backoffFirst, 2*b.wait), backoffLongest)
	return b.wait
}

// maxEvents is how many events wait for a server that is away; older ones go.
const maxEvents = 1000

// Session is the node's end; it connects, and connects again, until Dial's
// context ends. It is safe for concurrent use.
type Session struct {
	o       Options
	handler Handler
	agent   string // tells this process from others of the node's name
	plans   *latestPlan
	done    chan struct{}

	mu        sync.Mutex
	connected bool
	report    *onpath.NodeReport // to be sent
	events    []onpath.NodeEvent // to be sent
	wake      chan struct{}      // something is to be sent
}

// Dial begins a session and returns at once.
func Dial(ctx context.Context, o Options, h Handler) *Session {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	s := &Session{o: o, handler: h, agent: crand.Text(), plans: newLatestPlan(), done: make(chan struct{}), wake: make(chan struct{}, 1)}
	go func() {
		defer close(s.done)
		var wg sync.WaitGroup
		wg.Go(func() { s.plans.run(ctx, h.Plan) })
		s.keep(ctx)
		wg.Wait()
	}()
	return s
}

// Done is closed when the session has ended for good and no handler runs.
func (s *Session) Done() <-chan struct{} { return s.done }

// Connected reports whether the server has welcomed the node and not gone since.
func (s *Session) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected
}

// Report sends a report. It never waits; a report that could not be sent yet is
// replaced.
func (s *Session) Report(r onpath.NodeReport) {
	s.mu.Lock()
	s.report = &r
	s.mu.Unlock()
	s.signal()
}

// Event sends an event, later if the server is away.
func (s *Session) Event(e onpath.NodeEvent) {
	s.mu.Lock()
	if s.events = append(s.events, e); len(s.events) > maxEvents {
		s.events = s.events[1:]
	}
	s.mu.Unlock()
	s.signal()
}

func (s *Session) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// keep connects, again and again.
func (s *Session) keep(ctx context.Context) {
	var pause backoff
	said := ""
	for ctx.Err() == nil {
		lasted, err := s.once(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case lasted > 0:
			said = ""
			s.o.Logger.Warn("the session with the server ended", "error", err)
		case err.Error() != said: // once, not every two seconds
			said = err.Error()
			s.o.Logger.Warn("no session with the server", "error", err)
		}
		wait := pause.next(lasted, err)
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
		case <-ctx.Done():
		}
	}
}

// once connects and serves one session to its end; lasted is 0 if there was none.
func (s *Session) once(ctx context.Context) (lasted time.Duration, err error) {
	dctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := s.o.Connect(dctx)
	if err != nil {
		return 0, err
	}
	if raw, err = Upgrade(dctx, raw, http.MethodGet, Path, Protocol); err != nil {
		return 0, err
	}
	defer raw.Close()
	mux, err := yamux.Client(raw, muxConfig(s.o.Logger))
	if err != nil {
		return 0, err
	}
	defer mux.Close()
	stop := context.AfterFunc(ctx, func() { _ = mux.Close() })
	defer stop()
	up, err := s.greet(mux)
	if err != nil {
		return 0, err
	}
	s.setConnected(true)
	defer s.setConnected(false)
	s.o.Logger.Info("connected to the server")
	began := time.Now()
	err = s.serve(ctx, mux, up)
	return max(time.Since(began), 1), err
}

func (s *Session) setConnected(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected = yes
}

func (s *Session) greet(mux *yamux.Session) (*yamux.Stream, error) {
	late := time.AfterFunc(handshakeTimeout, func() { _ = mux.Close() })
	defer late.Stop()
	up, err := mux.OpenStream()
	if err != nil {
		return nil, err
	}
	hello := s.o.Hello()
	m := upMessage{Time: s.o.Clock(), Agent: s.agent, Expands: true, Hello: &hello}
	err = send(up, m)
	if errors.Is(err, errTooLarge) && hello.Plan != nil { // older servers read no compact plan, and send none so large
		hello.Plan, _ = hello.Plan.Compact()
		err = send(up, m)
	}
	if err != nil {
		return nil, fmt.Errorf("hello: %w", err)
	}
	var w welcome
	if err := receive(up, &w); err != nil {
		return nil, fmt.Errorf("hello: %w", err)
	}
	if w.Error != nil {
		return nil, w.Error
	}
	return up, nil
}

// serve runs the session's streams until one of them breaks.
func (s *Session) serve(ctx context.Context, mux *yamux.Session, up *yamux.Stream) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer mux.Close()
	down, err := mux.AcceptStream()
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	calls := &calls{cancels: map[uint64]context.CancelFunc{}}
	wg.Go(func() { failed <- s.speak(up, mux.CloseChan()) })
	wg.Go(func() { failed <- s.listen(down, calls) })
	wg.Go(func() {
		for {
			stream, err := mux.AcceptStream()
			if err != nil {
				failed <- err
				return
			}
			wg.Go(func() { s.answer(ctx, stream, calls) })
		}
	})
	return <-failed
}

// speak sends reports and events. What could not be sent stays for the next
// session: an event may come twice, but is not lost.
func (s *Session) speak(up *yamux.Stream, closed <-chan struct{}) error {
	s.signal() // what waited for this session
	for {
		select {
		case <-s.wake:
		case <-closed:
			return errors.New("the connection is lost")
		}
		s.mu.Lock()
		report, events := s.report, s.events
		s.report, s.events = nil, nil
		s.mu.Unlock()
		for i := range events {
			if err := send(up, upMessage{Time: s.o.Clock(), Event: &events[i]}); err != nil {
				s.mu.Lock()
				s.events = append(events[i:len(events):len(events)], s.events...)
				s.mu.Unlock()
				return err
			}
		}
		if report == nil {
			continue
		}
		if err := send(up, upMessage{Time: s.o.Clock(), Report: report}); err != nil {
			return err // the next hello carries a newer one
		}
	}
}

func (s *Session) listen(down *yamux.Stream, calls *calls) error {
	for {
		var m downMessage
		if err := receive(down, &m); err != nil {
			return err
		}
		if m.Plan != nil {
			if err := m.Plan.Expand(); err != nil {
				return err
			}
			s.plans.set(m.Plan)
		}
		if m.Cancel != 0 {
			calls.cancel(m.Cancel)
		}
		if m.End != nil {
			return m.End
		}
	}
}
