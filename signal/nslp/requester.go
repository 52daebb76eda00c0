package nslp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/onpath/onpath/signal/gist"
)

// Requester sends one request, and waits for the response.
type Requester struct {
	gist    *gist.Endpoint
	key     gist.Key
	payload []byte
	nonce   Nonce
	again   time.Time // when it sends again
	wait    time.Duration
	until   time.Time
	// part is a response after which another may come, that has more; until enough it is waited for.
	part   *Message
	enough time.Time
	// stream: the request was sent by a connection, too, as the answer was too long.
	stream bool

	// Response is the answer, Err why there is none; until one is set it is not over.
	Response *Message
	Err      error
}

// ErrNobody says that no node on the way answers.
var ErrNobody = errors.New("no onpath node on the way takes signalling messages")

// again is how long a requester waits before it sends again, then twice as long, and so on.
const again = time.Second

// more is how long a requester waits for a response that has more than the one that came, or
// so many round trips to the first node.
const (
	more      = 2 * time.Second
	moreTrips = 4
)

// NewRequester begins to send a signed request along a flow.
func NewRequester(now time.Time, g *gist.Endpoint, k gist.Key, m *Message, timeout time.Duration) (*Requester, []gist.Datagram, error) {
	r := &Requester{gist: g, key: k, payload: m.Append(nil), nonce: m.Nonce, until: now.Add(timeout), wait: again}
	if len(r.payload) > gist.MaxStream {
		return nil, nil, fmt.Errorf("the request has %d bytes; at most %d fit into one message: shorten its properties",
			len(r.payload), gist.MaxStream)
	}
	return r, r.send(now), r.Err
}

func (r *Requester) send(now time.Time) []gist.Datagram {
	r.again, r.wait = now.Add(r.wait), 2*r.wait
	out, err := r.gist.Down(now, r.key, gist.DefaultHops, r.payload)
	if err != nil {
		r.Err = err
	}
	return r.follow(now, out)
}

// Receive takes a datagram in.
func (r *Requester) Receive(now time.Time, p gist.Packet) []gist.Datagram {
	return r.follow(now, r.gist.Receive(now, p))
}

// Unreachable is told of an ICMP port unreachable.
func (r *Requester) Unreachable(now time.Time, p gist.Packet) []gist.Datagram {
	return r.follow(now, r.gist.Unreachable(now, p.To, p.Payload))
}

// Ended is told of the end of a connection (gist.Endpoint.Ended).
func (r *Requester) Ended(now time.Time, remote netip.AddrPort, failed bool) []gist.Datagram {
	return r.follow(now, r.gist.Ended(remote, failed))
}

// Prove looks at who signed each entry of the response (Message.Prove).
func (r *Requester) Prove(known func(node string) [][]byte, learn func(node string, key []byte)) {
	r.Response.Prove(r.payload, known, learn)
}

// Due is when Tick has something to do.
func (r *Requester) Due() time.Time {
	at := earlier(r.until, r.again)
	if r.part != nil {
		at = earlier(r.until, r.enough)
	}
	if d := r.gist.Due(); !d.IsZero() && d.Before(at) {
		at = d
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Tick does what is due at now.
func (r *Requester) Tick(now time.Time) []gist.Datagram {
	out := r.follow(now, r.gist.Tick(now))
	switch {
	case r.Response != nil || r.Err != nil:
	case r.part != nil && !now.Before(earlier(r.enough, r.until)):
		r.Response = r.part
	case !now.Before(r.until):
		r.Err = errors.New("a node on the way takes the request, but no response comes back: its onpath may be too old to read it")
	case !now.Before(r.again) && r.part == nil:
		out = append(out, r.send(now)...)
	}
	return out
}

func (r *Requester) follow(now time.Time, in []gist.Output) (out []gist.Datagram) {
	for _, o := range in {
		switch {
		case o.Send != nil:
			out = append(out, *o.Send)
		case o.Last != nil && *o.Last == r.key:
			r.fail(now, ErrNobody)
		case o.Failed != nil && o.Failed.Key == r.key:
			r.fail(now, o.Failed.Error)
		case o.Deliver != nil && !o.Deliver.Upstream && o.Deliver.Key == r.key:
			out = append(out, r.take(now, o.Deliver)...)
		}
	}
	return out
}

// fail ends it, with what there is.
func (r *Requester) fail(now time.Time, err error) {
	switch {
	case r.part == nil:
		r.Err = err
	case !r.part.unanswered(): // more would have come by the connection alone
		r.enough = now
	}
}

func (r *Requester) take(now time.Time, d *gist.Delivery) (out []gist.Datagram) {
	m, err := Parse(d.Payload)
	if err != nil || m.Type != Response || m.Nonce != r.nonce {
		return nil
	}
	peer, ok := r.gist.Next(r.key)
	if ok && len(m.Stack) > 0 {
		m.Stack[0].RTT, m.Stack[0].Address = peer.RTT, peer.Address.Addr()
	}
	switch {
	case !m.partial():
		r.Response = m
		return nil
	case r.part == nil || m.more(r.part):
		r.part, r.enough = m, now.Add(max(more, moreTrips*peer.RTT))
	}
	if m.shortened() && !d.Stream && !r.stream {
		r.stream, r.enough = true, now.Add(max(more, moreTrips*peer.RTT))
		g, err := r.gist.DownStream(now, r.key, gist.DefaultHops, r.payload)
		if err == nil {
			out = r.follow(now, g)
		}
	}
	return out
}
