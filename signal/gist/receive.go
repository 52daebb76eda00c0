package gist

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// Receive takes a datagram in. What is not GIST's, or not for this node, gives nothing.
func (e *Endpoint) Receive(now time.Time, p Packet) []Output {
	read := Parse
	if p.Stream {
		read = ParseStream
	}
	m, err := read(p.Payload)
	if errors.Is(err, ErrNoGIST) || m.NSLPID != NSLPID && m.Type != ErrorMessage && m.Type != Hello {
		return nil
	}
	if err != nil {
		var problem *Error
		if errors.As(err, &problem) && m.Type != ErrorMessage {
			return e.refuse(p, m, problem)
		}
		return nil
	}
	switch m.Type {
	case ErrorMessage:
		return e.told(now, p, m)
	case Hello:
		if !m.Reply {
			return nil
		}
		return e.back(p, &Message{Hops: 1, Type: Hello, HelloID: m.HelloID})
	}
	if why := e.check(m, p); why != nil {
		return e.about(p, m, why)
	}
	if m.NLI != nil && m.NLI.Peer == e.config.Peer {
		return nil // its own, come round
	}
	k := Key{Flow: m.MRI.Flow(), Session: *m.Session}
	switch m.Type {
	case Query:
		return e.query(now, p, m, k)
	case Response:
		return e.response(now, p, m, k)
	case Confirm:
		return e.confirm(now, p, m, k)
	case Data:
		return e.received(now, p, m, k)
	}
	return nil
}

// check says whether the message can be for this node as it came.
func (e *Endpoint) check(m *Message, p Packet) *Error {
	switch {
	case m.Hops == 0:
		return &Error{Class: PermanentFailure, Code: codeHops}
	case m.MRI.Source.Is4() != p.From.Addr().Is4():
		return &Error{Class: PermanentFailure, Code: codeMRI, Subcode: 1}
	case int(m.MRI.DestinationBits) != m.MRI.Destination.BitLen():
		return &Error{Class: PermanentFailure, Code: codeMRI, Subcode: 0} // more than one path
	case m.Source && !p.Stream && m.NLI.Address != p.From.Addr():
		return protocolError(codeObjectType, 4).with(infoType, words(objNLI)) // a NAT without knowledge of GIST
	}
	return nil
}

// about refuses a message that could be read.
func (e *Endpoint) about(p Packet, m *Message, why *Error) []Output {
	if p.Stream {
		copy(why.Header[:], p.Payload)
	} else {
		copy(why.Header[:], p.Payload[4:])
	}
	why.Session, why.MRI = m.Session, m.MRI
	if why.Code == codeMRI {
		why.withObject(4, appendObject(nil, objMRI, m.MRI.append(nil)))
	}
	return e.refuse(p, m, why)
}

// refuse tells a sender of an error.
func (e *Endpoint) refuse(p Packet, about *Message, why *Error) []Output {
	if e.config.Initiates {
		return nil
	}
	why.QMode = about.QMode
	if p.Stream {
		return e.back(p, &Message{Hops: DefaultHops, Type: ErrorMessage, Error: why})
	}
	return e.bounded(p, about, &Message{
		Hops: DefaultHops, Type: ErrorMessage, Source: true, Error: why, // of no NSLP (§5.6)
		NLI: &NLI{Peer: e.config.Peer, TTL: 64, Valid: validity, Address: p.From.Addr()}, // send says which
	})
}

// back sends a message back by the connection by which another came.
func (e *Endpoint) back(p Packet, m *Message) []Output {
	m.Source = true
	return e.reach(Peer{Address: p.From, Stream: true}, m)
}

// sender is whom an answer to a message is for (§5.6): who says in it that he sent it, at
// the port from which it came. What he says is no address where it says to be that of the
// packet, and is not.
func sender(p Packet, m *Message) (to netip.AddrPort, ok bool) {
	a := p.From.Addr()
	switch {
	case m.NLI != nil && !m.Source:
		a = m.NLI.Address
	case m.NLI == nil && !m.Source:
		return to, false
	}
	return netip.AddrPortFrom(a, p.From.Port()), a.IsGlobalUnicast()
}

// credit is how many octets came from an address, and were not answered with as many.
type credit struct {
	of     netip.Addr
	octets int
}

