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
}

// Key names a route: a flow and a session.
type Key struct {
	Flow    MRI // downstream
	Session SessionID
}

// Packet is a datagram that came in.
type Packet struct {
	From, To netip.AddrPort
	Payload  []byte
	TTL      uint8
}

// Datagram is one to send.
type Datagram struct {
	To      netip.AddrPort
	From    netip.Addr // zero: any
	Payload []byte
}

// Delivery is a payload for the signalling application.
type Delivery struct {
	Key
	Upstream bool       // it came from the node that is nearer to the flow's source
	From     netip.Addr // the node's
	Hops     uint8
	Payload  []byte
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
}

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

// ErrTooLong says that a payload does not fit into one datagram.
var ErrTooLong = errors.New("the message is longer than one datagram on the way may be (1232 bytes): shorten it")

// New makes an endpoint.
func New(c Config) (*Endpoint, error) {
	e := &Endpoint{config: c, secret: make([]byte, 32), routes: map[Key]*route{}}
	_, err := io.ReadFull(c.Random, e.secret)
	return e, err
}

// Down sends a payload to the next node toward the flow's destination, which is found
// first if it is not known.
func (e *Endpoint) Down(now time.Time, k Key, hops uint8, payload []byte) ([]Output, error) {
	r, err := e.route(k)
	if err != nil {
		return nil, err
	}
	d := &r.down
	if e.message(Data, k, false, hops, payload).length() > MaxMessage {
		return nil, ErrTooLong
	}
	if hops == 0 {
		return nil, &Error{Class: PermanentFailure, Code: codeHops}
	}
	d.hops = hops
	if d.phase == known && now.Before(d.fresh) {
		return e.data(k, r, payload), nil
	}
	again := slices.ContainsFunc(d.queue, func(b []byte) bool { return bytes.Equal(b, payload) })
	if !again && len(d.queue) < 4 {
		d.queue = append(d.queue, payload)
	}
	if d.phase == asking {
		return nil, nil
	}
	d.phase, d.asked = asking, nil
	return e.ask(now, k, r)
}

// Up sends a payload to the node from which the session came.
func (e *Endpoint) Up(now time.Time, k Key, payload []byte) ([]Output, error) {
	r := e.routes[k]
	if r == nil || !r.up.peer.Address.IsValid() || now.After(r.up.until) {
		return nil, protocolError(codeNoState, 0)
	}
	m := e.message(Data, k, true, DefaultHops, payload)
	if m.length() > MaxMessage {
		return nil, ErrTooLong
	}
	return e.send(r.up.peer.Address, m), nil
}

// Next is the node toward the flow's destination.
func (e *Endpoint) Next(k Key) (Peer, bool) {
	if r := e.routes[k]; r != nil && r.down.phase == known {
		return r.down.peer, true
	}
	return Peer{}, false
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
	return e.send(netip.AddrPortFrom(k.Flow.Destination, Port), m), nil
}

// data sends what is known to have a receiver.
func (e *Endpoint) data(k Key, r *route, payload []byte) []Output {
	return e.send(r.down.peer.Address, e.message(Data, k, false, r.down.hops, payload))
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
				d.phase, d.peer, d.asked = idle, Peer{}, nil
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
