package gist

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Timers. RFC 5971 §5.3.3 has each try wait twice as long as the one before, up to a limit
// that it leaves open: 32 s, or less where an early answer is worth more. Three tries take
// 3.5 s, which is more than the round trip by a satellite, and then a node is the last one.
const (
	retry = 500 * time.Millisecond
	tries = 3
	// validity of routes that are learnt here, and how old one may be to be used unasked.
	validity = 30 * time.Second
	fresh    = 10 * time.Second
	maxState = 4096 // routes
)

// Config is what an Endpoint needs.
type Config struct {
	Peer   string    // its identity, at most 64 bytes
	Random io.Reader // session's cookies and the secret
	// Source is the address by which this machine sends to another.
	Source func(to netip.Addr) netip.Addr
	// Initiates: it only begins sessions, and answers no Query.
	Initiates bool
	// TCPPort is where it takes connections for long messages; 0: nowhere.
	TCPPort uint16
}

// Key names a route: a flow and a session.
type Key struct {
	Flow    MRI // downstream
	Session SessionID
}

// Packet is a datagram that came in, or a message of a connection.
type Packet struct {
	From, To netip.AddrPort
	Payload  []byte
	TTL      uint8
	Stream   bool // it came by the connection with From
}

// Datagram is one to send.
type Datagram struct {
	To      netip.AddrPort
	From    netip.Addr // zero: any
	Payload []byte
	// Stream: it goes by the connection with To. Dial: which is made, if there is none.
	Stream, Dial bool
}

// Delivery is a payload for the signalling application.
type Delivery struct {
	Key
	Upstream bool       // it came from the node that is nearer to the flow's source
	From     netip.Addr // the node's
	Hops     uint8
	Payload  []byte
	Stream   bool // it came by a connection
}

// Output is one thing to do or to know: one field is set.
type Output struct {
	Send    *Datagram
	Deliver *Delivery
	// Last: there is no further node toward the flow's destination.
	Last *Key
	// Changed: another node than before is the next one.
	Changed *Key
	// Failed: an error came back for what was sent.
	Failed *Failure
	// End is whose connection is to be closed: what it brings is not believed.
	End *netip.AddrPort
}

// Failure is an error that a peer tells.
type Failure struct {
	Key   Key
	Error *Error
}

// Peer is a neighbour on the way of a flow.
type Peer struct {
	Identity string
	Address  netip.AddrPort
	RTT      time.Duration // 0: not measured
	Stream   bool          // it is reached by a connection
}

// sent reports whether a packet is the neighbour's.
func (a Peer) sent(p Packet) bool { return a.Address == p.From && a.Stream == p.Stream }

type phase uint8

const (
	idle phase = iota
	asking
	known
	last
)

// route is what is kept of one flow and session. The way down is that of a Querying
// node's machine (RFC 5972 §6.1), the way up of a Responding node's (§6.2).
type route struct {
	down struct {
		phase phase
		peer  Peer
		until time.Time // believed in; while asking: next try
		fresh time.Time
		asked []question // since the route was asked for last
		found time.Time  // when the Query was sent that the peer answered
		hops  uint8
		queue [][]byte
		// stream: what is sent is too long for a datagram, and a connection is proposed.
		stream bool
		// before is where the peer was and is reached by datagrams, if it was; a connection that
		// cannot be made changes nothing.
		before netip.AddrPort
	}
	up struct {
		peer  Peer // zero: none
		until time.Time
	}
}

// question is a Query that was sent: a Response may be to any of them (RFC 5971 §5.3.3).
type question struct {
	cookie []byte
	at     time.Time
}

// Endpoint is one node's GIST.
type Endpoint struct {
	config  Config
	secret  []byte
	routes  map[Key]*route
	credits [256]credit
}

// ErrTooLong says that a payload does not fit into a message.
var ErrTooLong = errors.New("the message is longer than one may be (1,232 octets in a datagram, 16,380 in a connection): shorten it")