// bounded sends an answer, unless more octets would go to an address than came from it. A
// message too short to be answered is when it comes again, unless others came between that
// took the address's place.
func (e *Endpoint) bounded(p Packet, about, m *Message) []Output {
	to, ok := sender(p, about)
	if !ok {
		return nil
	}
	from := e.config.Source(to.Addr())
	if from == to.Addr() { // whoever sends a message chooses no service of this machine
		return nil
	}
	m.NAT = about.NAT // it says to a NAT what is to be translated back (§7.2.3)
	place := sha256.Sum256(append(to.Addr().AsSlice(), e.secret...))
	c := &e.credits[place[0]]
	if c.of != to.Addr() {
		*c = credit{of: to.Addr()}
	}
	c.octets = min(c.octets+len(p.Payload), MaxMessage)
	if m.length() > c.octets {
		return nil
	}
	c.octets -= m.length()
	return send(from, to, m)
}

// query answers with a cookie, and keeps nothing.
func (e *Endpoint) query(now time.Time, p Packet, m *Message, k Key) []Output {
	if e.config.Initiates || m.MRI.Upstream || p.To.Addr() != m.MRI.Destination {
		return nil
	}
	to, _ := sender(p, m)
	a := e.message(Response, k, true, DefaultHops, nil)
	a.Reply, a.QueryCookie = true, m.QueryCookie
	if tcp, _ := checkProposal(m.StackProposal); tcp != 0 && e.config.TCPPort != 0 {
		a.StackProposal, a.StackConfig = stackProposal, stackConfig(1, e.config.TCPPort)
		to = netip.AddrPortFrom(to.Addr(), 0) // a connection comes from another port
	}
	a.ResponderCookie = e.cookie(k, m.NLI.Peer, to, slot(now))
	return e.bounded(p, m, a)
}

// slot is the time in which a cookie is made; it holds in the next one, too.
func slot(now time.Time) int64 { return now.Unix() / 10 }

func (e *Endpoint) cookie(k Key, peer string, from netip.AddrPort, slot int64) []byte {
	h := hmac.New(sha256.New, e.secret)
	h.Write(k.Session[:])
	h.Write(k.Flow.append(nil))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(slot)))
	b, _ := from.MarshalBinary()
	h.Write(append(b, byte(len(b))))
	h.Write([]byte(peer))
	return h.Sum(nil)[:16]
}

// response finds the next node. It may be to any Query that was sent, and come late.
func (e *Endpoint) response(now time.Time, p Packet, m *Message, k Key) (out []Output) {
	r := e.routes[k]
	if r == nil || !m.MRI.Upstream {
		return nil
	}
	d := &r.down
	at := slices.IndexFunc(d.asked, func(q question) bool { return q.cookie != nil && hmac.Equal(m.QueryCookie, q.cookie) })
	if at < 0 {
		return nil
	}
	asked := d.asked[at].at
	peer := Peer{Identity: m.NLI.Peer, Address: p.From, RTT: now.Sub(asked), Stream: p.Stream}
	// A node connects to no address but that of the answer, and never to itself.
	if a, port := m.NLI.Address, m.tcpPort(); d.stream && port != 0 && a == p.From.Addr() && !p.Stream && e.config.Source(a) != a {
		peer.Address, peer.Stream = netip.AddrPortFrom(m.NLI.Address, port), true
	}
	if d.phase == known && asked.Before(d.found) && d.peer.Identity != peer.Identity {
		return nil // the route has changed since
	}
	d.asked[at].cookie = nil // it is answered once
	if d.peer.Identity != peer.Identity {
		d.before = netip.AddrPort{}
		if d.peer.Identity != "" {
			out = append(out, Output{Changed: &k})
		}
	}
	if !peer.Stream {
		d.before = p.From
	}
	d.phase, d.peer, d.found = known, peer, asked
	d.until, d.fresh = now.Add(min(m.NLI.Valid, validity)), now.Add(fresh)
	queue := d.queue
	d.queue = nil
	if !peer.Stream && d.stream {
		d.stream = false
		out = append(out, noStream(k, "the next node takes no connections (RFC 5971, Forwards-TCP)"))
		queue = slices.DeleteFunc(queue, func(b []byte) bool { return e.message(Data, k, false, d.hops, b).length() > MaxMessage })
	}
	if m.Reply {
		c := e.message(Confirm, k, false, d.hops, nil)
		c.ResponderCookie = m.ResponderCookie
		if peer.Stream && !p.Stream {
			c.StackProposal, c.StackConfig = m.StackProposal, stackConfig(0, 0)
		}
		if len(queue) > 0 {
			c.Payload = queue[0]
			if peer.Stream || c.length() <= MaxMessage {
				queue = queue[1:]
			} else {
				c.Payload = nil
			}
		}
		for _, o := range e.reach(peer, c) {
			o.Send.From, o.Send.Dial = e.config.Source(o.Send.To.Addr()), o.Send.Stream
			out = append(out, o)
		}
	}
	for _, payload := range queue {
		out = append(out, e.data(k, r, payload)...)
	}
	return out
}

