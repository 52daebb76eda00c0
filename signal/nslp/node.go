package nslp

import (
	"crypto/ed25519"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/onpath/onpath/signal/gist"
)

// How long a node waits for what lies behind it, and remembers what it answered.
const (
	// A node waits so long, and each node before it a little longer, as far as that may be: so
	// its answer that nothing came still finds them waiting. A decision takes no longer.
	leastPatience = 8 * time.Second
	mostPatience  = 10 * time.Second
	lessPatience  = 250 * time.Millisecond // of the next node
	memory        = 20 * time.Second
	// maxSessions bounds what authenticated requests occupy.
	maxSessions = 1024
	maxNonces   = 16384
	// Keys that are no tenant's cost nothing to make: they occupy at most a half of each.
	strangersPart = 2
)

// NoAnswer begins the status of a response that lacks what lies behind some node. Another
// response may follow, that has more.
const NoAnswer = "no answer from behind "

// Output is one thing to do: one field is set.
type Output struct {
	Send *gist.Datagram
	// End is whose connection is to be closed.
	End *netip.AddrPort
	// Ask: decide on a request, and tell the Node by Answer.
	Ask *Ask
}

// Ask is a request whose signature holds, for this node.
type Ask struct {
	Key     gist.Key
	Message *Message
	// Refused: it was answered already, and this is why.
	Refused *Refusal
}

// Node is what an onpath node does with signalling messages.
type Node struct {
	Config
	began    time.Time
	sessions map[gist.Key]*session
	nonces   map[Nonce]seen
	// strangers is how many of nonces are of keys that are not known.
	strangers int
}

// Config is what a Node needs.
type Config struct {
	Name   string
	GIST   *gist.Endpoint
	Random io.Reader
	Known  func(key []byte) bool // is it a tenant's?
	Key    ed25519.PrivateKey    // signs what the node answers
}

type seen struct {
	until    time.Time
	stranger bool
}

// session is a request on its way through this node.
type session struct {
	request *Message
	payload []byte
	hops    uint8
	until   time.Time // answered by then, or the answer is remembered so long
	ask     *Ask      // what is to be decided
	// stranger: its key is no tenant's.
	stranger bool
	entry    *Entry   // this node's; nil: not decided
	behind   *Message // what came back, or would if there were a node
	answer   *Message // sent
	// stream: the request was sent by a connection, too, as the answer was too long.
	stream bool
	// A TRIGGER's last node begins a session of its own for what is in it, and that one knows
	// of which.
	back *gist.Key // the session back
	of   *gist.Key // the session with the TRIGGER
}

// NewNode makes a node's side. It begins now: what is older it may have done before, and does
// not take.
func NewNode(now time.Time, c Config) *Node {
	return &Node{Config: c, began: now.Truncate(time.Millisecond), sessions: map[gist.Key]*session{}, nonces: map[Nonce]seen{}}
}

// Receive takes a datagram in.
func (n *Node) Receive(now time.Time, p gist.Packet) []Output {
	return n.follow(now, n.GIST.Receive(now, p))
}

// Unreachable is told of an ICMP port unreachable (gist.Endpoint.Unreachable).
func (n *Node) Unreachable(now time.Time, d gist.Packet) []Output {
	return n.follow(now, n.GIST.Unreachable(now, d.To, d.Payload))
}

// Ended is told of the end of a connection (gist.Endpoint.Ended).
func (n *Node) Ended(now time.Time, remote netip.AddrPort, failed bool) []Output {
	return n.follow(now, n.GIST.Ended(remote, failed))
}

// Due is when Tick has something to do; zero: not before something comes.
func (n *Node) Due() time.Time {
	at := n.GIST.Due()
	for _, s := range n.sessions {
		if at.IsZero() || s.until.Before(at) {
			at = s.until
		}
	}
	return at
}