// New makes an endpoint.
func New(c Config) (*Endpoint, error) {
	e := &Endpoint{config: c, secret: make([]byte, 32), routes: map[Key]*route{}}
	_, err := io.ReadFull(c.Random, e.secret)
	return e, err
}

// Down sends a payload to the next node toward the flow's destination, which is found
// first if it is not known. What is too long for a datagram goes by a connection.
func (e *Endpoint) Down(now time.Time, k Key, hops uint8, payload []byte) ([]Output, error) {
	return e.down(now, k, hops, payload, e.message(Data, k, false, hops, payload).length() > MaxMessage)
}

// DownStream is Down by a connection, so that what comes back may be long.
func (e *Endpoint) DownStream(now time.Time, k Key, hops uint8, payload []byte) ([]Output, error) {
	return e.down(now, k, hops, payload, true)
}

func (e *Endpoint) down(now time.Time, k Key, hops uint8, payload []byte, stream bool) ([]Output, error) {
	r, err := e.route(k)
	if err != nil {
		return nil, err
	}
	d := &r.down
	if len(payload) > MaxStream {
		return nil, ErrTooLong
	}
	if hops == 0 {
		return nil, &Error{Class: PermanentFailure, Code: codeHops}
	}
	d.hops = hops
	if d.phase == known && now.Before(d.fresh) && (d.peer.Stream || !stream) {
		return e.data(k, r, payload), nil
	}
	again := slices.ContainsFunc(d.queue, func(b []byte) bool { return bytes.Equal(b, payload) })
	if !again && len(d.queue) < 4 {
		d.queue = append(d.queue, payload)
	}
	if d.phase == asking && (d.stream || !stream) {
		return nil, nil
	}
	d.phase, d.asked, d.stream = asking, nil, stream
	return e.ask(now, k, r)
}

// Up sends a payload to the node from which the session came.
func (e *Endpoint) Up(now time.Time, k Key, payload []byte) ([]Output, error) {
	r := e.routes[k]
	if r == nil || !r.up.peer.Address.IsValid() || now.After(r.up.until) {
		return nil, protocolError(codeNoState, 0)
	}
	m := e.message(Data, k, true, DefaultHops, payload)
	if !r.up.peer.Stream && m.length() > MaxMessage || len(payload) > MaxStream {
		return nil, ErrTooLong
	}
	return e.reach(r.up.peer, m), nil
}

// UpStream reports whether what goes up goes by a connection, and so may be long.
func (e *Endpoint) UpStream(k Key) bool {
	r := e.routes[k]
	return r != nil && r.up.peer.Stream
}

// reach sends a message to a neighbour.
func (e *Endpoint) reach(to Peer, m *Message) []Output {
	if !to.Stream {
		return e.send(to.Address, m)
	}
	if m.Type == Data {
		m.NLI = nil // §5.1
	} else if m.NLI != nil {
		if m.NLI.Address = e.config.Source(to.Address.Addr()); !m.NLI.Address.IsValid() {
			return nil
		}
	}
	return []Output{{Send: &Datagram{To: to.Address, Payload: m.AppendStream(nil), Stream: true}}}
}

// Ended is told that the connection with a neighbour has ended, or, if it failed, could not
// be made.
func (e *Endpoint) Ended(remote netip.AddrPort, failed bool) (out []Output) {
	for _, k := range Sorted(e.routes) {
		r := e.routes[k]
		if r.up.peer.Stream && r.up.peer.Address == remote {
			r.up.peer = Peer{}
		}
		if !r.down.peer.Stream || r.down.peer.Address != remote {
			continue
		}
		if r.down.stream = false; r.down.before.IsValid() {
			r.down.peer.Address, r.down.peer.Stream = r.down.before, false
		} else {
			r.down.phase, r.down.peer, r.down.asked = idle, Peer{}, nil
		}
		if failed {
			out = append(out, noStream(k, "the next node cannot be reached by TCP at "+remote.String()))
		}
	}
	return out
}