// confirm believes a sender that brings its cookie back.
func (e *Endpoint) confirm(now time.Time, p Packet, m *Message, k Key) []Output {
	if e.config.Initiates {
		return nil
	}
	places, ok := []netip.AddrPort{netip.AddrPortFrom(p.From.Addr(), 0)}, false
	if !p.Stream { // the port of a connection is not that of the Query
		places = append(places, p.From)
	}
	for _, place := range places {
		for _, s := range []int64{slot(now), slot(now) - 1} {
			ok = ok || hmac.Equal(m.ResponderCookie, e.cookie(k, m.NLI.Peer, place, s))
		}
	}
	if p.Stream {
		ok = ok && m.NLI.Address == p.From.Addr()
		if why := m.checkStack(); why != nil && ok {
			return append(e.about(p, m, why), Output{End: &p.From})
		}
	}
	switch {
	case !ok && p.Stream:
		return []Output{{End: &p.From}}
	case !ok:
		return nil // an Error would go to whom a forger names (§8.5)
	}
	r, err := e.route(k)
	if err != nil {
		return nil
	}
	r.up.peer = Peer{Identity: m.NLI.Peer, Address: p.From, Stream: p.Stream}
	r.up.until = now.Add(min(m.NLI.Valid, validity))
	if m.Payload == nil {
		return nil
	}
	return deliver(p, m, k, true)
}

// checkStack: a Confirm in a connection has the proposal of the Response, and how long the
// connection is to stay (§5.1).
func (m *Message) checkStack() *Error {
	switch {
	case m.StackProposal == nil:
		return protocolError(codeObjectType, 2).with(infoType, words(objStackProposal))
	case m.StackConfig == nil:
		return protocolError(codeObjectType, 2).with(infoType, words(objStackConfig))
	case !bytes.Equal(m.StackProposal, stackProposal):
		return protocolError(codeObjectValue, 5).withObject(4, appendObject(nil, objStackProposal, m.StackProposal))
	}
	return nil
}

func deliver(p Packet, m *Message, k Key, upstream bool) []Output {
	d := &Delivery{Key: k, Upstream: upstream, From: p.From.Addr(), Hops: m.Hops - 1, Payload: m.Payload, Stream: p.Stream}
	return []Output{{Deliver: d}}
}

// received delivers what a known neighbour sends.
func (e *Endpoint) received(now time.Time, p Packet, m *Message, k Key) []Output {
	r := e.routes[k]
	switch {
	case r == nil:
	case !m.MRI.Upstream && r.up.peer.sent(p) && !now.After(r.up.until):
		r.up.until = now.Add(validity)
		return deliver(p, m, k, true)
	case m.MRI.Upstream && r.believed() && (r.down.peer.sent(p) || !p.Stream && r.down.before == p.From):
		return deliver(p, m, k, false)
	}
	return e.about(p, m, protocolError(codeNoState, 0))
}

// told takes an error up, from the next node of the session that it is about.
func (e *Endpoint) told(now time.Time, p Packet, m *Message) []Output {
	if m.Error.Session == nil || m.Error.MRI == nil || m.NLI == nil && !p.Stream {
		return nil
	}
	k := Key{Flow: m.Error.MRI.Flow(), Session: *m.Error.Session}
	r := e.routes[k]
	if r == nil {
		return nil
	}
	next := r.down.peer
	if m.Error.Code == codeNoState && (m.NLI != nil && next.Identity == m.NLI.Peer || p.Stream && next.sent(p)) {
		r.down.phase = idle // it has begun anew: what is sent next asks again
		return nil
	}
	if c := m.Error.Code; r.down.phase == asking && (c == codeEndpoint || c == codeNSLPID) {
		return e.isLast(now, k, r)
	}
	return []Output{{Failed: &Failure{Key: k, Error: m.Error}}}
}