// Tick does what is due at now.
func (n *Node) Tick(now time.Time) []Output {
	out := n.follow(now, n.GIST.Tick(now))
	for _, k := range gist.Sorted(n.sessions) {
		s := n.sessions[k]
		switch {
		case s == nil, now.Before(s.until):
		case s.answer != nil || s.of != nil:
			delete(n.sessions, k)
		default:
			if s.behind == nil {
				s.behind = &Message{Type: Response, Nonce: s.request.Nonce, Status: NoAnswer + n.Name}
			}
			if s.entry == nil {
				s.entry = &Entry{State: Refused, Reason: "Undecided", Words: "the node had not decided in time: a PROBE tells what it did"}
			}
			out = append(out, n.conclude(now, k, s)...)
		}
	}
	for x, s := range n.nonces {
		if now.After(s.until) {
			delete(n.nonces, x)
			if s.stranger {
				n.strangers--
			}
		}
	}
	return out
}

func (n *Node) follow(now time.Time, in []gist.Output) (out []Output) {
	for _, o := range in {
		switch {
		case o.Send != nil:
			out = append(out, Output{Send: o.Send})
		case o.End != nil:
			out = append(out, Output{End: o.End})
		case o.Deliver != nil && o.Deliver.Upstream:
			out = append(out, n.request(now, o.Deliver)...)
		case o.Deliver != nil:
			out = append(out, n.response(now, o.Deliver)...)
		case o.Last != nil:
			out = append(out, n.last(now, *o.Last, "")...)
		case o.Failed != nil:
			out = append(out, n.last(now, o.Failed.Key, o.Failed.Error.Error())...)
		}
	}
	return out
}

// request takes a request from the node before.
func (n *Node) request(now time.Time, d *gist.Delivery) []Output {
	m, err := Parse(d.Payload)
	if err != nil {
		return n.unknown(now, d, err)
	}
	if m.Type == Response {
		return nil
	}
	if s := n.sessions[d.Key]; s != nil && s.request.Nonce == m.Nonce {
		return n.repeat(now, d.Key, s)
	}
	r := m.along(d)
	if r == nil {
		r = n.trust(now, m, d.Key.Flow)
	}
	if r != nil {
		return append(n.refuse(now, d, m.Nonce, r), Output{Ask: &Ask{Message: m, Refused: r}}) // for the event
	}
	s := &session{request: m, payload: d.Payload, hops: d.Hops, until: now.Add(patience(d.Hops)), stranger: n.nonces[m.Nonce].stranger}
	n.sessions[d.Key] = s
	out := []Output{}
	if m.Type == Trigger { // for who is the last one
		s.entry = &Entry{}
	} else {
		s.ask = &Ask{Key: d.Key, Message: m}
		out = append(out, Output{Ask: s.ask})
	}
	return append(out, n.down(now, d.Key, s)...)
}

// refuse answers a request of which nothing is kept.
func (n *Node) refuse(now time.Time, d *gist.Delivery, x Nonce, r *Refusal) []Output {
	e := Entry{Node: n.Name, State: Refused, Reason: r.Reason, Words: r.Words}
	if string(fieldOf(d.Payload, tagAnswers)) == AnswersSigned {
		e.sign(n.Key, d.Payload)
	}
	return n.up(now, d.Key, &Message{Type: Response, Nonce: x, Status: r.Reason, Stack: []Entry{e}})
}

// unknown answers a request that cannot be read, as one of a later version.
func (n *Node) unknown(now time.Time, d *gist.Delivery, err error) []Output {
	x := fieldOf(d.Payload, tagNonce)
	if len(x) != len(Nonce{}) {
		return nil
	}
	return n.refuse(now, d, Nonce(x), &Refusal{"UnknownFormat", fmt.Sprintf("this node cannot read the request: %v", err)})
}

// along says whether a request that has passed no node comes from where its flow begins.
func (m *Message) along(d *gist.Delivery) *Refusal {
	if d.Hops >= gist.DefaultHops-1 && d.From != d.Key.Flow.Source {
		return &Refusal{"WrongFlow", fmt.Sprintf("the request comes from %s, and its flow from %s", d.From, d.Key.Flow.Source)}
	}
	return nil
}