// noStream says that something is too long for the way to the next node.
func noStream(k Key, why string) Output {
	return Output{Failed: &Failure{Key: k, Error: &Error{Class: TransientFailure, Code: codeTooLarge, Comment: why}}}
}

// Next is the node toward the flow's destination.
func (e *Endpoint) Next(k Key) (Peer, bool) {
	if r := e.routes[k]; r != nil && r.believed() {
		return r.down.peer, true
	}
	return Peer{}, false
}

// believed reports whether there is a next node. While it is asked for anew, it is the one before.
func (r *route) believed() bool {
	return r.down.peer.Address.IsValid() && (r.down.phase == known || r.down.phase == asking)
}

func (e *Endpoint) route(k Key) (*route, error) {
	r := e.routes[k]
	if r == nil {
		if len(e.routes) >= maxState && !e.makeRoom() {
			return nil, &Error{Class: TransientFailure, Code: codeNoState, Comment: "too many sessions"}
		}
		r = &route{}
		e.routes[k] = r
	}
	return r, nil
}

// room is how many routes are forgotten where all are in use: looking for them takes time.
const room = maxState / 64

// makeRoom evicts the routes confirmed longest ago of one source: the source with most
// routes, within the previous hop with most routes. So a node may stand for all publishers
// behind it, and fill the table while no other node needs room; within the node's part each
// publisher has room. Only the previous hop's address is proved, by the cookie. A flow's
// source is not, and so it counts within one previous hop alone.
func (e *Endpoint) makeRoom() bool {
	type place struct {
		key  Key
		r    *route
		rank int
	}
	var list []place
	for k, r := range e.routes {
		if r.before().IsValid() { // else it is this node's own
			list = append(list, place{key: k, r: r})
		}
	}
	slices.SortFunc(list, func(a, b place) int { // the newest first
		return cmp.Or(b.r.up.until.Compare(a.r.up.until), bytes.Compare(a.key.Session[:], b.key.Session[:]))
	})
	sources, nodes := map[[2]netip.Prefix]int{}, map[netip.Prefix]int{}
	for i := range list {
		p := [2]netip.Prefix{list[i].r.before(), network(list[i].key.Flow.Source)}
		list[i].rank, sources[p] = sources[p], sources[p]+1
	}
	slices.SortStableFunc(list, func(a, b place) int { return a.rank - b.rank })
	for i := range list {
		n := list[i].r.before()
		list[i].rank, nodes[n] = nodes[n], nodes[n]+1
	}
	slices.SortStableFunc(list, func(a, b place) int { return b.rank - a.rank })
	for _, p := range list[:min(room, len(list))] {
		delete(e.routes, p.key)
	}
	return len(list) > 0
}

// before is the network of the node before this one; zero: none.
func (r *route) before() netip.Prefix {
	if !r.up.peer.Address.IsValid() {
		return netip.Prefix{}
	}
	return network(r.up.peer.Address.Addr())
}

// network is what one sender can have all addresses of: an IPv4 address, or 64 bits.
func network(a netip.Addr) netip.Prefix {
	n, _ := a.Prefix(min(a.BitLen(), 64))
	return n
}

// message is one of this node's, with what each has.
func (e *Endpoint) message(t Type, k Key, upstream bool, hops uint8, payload []byte) *Message {
	mri := k.Flow
	mri.Upstream = upstream
	return &Message{
		Hops: hops, NSLPID: NSLPID, Type: t, QMode: t == Query, Source: true, Reply: t == Query,
		MRI: &mri, Session: &k.Session, Payload: payload,
		NLI: &NLI{Peer: e.config.Peer, TTL: 64, Valid: validity, Address: k.Flow.Source}, // send says which
	}
}

func (m *Message) length() int { return len(m.Append(nil)) }

// send sends a message with the address from which it goes in it.
func (e *Endpoint) send(to netip.AddrPort, m *Message) []Output {
	return send(e.config.Source(to.Addr()), to, m)
}

