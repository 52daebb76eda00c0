package measure

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Target is one node to ask.
type Target struct {
	Name    string
	Address netip.AddrPort
	// Connect takes the time of a TCP handshake, for what does not speak STAMP.
	Connect bool
	Every   time.Duration // between two questions
	Change  float64       // of the round trip from which on Told is called; 0.1: 10 %
}

const (
	// MinEvery and MaxEvery bound how often a pair is asked.
	MinEvery = 100 * time.Millisecond
	MaxEvery = time.Hour
	// answerTimeout is when a question counts as lost; later answers are dropped.
	answerTimeout = 2 * time.Second
)

// Sender asks targets and tells what is news.
type Sender struct {
	conn    *net.UDPConn
	request []byte
	reply   []byte
	o       SenderOptions

	mu      sync.Mutex
	targets map[string]*target
	waiting map[packetID]question
	closed  bool
	work    sync.WaitGroup
}

type target struct {
	Target
	series Series
	timer  *time.Timer
	next   uint32 // sequence number
}

// packetID names a packet of a session: each target is asked in a session of its own, with
// numbers from 0 (RFC 8762 §4.1.1).
type packetID struct {
	to       netip.AddrPort
	sequence uint32
}

type question struct {
	target *target
	sent   time.Time
	timer  *time.Timer
}

// SenderOptions are what a Sender needs.
type SenderOptions struct {
	From   netip.Addr // address of this node
	Secret []byte     // shared by the operator's nodes
	// Told hears of news from one goroutine at a time. It must not block, and must not
	// call the Sender.
	Told func(name string, v Value)
	// Enter runs a function in the network namespace of From; nil: it is the process's.
	Enter func(func() error) error
}

// NewSender asks nobody until Set. It is called in the namespace of From.
func NewSender(o SenderOptions) (*Sender, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(o.From, 0)))
	if err != nil {
		return nil, fmt.Errorf("measure from %s: %w", o.From, err)
	}
	if o.Enter == nil {
		o.Enter = func(f func() error) error { return f() }
	}
	s := &Sender{conn: conn, request: requestKey(o.Secret), reply: replyKey(o.Secret), o: o,
		targets: map[string]*target{}, waiting: map[packetID]question{}}
	s.work.Go(s.read)
	return s, nil
}

// Close ends all questions.
func (s *Sender) Close() error {
	s.Set(nil)
	s.mu.Lock()
	s.closed = true
	for _, q := range s.waiting {
		q.timer.Stop()
	}
	clear(s.waiting)
	s.mu.Unlock()
	err := s.conn.Close()
	s.work.Wait()
	return err
}

// Set replaces all targets. A target of the same name and address keeps what was measured.
func (s *Sender) Set(list []Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	old := maps.Clone(s.targets)
	clear(s.targets)
	for i, want := range list {
		want.Every = min(max(want.Every, MinEvery), MaxEvery)
		t := old[want.Name]
		if t == nil || t.Address != want.Address {
			t = &target{}
			// Targets are asked one after the other, and not all at once.
			first := want.Every * time.Duration(i) / time.Duration(len(list)) / 8
			t.timer = time.AfterFunc(first, func() { s.ask(t) })
		} else {
			delete(old, want.Name)
		}
		t.Target = want
		s.targets[want.Name] = t
	}
	for _, t := range old {
		t.timer.Stop()
	}
}

func (s *Sender) ask(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.targets[t.Name] != t {
		return
	}
	t.timer.Reset(t.Every)
	if t.Connect {
		s.work.Go(func() { s.connect(t) })
		return
	}
	id, now := packetID{t.Address, t.next}, time.Now()
	t.next++
	if old, ok := s.waiting[id]; ok { // of a target that has gone and come again
		old.timer.Stop()
	}
	s.waiting[id] = question{t, now, time.AfterFunc(answerTimeout, func() { s.lost(id) })}
	// A packet that cannot be sent is as lost as one that is dropped on the way.
	_, _ = s.conn.WriteToUDPAddrPort(request{sequence: id.sequence, sent: ntp(now)}.encode(s.request), t.Address)
}

// connect takes the time of a handshake and resets the connection. A refusal is an answer: it
// says nothing about the way but that it was passed.
func (s *Sender) connect(t *target) {
	var x Sample
	err := s.o.Enter(func() error {
		d := net.Dialer{Timeout: answerTimeout, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.o.From, 0))}
		start := time.Now()
		c, err := d.Dial("tcp", t.Address.String())
		x.RTT = time.Since(start)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		if err != nil {
			return err
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		return c.Close()
	})
	if err != nil {
		x = Sample{Lost: true}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(t, x)
}

func (s *Sender) lost(id packetID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q, ok := s.waiting[id]; ok {
		delete(s.waiting, id)
		s.take(q.target, Sample{Lost: true})
	}
}

// take adds a sample. Callers hold mu.
func (s *Sender) take(t *target, x Sample) {
	if s.targets[t.Name] != t {
		return
	}
	if v, news := t.series.Add(x, t.Change); news {
		s.o.Told(t.Name, v)
	}
}

func (s *Sender) read() {
	buf := make([]byte, packetSize+1)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(buf)
		now := time.Now()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier packet
		}
		if r, err := decodeReply(buf[:n], s.reply); err == nil {
			s.answered(r, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), now)
		}
	}
}

func (s *Sender) answered(r reply, from netip.AddrPort, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := packetID{from, r.request.sequence}
	q, ok := s.waiting[id]
	if !ok || r.request.sent != ntp(q.sent) {
		return
	}
	q.timer.Stop()
	delete(s.waiting, id)
	// What the reflector itself took is not the network's; a reflector whose clock steps
	// between its two readings is not believed.
	rtt := now.Sub(q.sent)
	if own := between(r.received, r.sent); own > 0 && own < rtt {
		rtt -= own
	}
	s.take(q.target, Sample{RTT: rtt})
}