// patience is how long a node waits, by the hops that a request has left.
func patience(hops uint8) time.Duration {
	passed := time.Duration(gist.DefaultHops - 1 - min(hops, gist.DefaultHops-1))
	return max(mostPatience-passed*lessPatience, leastPatience)
}

// trust is what a request must have before anything is kept for it.
// A request that comes again while it is answered does not come here (repeat).
func (n *Node) trust(now time.Time, m *Message, flow gist.MRI) *Refusal {
	if r := m.Verify(); r != nil {
		return r
	}
	if m.Flow == (Flow{}) {
		return &Refusal{"OldFormat", "the request does not say for which flow it is signed: send it with a newer onpath"}
	}
	if flow != gist.Toward(m.Flow.Source, m.Flow.Destination) {
		came := Flow{flow.Source, flow.Destination}
		return &Refusal{"WrongFlow", fmt.Sprintf("the request is signed for all that goes from %s, and came for what goes from %s",
			m.Flow, came)}
	}
	if age := now.Sub(m.Time); age > MaxAge || age < -MaxAge {
		return &Refusal{"OldTime", "the request's time is too far from the node's clock"}
	}
	if m.Time.Before(n.began) {
		return &Refusal{"OldTime", "the request is from before the node's agent began: send it again"}
	}
	if _, ok := n.nonces[m.Nonce]; ok {
		return &Refusal{"Replayed", "the request has come before"}
	}
	stranger := !n.Known(m.Key)
	if r := n.room(stranger); r != nil {
		return r
	}
	n.nonces[m.Nonce] = seen{now.Add(2*MaxAge + time.Second), stranger}
	if stranger {
		n.strangers++
	}
	return nil
}

// room says whether one more request can be kept.
func (n *Node) room(stranger bool) *Refusal {
	sessions, nonces := len(n.sessions), len(n.nonces)
	if stranger {
		nonces = max(nonces, n.strangers+maxNonces-maxNonces/strangersPart)
		strange := 0
		for _, s := range n.sessions {
			if s.stranger {
				strange++
			}
		}
		sessions = max(sessions, strange+maxSessions-maxSessions/strangersPart)
	}
	switch {
	case sessions >= maxSessions:
		return &Refusal{"Busy", "too many requests are on their way here"}
	case nonces >= maxNonces:
		return &Refusal{"Busy", "too many requests have come within a few minutes"}
	}
	return nil
}

// repeat is for a request that comes again, because an answer was lost or is late.
func (n *Node) repeat(now time.Time, k gist.Key, s *session) []Output {
	switch {
	case s.answer != nil:
		return n.send(now, k, s.answer)
	case s.behind == nil:
		return n.down(now, k, s)
	case s.back != nil:
		if b := n.sessions[*s.back]; b != nil && b.behind == nil {
			return n.down(now, *s.back, b)
		}
	}
	return nil
}

// down sends the request on.
func (n *Node) down(now time.Time, k gist.Key, s *session) []Output {
	g, err := n.GIST.Down(now, k, s.hops, s.payload)
	if err != nil {
		return n.last(now, k, err.Error())
	}
	return n.follow(now, g)
}

// last: nobody is behind this node, or what is there fails.
func (n *Node) last(now time.Time, k gist.Key, status string) []Output {
	s := n.sessions[k]
	if s == nil || s.behind != nil {
		return nil
	}
	s.behind = &Message{Type: Response, Nonce: s.request.Nonce, Status: status}
	if s.of != nil {
		return n.returned(now, s)
	}
	if s.request.Type == Trigger && status == "" {
		return n.turn(now, k, s)
	}
	return n.conclude(now, k, s)
}

// turn begins, at the last node, the session back toward the requester.
func (n *Node) turn(now time.Time, k gist.Key, s *session) []Output {
	m, err := Parse(s.request.Wrapped)
	flow := gist.Toward(k.Flow.Destination, k.Flow.Source)
	if err == nil {
		s.entry = nil
		if r := n.trust(now, m, flow); r != nil {
			s.entry = &Entry{State: Refused, Reason: r.Reason, Words: r.Words}
			return n.conclude(now, k, s)
		}
	}
	back := gist.Key{Flow: flow}
	if _, rerr := io.ReadFull(n.Random, back.Session[:]); err != nil || rerr != nil {
		return n.conclude(now, k, s)
	}
	b := &session{
		request: m, payload: s.request.Wrapped, hops: s.hops, until: s.until, of: &k, stranger: n.nonces[m.Nonce].stranger,
	}
	n.sessions[back], s.back, s.ask = b, &back, &Ask{Key: k, Message: m}
	return append([]Output{{Ask: s.ask}}, n.down(now, back, b)...)
}