func send(from netip.Addr, to netip.AddrPort, m *Message) []Output {
	if !from.IsValid() {
		return nil // no route: as if it were lost
	}
	if m.NLI != nil {
		m.NLI.Address = from
	}
	return []Output{{Send: &Datagram{To: to, From: from, Payload: m.Append(nil)}}}
}

// padding makes a Query as long as its Response: nobody is sent more than came.
const padding = 32

func (e *Endpoint) ask(now time.Time, k Key, r *route) ([]Output, error) {
	d := &r.down
	q := question{make([]byte, 16), now}
	if _, err := io.ReadFull(e.config.Random, q.cookie); err != nil {
		return nil, err
	}
	d.until = now.Add(retry << len(d.asked))
	d.asked = append(d.asked, q)
	m := e.message(Query, k, false, d.hops, make([]byte, padding+64)) // a responder's identity may be longer
	m.QueryCookie = q.cookie
	if d.stream {
		m.StackProposal, m.StackConfig = stackProposal, stackConfig(1, 0)
	}
	return e.send(netip.AddrPortFrom(k.Flow.Destination, Port), m), nil
}

// data sends what is known to have a receiver.
func (e *Endpoint) data(k Key, r *route, payload []byte) []Output {
	out := e.reach(r.down.peer, e.message(Data, k, false, r.down.hops, payload))
	for _, o := range out {
		o.Send.From, o.Send.Dial = e.config.Source(o.Send.To.Addr()), o.Send.Stream
	}
	return out
}

// Tick does what is due at now.
func (e *Endpoint) Tick(now time.Time) (out []Output) {
	for _, k := range Sorted(e.routes) {
		r := e.routes[k]
		d := &r.down
		if d.phase != idle && !now.Before(d.until) {
			switch {
			case d.phase == asking && len(d.asked) < tries:
				more, err := e.ask(now, k, r)
				if err != nil {
					continue
				}
				out = append(out, more...)
			case d.phase == asking:
				out = append(out, e.isLast(now, k, r)...)
			default:
				d.phase, d.peer, d.asked, d.stream, d.before = idle, Peer{}, nil, false, netip.AddrPort{}
			}
		}
		if r.up.peer.Address.IsValid() && now.After(r.up.until) {
			r.up.peer = Peer{}
		}
		if d.phase == idle && !r.up.peer.Address.IsValid() {
			delete(e.routes, k)
		}
	}
	return out
}

// Sorted are the keys of a map in an order of their own, so that runs can be repeated.
func Sorted[V any](m map[Key]V) []Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b Key) int {
		return cmp.Or(bytes.Compare(a.Session[:], b.Session[:]), a.Flow.Destination.Compare(b.Flow.Destination))
	})
}

// Due is when Tick has something to do; zero: not before something comes.
func (e *Endpoint) Due() (at time.Time) {
	earlier := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, r := range e.routes {
		if r.down.phase != idle {
			earlier(r.down.until)
		}
		if r.up.peer.Address.IsValid() {
			earlier(r.up.until.Add(time.Nanosecond))
		}
	}
	return at
}

// Unreachable is told of an ICMP port unreachable: that no node took the Query, of which
// quoted is what the error has.
func (e *Endpoint) Unreachable(now time.Time, to netip.AddrPort, quoted []byte) (out []Output) {
	if to.Port() != Port {
		return nil
	}
	for _, k := range Sorted(e.routes) {
		r := e.routes[k]
		if r.down.phase == asking && k.Flow.Destination == to.Addr() && bytes.Contains(quoted, k.Session[:]) {
			out = append(out, e.isLast(now, k, r)...)
		}
	}
	return out
}

// isLast gives up to look for a next node.
func (e *Endpoint) isLast(now time.Time, k Key, r *route) []Output {
	r.down.phase, r.down.queue, r.down.peer = last, nil, Peer{}
	r.down.until = now.Add(fresh)
	return []Output{{Last: &k}}
}
