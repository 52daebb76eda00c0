package gist

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"
)

// Receive takes a datagram in. What is not GIST's, or not for this node, gives nothing.
func (e *Endpoint) Receive(now time.Time, p Packet) []Output {
	m, err := Parse(p.Payload)
	if errors.Is(err, ErrNoGIST) || m.NSLPID != NSLPID && m.Type != ErrorMessage {
		return nil
	}
	if err != nil {
		var problem *Error
		if errors.As(err, &problem) && m.Type != ErrorMessage {
			return e.refuse(p, problem)
		}
		return nil
	}
	if m.Type == ErrorMessage {
		return e.told(m)
	}
	if why := e.check(m, p); why != nil {
		return e.about(p, m, why)
	}
	if m.NLI.Peer == e.config.Peer {
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
	case m.Source && m.NLI.Address != p.From.Addr():
		return protocolError(codeObjectType, 4) // a NAT without knowledge of GIST
	}
	return nil
}

// about refuses a message that could be read.
func (e *Endpoint) about(p Packet, m *Message, why *Error) []Output {
	copy(why.Header[:], p.Payload[4:])
	why.Session, why.MRI = m.Session, m.MRI
	return e.refuse(p, why)
}

// refuse tells a sender of an error, in no more bytes than came.
func (e *Endpoint) refuse(p Packet, why *Error) []Output {
	if e.config.Initiates {
		return nil
	}
	m := &Message{
		Hops: DefaultHops, NSLPID: NSLPID, Type: ErrorMessage, Source: true, Error: why,
		NLI: &NLI{Peer: e.config.Peer, TTL: 64, Valid: validity, Address: p.From.Addr()},
	}
	return e.bounded(p, m)
}

// bounded sends an answer, unless it is longer than what it answers.
func (e *Endpoint) bounded(p Packet, m *Message) []Output {
	if m.length() > len(p.Payload) {
		return nil
	}
	return e.send(p.From, m)
}

// query answers with a cookie, and keeps nothing.
func (e *Endpoint) query(now time.Time, p Packet, m *Message, k Key) []Output {
	if e.config.Initiates || m.MRI.Upstream || p.To.Addr() != m.MRI.Destination {
		return nil
	}
	a := e.message(Response, k, true, DefaultHops, nil)
	a.Reply, a.QueryCookie = true, m.QueryCookie
	a.ResponderCookie = e.cookie(k, m.NLI.Peer, p.From, slot(now))
	return e.bounded(p, a)
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

// response finds the next node.
func (e *Endpoint) response(now time.Time, p Packet, m *Message, k Key) (out []Output) {
	r := e.routes[k]
	if r == nil || r.down.phase != asking || !hmac.Equal(m.QueryCookie, r.down.cookie) || !m.MRI.Upstream {
		return nil
	}
	d := &r.down
	peer := Peer{Identity: m.NLI.Peer, Address: p.From, RTT: now.Sub(d.asked)}
	if d.peer.Identity != "" && d.peer.Identity != peer.Identity {
		out = append(out, Output{Changed: &k})
	}
	d.phase, d.peer = known, peer
	d.until, d.fresh = now.Add(min(m.NLI.Valid, validity)), now.Add(fresh)
	queue := d.queue
	d.queue = nil
	if m.Reply {
		c := e.message(Confirm, k, false, d.hops, nil)
		c.ResponderCookie = m.ResponderCookie
		if len(queue) > 0 {
			c.Payload = queue[0]
			if c.length() <= MaxMessage {
				queue = queue[1:]
			} else {
				c.Payload = nil
			}
		}
		out = append(out, e.send(p.From, c)...)
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
	ok := false
	for _, s := range []int64{slot(now), slot(now) - 1} {
		ok = ok || hmac.Equal(m.ResponderCookie, e.cookie(k, m.NLI.Peer, p.From, s))
	}
	if !ok {
		return e.about(p, m, protocolError(codeObjectValue, 4))
	}
	r, err := e.route(k)
	if err != nil {
		return nil
	}
	r.up.peer = Peer{Identity: m.NLI.Peer, Address: p.From}
	r.up.until = now.Add(min(m.NLI.Valid, validity))
	if m.Payload == nil {
		return nil
	}
	return []Output{{Deliver: &Delivery{Key: k, Upstream: true, Hops: m.Hops - 1, Payload: m.Payload}}}
}

// received delivers what a known neighbour sends.
func (e *Endpoint) received(now time.Time, p Packet, m *Message, k Key) []Output {
	r := e.routes[k]
	switch {
	case r == nil:
	case !m.MRI.Upstream && r.up.peer.Address == p.From && !now.After(r.up.until):
		r.up.until = now.Add(validity)
		return []Output{{Deliver: &Delivery{Key: k, Upstream: true, Hops: m.Hops - 1, Payload: m.Payload}}}
	case m.MRI.Upstream && r.down.phase == known && r.down.peer.Address == p.From:
		return []Output{{Deliver: &Delivery{Key: k, Hops: m.Hops - 1, Payload: m.Payload}}}
	}
	return e.about(p, m, protocolError(codeNoState, 0))
}

// told takes an error up, from the next node of the session that it is about.
func (e *Endpoint) told(m *Message) []Output {
	if m.Error.Session == nil || m.Error.MRI == nil || m.NLI == nil {
		return nil
	}
	k := Key{Flow: m.Error.MRI.Flow(), Session: *m.Error.Session}
	r := e.routes[k]
	if r == nil {
		return nil
	}
	if m.Error.Code == codeNoState && r.down.peer.Identity == m.NLI.Peer {
		r.down.phase = idle // it has begun anew: what is sent next asks again
		return nil
	}
	return []Output{{Failed: &Failure{Key: k, Error: m.Error}}}
}