// response takes what comes back from the node behind.
func (n *Node) response(now time.Time, d *gist.Delivery) []Output {
	s := n.sessions[d.Key]
	if s == nil {
		return nil
	}
	m, err := Parse(d.Payload)
	if err != nil || m.Type != Response || m.Nonce != s.request.Nonce {
		return nil
	}
	if peer, ok := n.GIST.Next(d.Key); ok && len(m.Stack) > 0 {
		m.Stack[0].RTT, m.Stack[0].Address = peer.RTT, peer.Address.Addr()
	}
	var out []Output
	if m.shortened() && !d.Stream && !s.stream {
		s.stream = true
		if g, err := n.GIST.DownStream(now, d.Key, s.hops, s.payload); err == nil {
			out = n.follow(now, g)
		}
	}
	if !s.wants(m) {
		return out
	}
	s.answer = nil // if there was one, this one has more
	s.behind = m
	if s.of != nil {
		return append(out, n.returned(now, s)...)
	}
	return append(out, n.conclude(now, d.Key, s)...)
}

// wants reports whether a response says more than what came before, so that there is an end
// of them.
func (s *session) wants(m *Message) bool {
	return s.behind == nil || s.behind.partial() && m.more(s.behind)
}

// returned hands a session back's answer to the TRIGGER's.
func (n *Node) returned(now time.Time, b *session) []Output {
	if s := n.sessions[*b.of]; s != nil {
		s.answer = nil
		return n.conclude(now, *b.of, s)
	}
	return nil
}

// Undecided reports whether a request still waits for what is decided of it.
func (n *Node) Undecided(q *Ask) bool {
	s := n.sessions[q.Key]
	return s != nil && s.ask == q && s.entry == nil // else another request has taken its session
}

// Answer is told what was decided of a request.
func (n *Node) Answer(now time.Time, q *Ask, e Entry) []Output {
	if !n.Undecided(q) {
		return nil
	}
	s := n.sessions[q.Key]
	s.entry = &e
	return n.conclude(now, q.Key, s)
}

// conclude answers once this node and those behind it have their word.
func (n *Node) conclude(now time.Time, k gist.Key, s *session) []Output {
	if s.entry == nil || s.behind == nil || s.answer != nil {
		return nil
	}
	e := *s.entry
	status := s.behind.Status
	if s.back != nil {
		switch b := n.sessions[*s.back]; {
		case b == nil:
		case b.behind != nil:
			e.Back, status = b.behind.Stack, b.behind.Status
		case now.Before(s.until):
			return nil
		default:
			status = NoAnswer + n.Name
		}
	}
	e.Node = n.Name
	if s.request.Answers != "" {
		e.sign(n.Key, s.payload)
	}
	return n.up(now, k, &Message{Type: Response, Nonce: s.request.Nonce, Status: status, Stack: append([]Entry{e}, s.behind.Stack...)})
}

// up answers the node before.
func (n *Node) up(now time.Time, k gist.Key, m *Message) []Output {
	if s := n.sessions[k]; s != nil && s.request.Nonce == m.Nonce {
		s.answer, s.until = m, now.Add(memory)
	}
	return n.send(now, k, m)
}

// send sends an answer, as much of it as the way to the node before takes.
func (n *Node) send(now time.Time, k gist.Key, m *Message) []Output {
	most := MaxLength
	if n.GIST.UpStream(k) {
		most = gist.MaxStream
	}
	g, err := n.GIST.Up(now, k, fit(m, most))
	if err != nil {
		return nil
	}
	return n.follow(now, g)
}
